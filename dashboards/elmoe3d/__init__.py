"""The page of ELMoE-3D."""

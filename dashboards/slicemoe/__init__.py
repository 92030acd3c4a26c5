"""The page of SliceMoE."""

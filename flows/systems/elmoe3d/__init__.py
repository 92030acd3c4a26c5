"""ELMoE-3D: elastic self-speculative decoding on hybrid-bonded memory, side by side with the paper's numbers."""

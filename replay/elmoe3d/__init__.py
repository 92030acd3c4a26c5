"""ELMoE-3D in closed form: self-speculative decoding of MoE models on hybrid-bonded memory (paper sections 4 to 7)."""

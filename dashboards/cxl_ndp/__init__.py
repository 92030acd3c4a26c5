"""The page of context-aware MoE on CXL GPU-NDP."""

"""Context-aware MoE on CXL GPU-NDP: what the command line asks of it."""

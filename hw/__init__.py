"""Hardware as data, and what a step costs on it: bytes and operations in, seconds and joules out."""

"""Mixtures of experts on a GPU with CXL near-data processing: placement by the prompt, mixed precision, and their baselines."""

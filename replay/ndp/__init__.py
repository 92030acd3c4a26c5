"""Experts in a memory that computes: decode and prefill on a GPU with a CXL NDP device, and what routing says of placing them."""

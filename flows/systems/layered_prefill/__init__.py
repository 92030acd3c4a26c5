"""Layered Prefill: schedulers of MoE serving, side by side with the paper's numbers."""

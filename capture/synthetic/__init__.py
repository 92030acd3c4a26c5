"""Tapes drawn from a generator of router logits, for models that cannot be run here. No torch."""

"""Losses: what 1 to 4 bit replicas of a model's experts cost in output error (docs/losses.md)."""

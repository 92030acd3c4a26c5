"""One decode loop inside a live model, and the decisions that run in it."""

"""Hot experts at full precision and replicas of the others inside a live model (docs/losses.md)."""

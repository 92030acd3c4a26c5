"""KV caches inside a live model: what is kept, stored and lost, and what that does to quality."""

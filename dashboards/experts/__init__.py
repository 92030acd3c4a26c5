"""The front page's panel: expert caches on recorded tapes."""

"""What the page of systems says where it has nothing to draw."""

COMPARE = "Run: tokentape compare TRACE, then tokentape load and tokentape site."
STUDY = "Run: tokentape study near_starves_cache, say (docs/studies.md), then tokentape load and tokentape site."

"""What the page of systems says where it has nothing to draw."""

COMPARE = "Run: tokentape compare TRACE, then tokentape load and tokentape site."

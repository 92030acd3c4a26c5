"""Two revisions side by side: their command lines make the same things, and every number of one is looked for in the other."""

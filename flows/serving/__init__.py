"""Serving: options of the command line, the engine they make, points of a study."""

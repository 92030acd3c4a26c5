"""Traces and decisions as other programs read them: pure functions from a trace to the content of a file, one form per file."""

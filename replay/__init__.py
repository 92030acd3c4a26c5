"""Tape x policy x hardware -> result: pure functions over arrays, no I/O, no clock, no global random state."""

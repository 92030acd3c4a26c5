"""Traces of other engines -> tape, one format per file. No torch here."""

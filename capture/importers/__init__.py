"""Traces of other engines -> tape, one format per file. No torch here, but where a dump is torch's own."""

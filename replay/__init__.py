"""Tape x policy x hardware -> result: pure functions over arrays, no I/O, no clock, no global random state."""

if not __name__.startswith("tokentape."):
    raise ImportError(f"{__name__}/ is a folder of tokentape's checkout; write: import tokentape.{__name__}")

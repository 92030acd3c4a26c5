"""Wires the other rooms: the command line, studies and their grid, Prefect flows and schedules. Computes nothing itself."""

if not __name__.startswith("tokentape."):
    raise ImportError(f"{__name__}/ is a folder of tokentape's checkout; write: import tokentape.{__name__}")

"""Hardware as data, and what a step costs on it: bytes and operations in, seconds and joules out."""

if not __name__.startswith("tokentape."):
    raise ImportError(f"{__name__}/ is a folder of tokentape's checkout; write: import tokentape.{__name__}")

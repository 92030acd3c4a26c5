"""Warehouse to pages: a static site of Vega-Lite charts that opens from a file. Altair lives only here."""

if not __name__.startswith("tokentape."):
    raise ImportError(f"{__name__}/ is a folder of tokentape's checkout; write: import tokentape.{__name__}")

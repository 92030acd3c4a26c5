"""Warehouse to pages: a static site of Vega-Lite charts that opens from a file. Altair lives only here."""

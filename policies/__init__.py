"""Decisions, one per file; each kind's names lie in the module that policies/registry.py tells. Imports none of them."""

if not __name__.startswith("tokentape."):
    raise ImportError(f"{__name__}/ is a folder of tokentape's checkout; write: import tokentape.{__name__}")

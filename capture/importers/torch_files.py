"""Torch files of plain tensors and values, without pickle: torch's own reader of nothing else (weights_only)."""

import io
import warnings
from typing import Any

from tokentape.capture.importers.limits import BadImport, reason


def is_torch(raw: bytes) -> bool:
    """Whether the bytes are a torch file: a zip, or its form before that."""
    return raw[:1] in (b"P", b"\x80")


def plain_values(raw: bytes, where: str, remedy: str) -> dict[str, Any]:
    """The dict that was saved, on the CPU. Raises BadImport for one that needs a pickle, a damaged one and what is no dict."""
    import torch

    try:
        with warnings.catch_warnings(action="ignore"):  # of other protocols, which are then refused
            found = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    except Exception as error:  # of a damaged file torch raises nearly anything
        raise BadImport(f"{where}: not a torch file of plain tensors ({reason(error)}); {remedy}") from None
    if not isinstance(found, dict):
        raise BadImport(f"{where}: holds a {type(found).__name__}, not the recorder's dict; {remedy}")
    return found

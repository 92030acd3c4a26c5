"""How large the expert cache is: bytes, experts or a share of all experts, as a person writes it."""

import re

from tokentape.warehouse.geometry import Geometry

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def total_expert_bytes(geometry: Geometry, expert_format: str) -> int:
    """Bytes of all routed experts in all layers."""
    return sum(geometry.expert_bytes(expert_format)) * geometry.n_experts


def parse_capacity(text: str, geometry: Geometry, expert_format: str) -> int:
    """Bytes of a cache of whole experts, over all layers, from "50%", "1.5GB", "900MiB" or "64 experts" (of mean size).

    Raises ValueError on anything else and on a capacity of 0 or above all experts.
    """
    return bytes_of(text, total_expert_bytes(geometry, expert_format), geometry.n_experts * len(geometry.moe_layers))


def bytes_of(text: str, total: int, n_experts: int, of: str = "capacity") -> int:
    """The same where all `n_experts` together take `total` bytes. of: what errors call it."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z%]+)\s*", str(text))
    if not match:
        raise ValueError(f"{of} {text!r} is not understood; write 50%, 1.5GB, 900MiB or '64 experts'")
    amount, unit = float(match[1]), match[2].lower()
    if unit == "%":
        n_bytes = round(total * amount / 100)
    elif unit in ("expert", "experts"):
        n_bytes = round(amount * total / n_experts)
    elif unit in _UNITS:
        n_bytes = round(amount * _UNITS[unit])
    else:
        raise ValueError(f"{of} unit {match[2]!r} is unknown; use %, experts, {', '.join(_UNITS)}")
    if n_bytes <= 0:
        raise ValueError(f"{of} {text!r} is zero; give at least one expert")
    if n_bytes > total:
        raise ValueError(f"{of} {text!r} is more than all experts ({total} B); give at most 100%")
    return n_bytes

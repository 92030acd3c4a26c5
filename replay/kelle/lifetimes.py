"""How long a layer's data stays in eDRAM, and so has to be refreshed. Source: Kelle section 6.

T_s reads one C x C weight matrix from SRAM, T_e one pass over the K (or V) of the kept tokens from eDRAM; matrix products are
neglected beside them. Kelle reads weights and KV side by side and consumes K and V of the new token as they come.
"""

from __future__ import annotations

from typing import Any

from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Rows
from tokentape.replay.kelle.recompute import seconds_of
from tokentape.replay.kelle.step import kv_elements
from tokentape.replay.kelle.work import PAPER, Accounting, Work
from tokentape.warehouse.geometry import Geometry


def lifetimes(geometry: Geometry, machine: HardwareSpec, work: Work, accounting: Accounting = PAPER) -> list[dict[str, Any]]:
    """Of the baseline's schedule and of Kelle's, by tensor: X (the layer's input), Q, K and V. Starts are our reading of the
    schedule; the paper gives lengths only."""
    kept = min(work.n_tokens, work.budget_tokens or work.n_tokens)
    k_bytes = work.batch * kept * kv_elements(geometry, accounting) / 2 * work.kv_bits / 8
    weights = Rows(kind="weights", tier="stage", bytes=float(geometry.hidden**2))
    t_s, t_e = seconds_of(machine, weights, Rows(kind="kv_read", tier="kv_cache", bytes=k_bytes))
    seconds = {
        "baseline": {"X": 3 * t_s, "Q": 2 * t_s + t_e, "K": t_s + t_e, "V": 2 * t_e},
        "kelle": {"X": 3 * t_s, "Q": t_s + t_e, "K": 0.0, "V": 0.0},
    }
    return [
        {"schedule": schedule, "tensor": tensor, "start_s": i * t_s, "seconds": lives}
        for schedule, of in seconds.items()
        for i, (tensor, lives) in enumerate(of.items())
    ]


def total_s(found: list[dict[str, Any]], schedule: str) -> float:
    """Of all tensors together: what refreshing them is proportional to."""
    return float(sum(one["seconds"] for one in found if one["schedule"] == schedule))

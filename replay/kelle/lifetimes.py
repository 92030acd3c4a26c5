"""How long a layer's data stays in eDRAM, and so has to be refreshed. Source: Kelle section 6.

T_s reads one C x C weight matrix from SRAM, T_e one pass over the K (or V) of the kept tokens from eDRAM; matrix products are
neglected beside them. Kelle reads weights and KV side by side and consumes K and V of the new token as they come.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Rows
from tokentape.replay.kelle.recompute import seconds_of
from tokentape.replay.kelle.step import kv_elements
from tokentape.replay.kelle.work import PAPER, Accounting, Work
from tokentape.warehouse.geometry import Geometry


@dataclass(frozen=True)
class Lifetime:
    """tensor: X (the layer's input), Q, K or V. Starts are our reading of the schedule; the paper gives lengths only."""

    schedule: str
    tensor: str
    start_s: float
    seconds: float


def layer_times(geometry: Geometry, machine: HardwareSpec, work: Work, accounting: Accounting = PAPER) -> tuple[float, float]:
    """T_s and T_e."""
    kept = min(work.n_tokens, work.budget_tokens or work.n_tokens)
    k_bytes = work.batch * kept * kv_elements(geometry, accounting) / 2 * work.kv_bits / 8
    weights = Rows(kind="weights", tier="stage", bytes=float(geometry.hidden**2))
    t_s, t_e = seconds_of(machine, weights, Rows(kind="kv_read", tier="kv_cache", bytes=k_bytes))
    return t_s, t_e


def lifetimes(geometry: Geometry, machine: HardwareSpec, work: Work, accounting: Accounting = PAPER) -> list[Lifetime]:
    """Of the baseline's schedule and of Kelle's."""
    t_s, t_e = layer_times(geometry, machine, work, accounting)
    return [
        Lifetime("baseline", "X", 0.0, 3 * t_s),
        Lifetime("baseline", "Q", t_s, 2 * t_s + t_e),
        Lifetime("baseline", "K", 2 * t_s, t_s + t_e),
        Lifetime("baseline", "V", 3 * t_s, 2 * t_e),
        Lifetime("kelle", "X", 0.0, 3 * t_s),
        Lifetime("kelle", "Q", t_s, t_s + t_e),
        Lifetime("kelle", "K", 2 * t_s, 0.0),
        Lifetime("kelle", "V", 3 * t_s, 0.0),
    ]


def total_s(found: list[Lifetime], schedule: str) -> float:
    """Of all tensors together: what refreshing them is proportional to."""
    return sum(one.seconds for one in found if one.schedule == schedule)

"""The cost of steps of which weights alone are counted (SliceMoE section 5): read, fetched where missing, multiplied.

What such a step leaves out (attention, the KV cache, launches) replay/uncounted.py tells.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tokentape.hw import profile as profiles
from tokentape.hw.clock import BACKGROUND, StepCost, clock
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Rows, Values, Work

PROFILE = "slicemoe"


def weights_cost(
    machine: HardwareSpec,
    read_bytes: Values,
    fetched_bytes: NDArray[np.int64],
    n_fetches: Values,
    ops: Values,
    overlapped: bool = False,
) -> StepCost:
    """Cost of n steps; all inputs (n,). read_bytes: of the tier that the engine reads, what was fetched included; n_fetches:
    reads of the experts' home one after the other; overlapped: they run beside all else.

    Raises ValueError if bytes are fetched on a machine without an expert cache.
    """
    rows = reads(machine, np.asarray(read_bytes)[:, None], np.asarray(ops)[:, None])
    if machine.roles.expert_cache:
        rows += fetches(np.asarray(fetched_bytes)[:, None], np.asarray(n_fetches)[:, None], overlapped)
    elif np.any(fetched_bytes):
        raise ValueError(f"{machine.name} has no tier behind another to fetch missing experts from; choose a machine with one")
    return cost_of(Work(n_steps=len(fetched_bytes), n_blocks=1, rows=rows), machine, PROFILE)


def reads(machine: HardwareSpec, n_bytes: Values, ops: Values) -> tuple[Rows, ...]:
    """Weights that the main engine reads, and what it computes with them; broadcast to (steps, blocks)."""
    tier = "expert_cache" if machine.roles.expert_cache else "expert_home"
    return (Rows(kind="expert", name="weights", tier=tier, engine="main", bytes=n_bytes, ops=ops),)


def fetches(n_bytes: Values, n_fetches: Values, overlapped: bool) -> tuple[Rows, ...]:
    """Experts moved from their home into the cache, before they are used or, overlapped, beside all else."""
    kind = "prefetch" if overlapped else "fetch"
    return (
        Rows(kind=kind, name="fetch missing experts", tier="expert_home", target="expert_cache", bytes=n_bytes, count=n_fetches),
    )


def cost_of(work: Work, machine: HardwareSpec, profile: str) -> StepCost:
    """The cost, its joules by what spends them as metrics name it: fast, backing, link, compute, background."""
    cost, roles = clock(work, machine, profiles.load(profile)), machine.roles
    names = {
        BACKGROUND: BACKGROUND,
        f"engines.{roles.main}": "compute",
        f"tiers.{roles.expert_cache or roles.expert_home}": "fast",
    }
    names |= {f"tiers.{roles.expert_home}": "backing"} if roles.expert_cache else {}
    return replace(cost, joules_of={names.get(part, "link"): band for part, band in cost.joules_of.items()})

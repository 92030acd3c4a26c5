"""One tape through one policy on one machine, by the engine that the policy needs: `tokentape replay`, `tokentape.run`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tokentape.flows.grid import RESIDENCY, SLICEMOE, Cell, run_cell
from tokentape.hw.profile import PHYSICAL
from tokentape.policies.registry import find
from tokentape.replay.result import ReplayResult
from tokentape.replay.semantics import Semantics
from tokentape.warehouse.tape import Store

OF_ONE_SCOPE = Semantics("global")


def replay_once(
    store: Store,
    trace_id: str,
    policy: str,
    params: Mapping[str, Any],
    hardware: str,
    semantics: Semantics,
    capacity: str,
    expert_format: str = "auto",
    seed: int = 0,
    profile: str | None = None,
) -> tuple[str, ReplayResult]:
    """The replay's id and result, written to the store as study 'adhoc' unless it is there.

    Raises ValueError on bad input, and for what the policy's engine does not have: nothing is ignored.
    """
    if policy == SLICEMOE:
        given = {**dataclasses.asdict(semantics), "expert-format": expert_format}
        only = {**dataclasses.asdict(OF_ONE_SCOPE), "expert-format": "auto"}
        for name, value in given.items():
            if name not in ("start", "fetching") and value != only[name]:
                raise ValueError(f"--{name} {value} does not go with slicemoe: it has --{name} {only[name]} only")
    elif seed and getattr(find(RESIDENCY, policy), "kind", "") != "uniform":
        raise ValueError(f"--seed {seed} has no effect on {policy}, which draws nothing; leave it out")
    how = (expert_format, seed, profile or PHYSICAL)
    return run_cell(store, Cell(trace_id, policy, tuple(params.items()), hardware, semantics, capacity, *how))

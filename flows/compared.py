"""What the demo compares on one tape: shipped systems of every kind, on two machines, in three rooms."""

from __future__ import annotations

from dataclasses import replace

from tokentape.flows import system_runs as runs
from tokentape.warehouse.tape import Store

SYSTEMS = (
    *("near_compute", "prefill_guided", "prefill_guided_3bit", "monde", "layered", "sarathi", "layerwise_lru", "slicemoe"),
    *("kelle", "h2o", "quarot"),
)
MACHINES = ("workstation-rtx4090-pcie4", "h100-cxl-ndp")
ROOMS = ("25%", "50%", "75%")
TABLES = ("requests", "tokens", "routing", "scores", "attention")  # that all of them need of a tape


def compared(store: Store, trace_id: str) -> str:
    """Runs them, with the baselines of every comparison, or finds them in the store; what was compared, in words."""
    load = runs.workload_for(runs.tape_of(store, trace_id, None))
    asked = runs.Asked(trace_id, "lru_offload", "", load, expert_format="int8-g32")
    cells = [cell for room in ROOMS for cell in runs.compare(store, replace(asked, budget=room), SYSTEMS, MACHINES) if cell.runs]
    return f"{len({cell.system for cell in cells})} systems in {len(cells)} cells on {trace_id}"

"""What the demo compares on one tape: shipped systems of every kind, on two machines, in three rooms."""

from __future__ import annotations

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
    rooms = [runs.Asked(trace_id, "lru_offload", "", load, {}, room) for room in ROOMS]
    cells = [cell for asked in rooms for cell in runs.compare(store, asked, SYSTEMS, MACHINES)]
    of = f"{len({cell.system for cell in cells if cell.runs})} systems on {len(MACHINES)} machines in {len(ROOMS)} rooms"
    return f"{of}, {sum(len(cell.runs) for cell in cells)} runs on {trace_id}"

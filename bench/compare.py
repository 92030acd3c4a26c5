"""CPU seconds of `compare` over the recorded Qwen3 tape: six systems with the bound, on three machines, results written."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from tokentape.capture.importers.bigmoe import import_bigmoe
from tokentape.flows import system_runs as runs
from tokentape.warehouse.tape import Store

TRACE = "TOKENTAPE_QWEN_TRACE"  # qwen.route.csv of BigMoeOnEdge
SYSTEMS = ("layerwise_lru", "prefill_guided", "near_compute", "prefix_split")
MACHINES = ("phone-lpddr5x-ufs4", "workstation-rtx4090-pcie4", "h100-cxl-ndp")


def bench() -> dict[str, Any]:
    """With machine code on disk: the second of two runs, in stores of their own. Nothing where TRACE is not set."""
    if TRACE not in os.environ:
        return {}
    took = 0.0
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            store = Store(folder)
            asked = runs.Asked(import_bigmoe(Path(os.environ[TRACE]), store), "lru_offload", "", model="qwen3-30b-a3b")
            began = time.process_time()
            cells = runs.compare(store, asked, SYSTEMS, MACHINES)
            took = time.process_time() - began
    n_ran = sum(bool(cell.runs) for cell in cells)
    print(f"compare, {len(cells)} cells of the Qwen3 tape, {n_ran} with a run: {took:.1f} CPU s")
    return {"compare_qwen_cpu_s": round(took, 1)}


if __name__ == "__main__":
    bench()

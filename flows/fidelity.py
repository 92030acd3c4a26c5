"""Open loop against closed loop: rows of table `fidelity`, with time and energy from the counted bytes."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from tokentape.capture import measure, models
from tokentape.capture.live.routers import seen_by_replay
from tokentape.capture.live.system import SystemTried, both_loops
from tokentape.hw.spec import HardwareSpec
from tokentape.replay.slicemoe import decode_cost
from tokentape.warehouse.geometry import Geometry

UNITS = {
    "miss_frac": "1", "kept_gate_mass_frac": "1", "strayed_frac": "1", "flash_bytes_per_token": "B",
    "dram_bytes_per_token": "B", "step_s": "s", "step_j": "J",
}  # fmt: skip


def compare(
    model: str, datasets: list[str], run: SystemTried, seeds: Sequence[int], machine: HardwareSpec, progress: Callable[..., None]
) -> list[dict[str, Any]]:
    """One row per data set, seed and quantity. Raises ValueError for an unknown model or data set, or one too short."""
    loaded = models.load(models.find(model))
    geometry = measure.geometry(loaded.model)
    rows = []
    for dataset in datasets:
        for seed in seeds:
            opened, closed, expert_bytes = both_loops(loaded, dataset, run, seed, progress)
            values = [_quantities(totals, expert_bytes, geometry, machine) for totals in (opened, closed)]
            where = {
                "model_id": loaded.source.model_id,
                "policy": run.name,
                "parameters": json.dumps(run.parameters, sort_keys=True),
                "dataset": dataset,
                "seed": seed,
                "hardware": machine.name,
                "n_tokens": closed["tokens"],
            }
            rows += [
                {**where, "metric": name, "unit": unit, "open_loop": values[0][name], "closed_loop": values[1][name]}
                for name, unit in UNITS.items()
            ]
    return rows


def _quantities(totals: dict[str, float], expert_bytes: int, geometry: Geometry, machine: HardwareSpec) -> dict[str, float]:
    """Per decoded token: misses, bytes, and what a step of mean bytes costs; other weights at INT8, blocking fetches."""
    flash, dram = (totals[name] / max(1, totals["tokens"]) for name in ("flash_bytes", "dram_bytes"))
    cost = decode_cost(geometry, machine, dram, flash, 0.0)
    return {
        "miss_frac": totals["flash_bytes"] / max(1, totals["accesses"] * expert_bytes),
        **seen_by_replay(totals),
        "flash_bytes_per_token": flash,
        "dram_bytes_per_token": dram,
        "step_s": float(cost.seconds.value[0]),
        "step_j": float(cost.joules.value[0]),
    }

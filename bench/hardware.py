"""What costs cost: step costs per second against the same formulas one step at a time, rows of work per second, operator times,
and a whole calibration.

Calibration needs measured tables (TOKENTAPE_GPU_TABLES) and is left out without them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tokentape.flows.commands.hardware import TABLES, TABLES_VARIABLE
from tokentape.flows.options import folder_named_by
from tokentape.hw import calibrate, measured, profile
from tokentape.hw.clock import StepCost, background_w, clock
from tokentape.hw.operators import OPERATORS
from tokentape.hw.profile import ENDS, Lane
from tokentape.hw.rates import rates_of
from tokentape.hw.spec import HardwareSpec, load
from tokentape.hw.work import Rows, Work
from tokentape.warehouse.models import load as load_model

N_STEPS, N_ALONE, BATCH = 1_000_000, 20_000, 20_000


def seconds_of(work: Callable[[], Any], repeats: int = 3) -> float:
    """CPU seconds of the fastest of the repeats."""
    best = float("inf")
    for _ in range(repeats):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


def step_rows(read: Any, fetched: Any, n_fetches: Any, ops: Any) -> tuple[Rows, ...]:
    """Weights that are read and multiplied, and what is fetched before."""
    return (
        Rows(kind="expert", tier="expert_cache", engine="main", bytes=read, ops=ops),
        Rows(kind="fetch", tier="expert_home", target="expert_cache", bytes=fetched, count=n_fetches),
    )


def cost_of(spec: HardwareSpec, work: tuple[Any, ...]) -> StepCost:
    """Of steps that are one block each, by SliceMoE's profile."""
    rows = step_rows(*(values[:, None] for values in work))
    return clock(Work(n_steps=len(work[0]), n_blocks=1, rows=rows), spec, profile.load("slicemoe"))


def one_by_one(spec: HardwareSpec, work: list[tuple[float, float, float, float]]) -> list[tuple[float, float]]:
    """Seconds and joules with plain Python numbers, at the three ends of the ranges: the peer."""
    rows = step_rows(0.0, 0.0, 0.0, 0.0)
    watts = [sum(background_w(spec, profile.load("slicemoe"), end).values()) for end in ENDS]
    ends = [([rates_of(spec, of, Lane(name=""), end) for of in rows], w) for end, w in zip(ENDS, watts, strict=True)]
    found = []
    for read, fetched, n, ops in work:
        for (near, far), idle_w in ends:
            seconds = max(read * near.s_per_byte, ops * near.s_per_op) + fetched * far.s_per_byte + n * far.each_s
            moved = sum(near.j_per_byte.values()) * read + sum(far.j_per_byte.values()) * fetched
            found.append((seconds, moved + near.j_per_op * ops + idle_w * seconds))
    return found


def in_batches(spec: HardwareSpec, work: tuple[Any, ...]) -> None:
    """All steps, a tape's worth at a time."""
    for first in range(0, N_STEPS, BATCH):
        cost = cost_of(spec, tuple(values[first : first + BATCH] for values in work))
        _ = cost.seconds, cost.joules  # made when they are asked for


def bench() -> dict[str, float]:
    """Step costs per second and their ratio to the peer; rows per second of every operator; seconds to calibrate a device."""
    rng = np.random.default_rng(0)
    spec = load("workstation-rtx4090-pcie4")
    work = (*(rng.integers(1, top, N_STEPS) for top in (10**9, 10**8, 48)), rng.uniform(1e9, 1e12, N_STEPS))
    ours_s = seconds_of(lambda: in_batches(spec, work))
    rows = list(zip(*(values[:N_ALONE].tolist() for values in work), strict=True))
    peer_s = seconds_of(lambda: one_by_one(spec, rows)) * N_STEPS / N_ALONE
    made = cost_of(spec, tuple(values[:N_ALONE] for values in work))
    assert np.allclose([pair[1] for pair in one_by_one(spec, rows)[::3]], made.joules.value), "the peer costs something else"
    rate, ratio = N_STEPS / ours_s, peer_s / ours_s
    print(f"step costs {rate / 1e6:.1f} M/s with bands, one by one {rate / ratio / 1e6:.2f} M/s, ratio {ratio:.1f}")
    report = {"step_costs_per_cpu_s": round(rate), "step_costs_ratio_vs_one_by_one": round(ratio, 1)} | _rows(rng)
    folder = folder_named_by(TABLES_VARIABLE, TABLES)
    return report | (_calibration(folder) if folder else {})


def _rows(rng: np.random.Generator) -> dict[str, float]:
    """Rows of experts per second, one row each, through profile physical: three ends, joules by part, busy time."""
    spec, n_steps, n_blocks, n = load("h100-cxl-ndp"), 200, 49, 64
    geometry = load_model("qwen3-30b-a3b").geometry
    cells = np.repeat(np.arange(n_steps * n_blocks), n)
    tokens = rng.integers(1, 8, cells.size).astype(np.float64)
    moved = {"cells": cells, "bytes": 2.0 * geometry.expert_params, "ops": 2.0 * geometry.expert_params * tokens}
    near = Rows(kind="expert", tier="expert_home", engine="near_compute", bits=rng.choice([2.0, 3.0], cells.size), **moved)
    hot = Rows(kind="expert", tier="expert_cache", engine="main", **moved)
    work, physical = Work(n_steps=n_steps, n_blocks=n_blocks, rows=(near, hot)), profile.load("physical")

    def priced() -> tuple[Any, ...]:
        cost = clock(work, spec, physical)
        return cost.seconds, cost.joules_of, cost.busy_s  # made when they are asked for

    rate = 2 * cells.size / seconds_of(priced)
    print(f"rows of work {rate / 1e6:.1f} M/s, a row per expert, with bands, joules and busy time")
    return {"work_rows_per_cpu_s": round(rate)}


def _calibration(folder: Path) -> dict[str, float]:
    report: dict[str, float] = {}
    for device in sorted(path for path in folder.iterdir() if path.is_dir()):
        started = time.process_time()
        tables = measured.read([device])
        machine = calibrate.machine_of(tables[0].setup.device)
        fits = [calibrate.calibrate(table, machine) for table in tables]
        spent, n_rows = time.process_time() - started, sum(fit.n_rows for fit in fits)
        report[f"calibrate_{machine.name}_s"] = round(spent, 2)
        print(f"calibrating {machine.name}: {spent:.1f} s for {n_rows:,} rows, with and without the held-out ones")
    gpu = calibrate.gpu_of(machine)
    for fit, table in zip(fits, tables, strict=True):
        shapes = {name: np.resize(values, N_STEPS) for name, values in table.shapes.items()}
        rate = N_STEPS / seconds_of(lambda fit=fit, shapes=shapes: fit.seconds(gpu, shapes), 2)
        report[f"{fit.operator}_times_per_cpu_s"] = round(rate)
        print(f"{fit.operator}: {rate / 1e6:.1f} M times/s")
    assert set(OPERATORS) == {fit.operator for fit in fits}
    return report

"""Three numbers of KTransformers' server, from what was measured on one of its sockets: claims of role calibrate, and no others.

python -m bench.fit_offloaders     prints them, as hw/specs/server-xeon6454s-rtx4090d.toml has them

Six and eight experts of a token differ by what the memory reads of two: its efficiency. What decode takes beside its experts and
what the GPU reads is the host's time for a layer. The prompts leave the cores' efficiency, one number for two rows.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tokentape.flows.answers import stated
from tokentape.flows.system_runs import Asked, setting_of, tape_of
from tokentape.flows.systems.offloaders.study import PAPER, Settings, asked_for, claimed, draw, drawn_of
from tokentape.hw.fit_files import solver
from tokentape.replay.system.run import simulate
from tokentape.warehouse.tape import Store

# What is fitted, one after the other: rows of a metric, the numbers that follow from them, and where the search begins.
FITTED = {
    "decode_throughput": {"host.layer_s": 1e-4, "tiers.host.efficiency_frac": 0.5},
    "prefill_throughput": {"engines.cpu.efficiency_frac": 0.5},
}
ROLE, DIGITS = "calibrate", 4
Floats = NDArray[np.float64]


def fitted(store: Store, study: Settings) -> dict[str, float]:
    """By key of the machine's file: least squares of ln(ours / published)."""
    found = dict[str, float]()
    for metric, begin in FITTED.items():
        claims = (row for row in stated(PAPER).values() if (row["metric"], row["role"]) == (metric, ROLE))
        wanted = {row["setting"]: row["value"] for row in claims}
        points = [of for of in study.points if claimed(of) in wanted]
        rows = [(asked_for(store, draw(store, drawn_of(of), study.seed), of), wanted[claimed(of)]) for of in points]
        error = partial(errors, store, metric, rows, found, tuple(begin))
        least = solver()(error, np.log(list(begin.values())), diff_step=1e-4)
        found |= dict(zip(begin, map(float, np.exp(least.x)), strict=True))
    return {name: float(f"{value:.{DIGITS}g}") for name, value in found.items()}


def errors(
    store: Store, metric: str, rows: Sequence[tuple[Asked, float]], found: Mapping[str, float], names: Sequence[str], logs: Floats
) -> list[float]:
    """ln(ours / published) of runs of one request, at the nominal numbers but those found before and exp(logs) of `names`."""
    numbers = {**found, **dict(zip(names, map(float, np.exp(logs)), strict=True))}
    return [math.log(rate(store, replace(asked, numbers=numbers), metric) / value) for asked, value in rows]


def rate(store: Store, asked: Asked, metric: str) -> float:
    """Tokens per second of the prompt, or of decode."""
    tape, system = tape_of(store, asked.trace_id, None), asked.made()
    requests = asked.workload.of(tape)
    served = simulate(tape, requests, system, asked.hardware, setting_of(store, asked, system)).serving
    if metric == "decode_throughput":
        return 1.0 / served.gap_mean_s
    return float(requests.n_prompt_tokens.sum() / served.ttft_s.sum())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for key, number in fitted(Store(folder), Settings.shipped()).items():
            print(f"{key} = {number:g}")

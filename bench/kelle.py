"""How many decode steps of Kelle's systems are estimated per second, over the study's models and workloads."""

from __future__ import annotations

import time
from itertools import product

from tokentape.flows.systems.kelle.settings import Settings, setup
from tokentape.replay.kelle.work import MODES


def bench() -> dict[str, float]:
    """Steps per CPU second in the slower of the two modes."""
    made, rates = setup(Settings.shipped()), []
    cells = list(product(made.geometries, made.systems, made.workloads.values()))
    for mode in MODES:
        started = time.process_time()
        made.steps(mode=mode).make(cells)
        rates.append(len(cells) / (time.process_time() - started))
    print(f"Kelle's steps: {min(rates):,.0f}/s")
    return {"kelle_steps_per_cpu_s": round(min(rates))}

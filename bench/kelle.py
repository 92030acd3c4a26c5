"""How many decode steps of Kelle's systems are estimated per second, over the study's models and workloads."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product

from tokentape.flows.systems.kelle.settings import Settings, setup
from tokentape.replay.kelle.systems import MODES

RUNS = 5  # the fastest counts: the first one reads profiles


def bench() -> dict[str, float]:
    """Steps per CPU second in the slower of the two modes."""
    made, rates = setup(Settings.shipped()), []
    cells = list(product(made.geometries, made.systems, made.workloads.values()))
    for mode in MODES:
        seconds = []
        for _ in range(RUNS):
            steps, started = replace(made.steps(mode=mode), _made={}), time.process_time()
            steps.make(cells)
            seconds.append(time.process_time() - started)
        rates.append(len(cells) / min(seconds))
    print(f"Kelle's steps: {min(rates):,.0f}/s")
    return {"kelle_steps_per_cpu_s": round(min(rates))}

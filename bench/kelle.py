"""How many decode steps of Kelle's systems are estimated per second, over the study's models and workloads."""

from __future__ import annotations

import time

from tokentape.flows.systems.kelle.settings import Settings, setup
from tokentape.replay.kelle.work import MODES


def bench() -> dict[str, float]:
    """Steps per CPU second in the slower of the two modes."""
    made, rates = setup(Settings.shipped()), []
    for mode in MODES:
        steps, started, n = made.steps(mode=mode), time.process_time(), 0
        for model in made.geometries:
            for work in made.workloads.values():
                for system in made.systems:
                    steps.step(model, system, work)
                    n += 1
        rates.append(n / (time.process_time() - started))
    print(f"Kelle's steps: {min(rates):,.0f}/s")
    return {"kelle_steps_per_cpu_s": round(min(rates))}

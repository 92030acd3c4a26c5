"""What the systolic evictor saves: without it every kept score is read again for the minimum. Source: Kelle sections 5.3, 8.1.4.

With it the minimum comes out of the array one cycle after its last row. The software's scan reads one 4-bit score per cycle and
waits for nothing else (assumed).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tokentape.replay.kelle.step import Step, refresh_w
from tokentape.replay.kelle.systems import System
from tokentape.replay.kelle.work import Work
from tokentape.warehouse.geometry import Geometry

SCORE_BYTES = 0.5


def with_evictor(step: Step, evictor_w: float) -> Step:
    """The step with the evictor's own power counted."""
    return replace(step, joules={**step.joules, "array_j": step.joules["array_j"] + evictor_w * step.seconds})


def with_software_eviction(step: Step, geometry: Geometry, system: System, work: Work) -> Step:
    """The step of a system that looks for the least score of every head by a scan."""
    kept = min(work.n_tokens, work.budget_tokens or work.n_tokens)
    n_reads = work.batch * geometry.n_layers * geometry.n_heads * kept
    more_s, chip = n_reads / system.chip.clock_hz, system.chip
    more = {
        "kv_j": n_reads * SCORE_BYTES * chip.kv_j_per_byte,
        "refresh_j": float(refresh_w(system, np.inf)) * more_s,
        "array_j": chip.static_w * more_s,
        "leakage_j": chip.leakage_w * more_s,
    }
    joules = {part: joule + more.get(part, 0.0) for part, joule in step.joules.items()}
    return replace(step, seconds=step.seconds + more_s, joules=joules)

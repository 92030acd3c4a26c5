"""What the first steps of generations cost: the window in which a warm-up shows (SliceMoE Fig. 10)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokentape.replay.result import ReplayResult
from tokentape.replay.trace import DECODE, Trace


def window_costs(trace: Trace, result: ReplayResult, windows: Sequence[int]) -> list[dict[str, float]]:
    """Mean seconds and joules of a decoded token over the first n steps of every generation, for each n of `windows`.

    Columns window_steps, decode_step_s and decode_energy_j_per_token. result: a replay of `trace` on a machine, one sequence at a
    time. A window longer than the generations is left out.
    """
    decode = trace.pass_kind == DECODE
    place = np.arange(decode.size)
    began = np.maximum.accumulate(np.where(decode, -1, place))  # the last prefill pass before each pass
    step = (place - began)[decode]  # from 1
    timed = result.timeline["kind"] == "decode"
    seconds, joules = (result.timeline[name][timed] for name in ("step_s", "energy_j"))
    return [
        {
            "window_steps": n,
            "decode_step_s": float(seconds[step <= n].mean()),
            "decode_energy_j_per_token": float(joules[step <= n].mean()),
        }
        for n in windows
        if n <= step.max(initial=0)
    ]

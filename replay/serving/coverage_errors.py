"""How far each form of expert coverage is off from what a tape recorded."""

from __future__ import annotations

import numpy as np

from tokentape.hw.coverage import errors
from tokentape.replay import coverage as tapes
from tokentape.replay.serving.coverage import PublishedCoverage
from tokentape.replay.trace import Trace


def sentences(trace: Trace, published: PublishedCoverage) -> list[str]:
    """A line for decode and one for prefill: mean |form / recorded - 1| over 1, 2, 4, ... tokens; Table 1 among the forms."""
    size = trace.geometry.n_experts, trace.geometry.top_k
    found = []
    for phase, table in zip(("prefill", "decode"), published.tables(trace.geometry), strict=True):
        if not (trace.pass_kind[trace.row_pass] == tapes.PHASES[phase]).any():
            continue
        curve = tapes.recorded(trace, phase)
        off = errors(tapes.forms_of(trace, curve), curve.n_tokens, curve.distinct, *size)
        n = np.minimum(curve.n_tokens.astype(np.int64), len(table) - 1)
        off["paper_table"] = float(np.abs(table[n, 0] * size[0] / curve.distinct - 1.0).mean())
        listed = ", ".join(f"{name} {100 * share:.1f} %" for name, share in sorted(off.items(), key=lambda pair: pair[1]))
        found.append(f"{phase} coverage, mean error of the forms against tape {trace.trace_id}, to {n[-1]} tokens: {listed}")
    return found

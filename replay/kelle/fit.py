"""Fits the three knobs of Kelle's cost model to the claims of role `calibrate`: least mean |ln(ours / published)| within bounds.

Errors count by their size and not by their square, so that cells which no step that rises with its batch can meet (Table 9 at
batch 4: docs/kelle.md) do not decide the knobs. Without any knob fitted, transfers are serial but for Kelle's, and the recomputed
share balances the paper's two latencies. Pure: the claims are passed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.fit_files import Fit, solver
from tokentape.replay.kelle.ratios import Ratio, Steps, ratio_of
from tokentape.replay.kelle.systems import BOUNDS, Fitted

PAPER = "kelle"
LOAD_CLAIM = "kelle/8.3.2/latency/llama-2-7b/one-kv-vector-from-dram"
RECOMPUTE_CLAIM = "kelle/8.3.2/latency/llama-2-7b/recompute-one-kv-vector"
ROUNDING = 0.01  # of the published numbers, three digits: smaller errors count by their square, which keeps the loss smooth
STARTS = (0.25, 0.5, 0.75)  # of the way from each bound to the other
TOLERANCES = {"xtol": 1e-10, "ftol": 1e-10, "gtol": 1e-10}
Floats = NDArray[np.float64]


def derived(claims: Iterable[Mapping[str, Any]]) -> Fitted:
    """Nothing fitted: the recomputed share at which loading the rest of the vectors takes as long as recomputing these."""
    values = {row["claim_id"]: float(row["value"]) for row in claims if row["claim_id"] in (LOAD_CLAIM, RECOMPUTE_CLAIM)}
    load, recompute = values[LOAD_CLAIM], values[RECOMPUTE_CLAIM]
    return Fitted(recomputed_frac=load / (load + recompute))


def ratios(claims: Iterable[Mapping[str, Any]], steps: Steps) -> list[Ratio]:
    """The paper's ratios between these systems, those that a prefill decides left out."""
    found = (ratio_of(row, steps.systems) for row in claims if row["paper"] == PAPER)
    return [one for one in found if one is not None and (one.workload is None or one.workload in steps.workloads)]


def log_errors(steps: Steps, wanted: Iterable[Ratio]) -> Floats:
    """(n,) ln(ours / published) of each."""
    asked = list(wanted)
    steps.make(cell for ratio in asked for cell in steps.cells_of(ratio))
    return np.array([np.log(steps.value(ratio)[0] / ratio.published) for ratio in asked])


def calibrate(claims: Iterable[Mapping[str, Any]], steps: Steps) -> Fit[Fitted]:
    """Knobs with the least error over claims of role `calibrate`, from three starts. Deterministic; seconds. Needs scipy.

    steps: the systems, models and workloads; its knobs do not matter. Raises ValueError without such claims, ImportError without
    scipy.
    """
    least_squares = solver()
    wanted = [ratio for ratio in ratios(claims, steps) if ratio.role == "calibrate"]
    if len(wanted) < len(BOUNDS):
        raise ValueError(f"{len(wanted)} ratios of role calibrate for {len(BOUNDS)} knobs; check warehouse/claims/claims.csv")
    low, high = np.array(list(BOUNDS.values())).T

    def residuals(values: Floats) -> Floats:
        return log_errors(_with(steps, values), wanted)

    tried = [
        least_squares(residuals, low + start * (high - low), bounds=(low, high), loss="soft_l1", f_scale=ROUNDING, **TOLERANCES)
        for start in STARTS
    ]
    best = min(tried, key=lambda one: float(one.cost))
    fitted = _with(steps, np.round(best.x, 6))
    left = float(np.abs(log_errors(fitted, wanted)).mean())
    return Fit(fitted.knobs, tuple(sorted(ratio.claim_id for ratio in wanted)), left)


def _with(steps: Steps, values: Floats) -> Steps:
    knobs = Fitted(**dict(zip(BOUNDS, values.tolist(), strict=True)))
    return replace(steps, knobs=knobs, _made={})

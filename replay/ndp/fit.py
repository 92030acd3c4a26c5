"""Fits the knobs of the GPU-NDP model to the claims of role `calibrate`, all of Mixtral-8x7B.

Drift of decode routing first, so that prompts and answers are as alike as the paper says; then the layer's fixed time, the link's
share and HOBBIT's width, by least squares on ln(ours / published) of the ratios. Pure: claims and replays are passed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.ndp_knobs import BOUNDS, Knobs, NdpFit

PAPER, COSINE = "cxl_ndp", "prefill_decode_cosine"
FITTED = ("fixed_s", "link_frac", "hobbit_bits")
STARTS = (0.2, 0.5, 0.8)  # of the way from each bound to the other
HALVINGS = 12
_SETTING = re.compile(r"ours (?P<bits>\d)-bit vs (?P<over>MoNDE|HOBBIT)")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ratio:
    """`over`'s decode time over that of OURS at `bits`."""

    claim_id: str
    role: str
    published: float
    bits: int
    over: str


def ratio_of(claim: Mapping[str, Any]) -> Ratio | None:
    """The decode ratio that a claim states; None if it states another thing, or a withheld one."""
    found = _SETTING.match(claim["setting"])
    if claim["paper"] != PAPER or claim["metric"] not in ("decode_throughput_gain", "speedup") or not found:
        return None
    if claim["value"] is None:
        return None
    return Ratio(claim["claim_id"], claim["role"], float(claim["value"]), int(found["bits"]), found["over"])


def calibrate(
    claims: Iterable[Mapping[str, Any]],
    start: Knobs,
    cosine: Callable[[float], float],
    ratios: Callable[[Knobs], Mapping[tuple[int, str], float]],
) -> NdpFit:
    """Knobs fitted; the assumed ones stay as in `start`. Deterministic. Needs scipy.

    cosine: of a drift_sd, falling. ratios: median decode ratios of knobs, by bits and baseline. Raises ValueError without claims
    of role calibrate, or where the published cosine is out of reach; ImportError without scipy.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise ImportError("fitting needs scipy: pip install 'tokentape[calibrate]'", name="scipy") from error
    fitted_on = [row for row in claims if row["paper"] == PAPER and row["role"] == "calibrate"]
    wanted = [one for one in map(ratio_of, fitted_on) if one is not None]
    alike = [row for row in fitted_on if row["metric"] == COSINE]
    if len(wanted) < len(FITTED) or len(alike) != 1:
        raise ValueError(f"{len(wanted)} ratios and {len(alike)} cosines of role calibrate; check warehouse/claims/claims.csv")
    knobs = replace(start, drift_sd=_drift(cosine, float(alike[0]["value"])))
    low, high = np.array([BOUNDS[name] for name in FITTED]).T

    def at(x: Floats) -> Knobs:
        return replace(knobs, **dict(zip(FITTED, (low + x * (high - low)).tolist(), strict=True)))

    def errors(x: Floats) -> Floats:
        found = ratios(at(x))
        return np.array([np.log(found[one.bits, one.over] / one.published) for one in wanted])

    tried = [least_squares(errors, np.full(len(FITTED), s), bounds=(0.0, 1.0), diff_step=1e-4, xtol=1e-8) for s in STARTS]
    best = min(tried, key=lambda one: float(one.cost))
    left = float(np.abs(errors(best.x)).mean())
    ids = tuple(sorted([one.claim_id for one in wanted] + [alike[0]["claim_id"]]))
    return NdpFit(at(best.x), ids, left)


def _drift(cosine: Callable[[float], float], published: float) -> float:
    """By bisection. Raises ValueError where no drift gives the published cosine."""
    low, high = BOUNDS["drift_sd"]
    if not cosine(high) <= published <= cosine(low):
        raise ValueError(f"no drift_sd from {low:g} to {high:g} gives a cosine of {published:g}")
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if cosine(middle) > published else (low, middle)
    return round((low + high) / 2, 3)

"""Fits the knobs of the GPU-NDP model to the claims of role `calibrate`, all of Mixtral-8x7B.

A layer's fixed time, the link's share and HOBBIT's width, by bounded least squares on ln(ours / published) of decode ratios. How
alike prompts and their answers are was set before, in the routing that is replayed (capture/synthetic/profiles.toml). Pure:
claims and replays are passed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.cxl_ndp_knobs import BOUNDS, Knobs
from tokentape.hw.fit_files import Fit

PAPER = "cxl_ndp"
STARTS = (0.2, 0.5, 0.8)  # of the way from each bound to the other
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


def ratios_of(claims: Iterable[Mapping[str, Any]], role: str | None = None) -> list[Ratio]:
    """The paper's decode ratios, of one role or of all."""
    found = [one for one in map(ratio_of, claims) if one is not None]
    return [one for one in found if role in (None, one.role)]


def calibrate(
    claims: Iterable[Mapping[str, Any]], start: Knobs, ratios: Callable[[Knobs], Mapping[tuple[int, str], float]]
) -> Fit[Knobs]:
    """Knobs fitted from three starts; the assumed ones stay as in `start`. Deterministic. Needs scipy.

    ratios: decode ratios under some knobs, by bits and baseline. Raises ValueError without claims of role calibrate, ImportError
    without scipy.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise ImportError("fitting needs scipy: pip install 'tokentape[calibrate]'", name="scipy") from error
    wanted = ratios_of(claims, "calibrate")
    if len(wanted) < len(BOUNDS):
        raise ValueError(f"{len(wanted)} ratios of role calibrate for {len(BOUNDS)} knobs; check warehouse/claims/claims.csv")
    low, high = np.array(list(BOUNDS.values())).T

    def at(x: Floats) -> Knobs:
        return replace(start, **dict(zip(BOUNDS, (low + x * (high - low)).tolist(), strict=True)))

    def errors(x: Floats) -> Floats:
        found = ratios(at(x))
        return np.array([np.log(found[one.bits, one.over] / one.published) for one in wanted])

    tried = [least_squares(errors, np.full(len(BOUNDS), s), bounds=(0.0, 1.0), diff_step=1e-4, xtol=1e-8) for s in STARTS]
    best = min(tried, key=lambda one: float(one.cost))
    x = (np.array([float(f"{value:.6g}") for value in low + best.x * (high - low)]) - low) / (high - low)  # as the file has them
    left = float(np.abs(errors(x)).mean())
    return Fit(at(x), tuple(sorted(one.claim_id for one in wanted)), left)

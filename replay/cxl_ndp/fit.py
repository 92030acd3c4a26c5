"""Fits the constants of the GPU-NDP systems to the claims of role `calibrate`, all of Mixtral-8x7B.

A layer's fixed time, the link's share and HOBBIT's width, by bounded least squares on ln(ours / published) of decode ratios. How
alike prompts and their answers are was set before, in the routing that is replayed (capture/synthetic/profiles.toml). Pure:
claims and replays are passed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.fit_files import Fit, FitFiles, solver
from tokentape.hw.profile import Profile, with_values

PAPER = "cxl_ndp"
# Lowest and highest value that a fit may take; link_frac: the range of hw/specs/h100-cxl-ndp.toml.
BOUNDS = {"fixed_s": (0.0, 5e-4), "link_frac": (0.7, 1.0), "hobbit_bits": (2.0, 16.0)}
STARTS = (0.2, 0.5, 0.8)  # of the way from each bound to the other
_SETTING = re.compile(r"ours (?P<bits>\d)-bit vs (?P<over>MoNDE|HOBBIT)")
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Constants:
    """fixed_s: of a layer beside its reads; link_frac: of the link's peak; hobbit_bits: mean width that HOBBIT fetches at. In no
    data sheet, nor in the paper. Raises ValueError outside BOUNDS."""

    fixed_s: float
    link_frac: float
    hobbit_bits: float

    def __post_init__(self) -> None:
        for name, (low, high) in BOUNDS.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie in {low:g} to {high:g}")

    def profile(self) -> Profile:
        """The paper's cost profile with these numbers."""
        crossing = ("moved", "streamed", "ahead", "exchange")
        shares = {f"lane.{lane}.bytes_frac": self.link_frac for lane in crossing}
        return with_values(PAPER, {"lane.layer.each_s": self.fixed_s} | shares)


FILES = FitFiles(PAPER, Constants, "mean of |ln(ours / published)|")


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
    claims: Iterable[Mapping[str, Any]], ratios: Callable[[Constants], Mapping[tuple[int, str], float]]
) -> Fit[Constants]:
    """Constants fitted from three starts. Deterministic. Needs scipy.

    ratios: decode ratios under some constants, by bits and baseline. Raises ValueError without claims of role calibrate,
    ImportError without scipy.
    """
    least_squares = solver()
    wanted = ratios_of(claims, "calibrate")
    if len(wanted) < len(BOUNDS):
        raise ValueError(f"{len(wanted)} ratios of role calibrate for {len(BOUNDS)} constants; check warehouse/claims/claims.csv")
    low, high = np.array(list(BOUNDS.values())).T

    def at(x: Floats) -> Constants:
        return Constants(**dict(zip(BOUNDS, (low + x * (high - low)).tolist(), strict=True)))

    def errors(x: Floats) -> Floats:
        found = ratios(at(x))
        return np.array([np.log(found[one.bits, one.over] / one.published) for one in wanted])

    tried = [least_squares(errors, np.full(len(BOUNDS), s), bounds=(0.0, 1.0), diff_step=1e-4, xtol=1e-8) for s in STARTS]
    best = min(tried, key=lambda one: float(one.cost))
    x = (np.array([float(f"{value:.6g}") for value in low + best.x * (high - low)]) - low) / (high - low)  # as the file has them
    left = float(np.abs(errors(x)).mean())
    return Fit(at(x), tuple(sorted(one.claim_id for one in wanted)), left)

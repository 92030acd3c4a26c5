"""Fits the constants of the GPU-NDP systems to the claims of role `calibrate`, all of Mixtral-8x7B.

A layer's fixed time, by bounded least squares on ln(ours / published) of decode ratios. How
alike prompts and their answers are was set before, in the routing that is replayed (capture/synthetic/profiles.toml). Pure:
claims and replays are passed in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tokentape.hw.fit_files import Fit, FitFiles, solver
from tokentape.hw.profile import Profile, with_values
from tokentape.hw.work import Floats

PAPER = "cxl_ndp"
BOUNDS = {"fixed_s": (0.0, 5e-4)}  # lowest and highest value that a fit may take
STARTS = (0.2, 0.5, 0.8)  # of the way from each bound to the other


@dataclass(frozen=True, kw_only=True)
class Constants:
    """fixed_s: of a layer beside its reads, in no data sheet, nor in the paper. Raises ValueError outside BOUNDS."""

    fixed_s: float

    def __post_init__(self) -> None:
        for name, (low, high) in BOUNDS.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie in {low:g} to {high:g}")

    def profile(self) -> Profile:
        """The paper's cost profile with these numbers."""
        return with_values(PAPER, {"lane.layer.each_s": self.fixed_s})


FILES = FitFiles(PAPER, Constants, "mean of |ln(ours / published)|")


def calibrate(published: Mapping[str, float], ratios: Callable[[Constants], Mapping[str, float]]) -> Fit[Constants]:
    """Constants fitted from three starts. Deterministic. Needs scipy.

    published: decode ratios of role calibrate by claim; ratios: the same under some constants. Raises ValueError for too few of
    them, ImportError without scipy.
    """
    least_squares = solver()
    if len(published) < len(BOUNDS):
        raise ValueError(
            f"{len(published)} ratios of role calibrate for {len(BOUNDS)} constants; check warehouse/claims/claims.csv"
        )
    low, high = np.array(list(BOUNDS.values())).T

    def at(x: Floats) -> Constants:
        return Constants(**dict(zip(BOUNDS, (low + x * (high - low)).tolist(), strict=True)))

    def errors(x: Floats) -> Floats:
        found = ratios(at(x))
        return np.array([np.log(found[claim] / stated) for claim, stated in published.items()])

    tried = [least_squares(errors, np.full(len(BOUNDS), s), bounds=(0.0, 1.0), diff_step=1e-4, xtol=1e-8) for s in STARTS]
    best = min(tried, key=lambda one: float(one.cost))
    x = (np.array([float(f"{value:.6g}") for value in low + best.x * (high - low)]) - low) / (high - low)  # as the file has them
    left = float(np.abs(errors(x)).mean())
    return Fit(at(x), tuple(sorted(published)), left)

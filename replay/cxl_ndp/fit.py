"""Fits the one constant of the GPU-NDP systems, a layer's fixed time, to the claims of role `calibrate`, all of Mixtral-8x7B: by
bounded least squares on ln(ours / published) of decode ratios. How alike prompts and their answers are was set before, in the
routing that is replayed (capture/synthetic/profiles.toml). Pure: claims and replays are passed in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tokentape.hw.fit_files import Fit, FitFiles, solver
from tokentape.hw.profile import Profile, with_values
from tokentape.hw.work import Floats

PAPER = "cxl_ndp"
MOST_S = 5e-4  # that a fit may take
STARTS = (0.2, 0.5, 0.8)  # shares of it


@dataclass(frozen=True, kw_only=True)
class Constants:
    """fixed_s: of a layer beside its reads, in no data sheet, nor in the paper. Raises ValueError beyond MOST_S."""

    fixed_s: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.fixed_s <= MOST_S:
            raise ValueError(f"fixed_s is {self.fixed_s}; it must lie in 0 to {MOST_S:g}")

    def profile(self) -> Profile:
        """The paper's cost profile with these numbers."""
        return with_values(PAPER, {"lane.layer.each_s": self.fixed_s})


FILES = FitFiles(PAPER, Constants, "mean of |ln(ours / published)|")


def calibrate(published: Mapping[str, float], ratios: Callable[[Constants], Mapping[str, float]]) -> Fit[Constants]:
    """Constants fitted from three starts. Deterministic. Needs scipy.

    published: decode ratios of role calibrate by claim; ratios: the same under some constants. Raises ValueError for none of
    them, ImportError without scipy.
    """
    least_squares = solver()
    if not published:
        raise ValueError("0 ratios of role calibrate to fit on; check warehouse/claims/claims.csv")

    def errors(share: Floats) -> Floats:
        found = ratios(Constants(fixed_s=share.item() * MOST_S))
        return np.array([np.log(found[claim] / stated) for claim, stated in published.items()])

    tried = [least_squares(errors, start, bounds=(0.0, 1.0), diff_step=1e-4, xtol=1e-8) for start in STARTS]
    best = min(tried, key=lambda one: float(one.cost))
    fitted = Constants(fixed_s=float(f"{best.x.item() * MOST_S:.6g}"))  # as the file has it
    left = float(np.abs(errors(np.array(fitted.fixed_s / MOST_S))).mean())
    return Fit(fitted, tuple(sorted(published)), left)

"""Fits the few constants of an operator model to measured times, the same way for every operator, without chance.

Three stages, coarse to fine: least squares on log(predicted / measured) with a robust loss, from several fixed starts on a fixed
sample; Nelder-Mead on the mean absolute percentage error itself, on a larger sample; the same on all rows. Constants are fitted
as logarithms, so that they stay positive and seconds and fractions need no scaling.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.fit_files import solver
from tokentape.hw.operators.operator import Floats, Gpu, Operator, Shapes

Seconds = Callable[[Gpu, Floats, Shapes], Floats]

_COARSE_ROWS = 2_000
_FINE_ROWS = 5_000
_STARTS = 4
# Where a constant may be 0, its logarithm ends this far below its start.
_ZERO_FRAC = 1e-6


def fit(operator: Operator, gpu: Gpu, shapes: Shapes, measured_s: Floats, seconds: Seconds | None = None) -> Floats:
    """The constants, in the order of operator.parameters, with the smallest mean absolute percentage error that the search finds.

    shapes: arguments of operator.seconds, or of `seconds` in its place, each (n,); measured_s: (n,). The same input gives the
    same constants.
    Raises ValueError if arrays differ in length, rows are fewer than constants, or a measurement is not positive and finite.
    Needs scipy, which `pip install 'tokentape[calibrate]'` brings.
    """
    least_squares = solver()
    from scipy.optimize import minimize

    seconds = seconds or operator.seconds
    measured_s = np.asarray(measured_s, dtype=np.float64)
    shapes = {name: np.asarray(values) for name, values in shapes.items()}
    for name, values in shapes.items():
        if len(values) != len(measured_s):
            raise ValueError(f"{operator.name}: {name} has {len(values)} rows, measurements have {len(measured_s)}")
    good = np.isfinite(measured_s) & (measured_s > 0)
    if not np.all(good):
        row = int(np.argmin(good))
        raise ValueError(f"measurement {row} is {measured_s[row]} s; drop rows that are not positive and finite")
    if len(measured_s) < len(operator.parameters):
        raise ValueError(f"{operator.name}: {len(measured_s)} rows cannot fix {len(operator.parameters)} constants; measure more")

    bounds = [(each.start, max(each.low, each.start * _ZERO_FRAC), each.high) for each in operator.parameters]
    start, low, high = np.log(bounds).T
    # A fixed permutation: tables are written in nested loops, where every k-th row would be a biased sample.
    order = np.random.default_rng(0).permutation(len(measured_s))

    def ratios(rows: NDArray[np.int64]) -> Callable[[Floats], Floats]:
        sample = {name: values[rows] for name, values in shapes.items()}
        return lambda logs: seconds(gpu, np.exp(np.clip(logs, low, high)), sample) / measured_s[rows]

    def mape_frac(logs: Floats, ratio: Callable[[Floats], Floats]) -> float:
        return float(np.mean(np.abs(ratio(logs) - 1.0)))

    def log_ratio(logs: Floats, ratio: Callable[[Floats], Floats]) -> Floats:
        return np.asarray(np.log(ratio(logs)))

    robust = {"bounds": (low, high), "loss": "soft_l1", "f_scale": 0.1, "max_nfev": 60}
    coarse = ratios(order[:_COARSE_ROWS])
    found = [least_squares(log_ratio, first, args=(coarse,), **robust).x for first in _starts(start, low, high)]
    best: Floats = min(found, key=lambda logs: mape_frac(logs, coarse))
    stages = [(order[:_FINE_ROWS], 0.08, 120)]
    if len(order) > _FINE_ROWS:
        stages.append((order, 0.02, 40))
    for rows, step, evaluations_per_constant in stages:
        simplex = np.vstack([best, best + step * np.eye(len(best))])
        options = {"initial_simplex": simplex, "maxfev": evaluations_per_constant * len(best), "xatol": 1e-3, "fatol": 1e-5}
        best = minimize(mape_frac, best, args=(ratios(rows),), method="Nelder-Mead", options=options).x
    return np.exp(np.clip(best, low, high))


def _starts(start: Floats, low: Floats, high: Floats) -> list[Floats]:
    """The declared start and fixed points around it, strictly within the bounds."""
    steps = np.random.default_rng(1).normal(0.0, 0.5, (_STARTS - 1, len(start)))
    margin = 1e-6 * (high - low)
    return [np.clip(start + step, low + margin, high - margin) for step in (np.zeros_like(start), *steps)]

"""How wrong the cost models are: predicted against measured, by operator and regime, on rows fitted, held out and elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from hw import dram
from hw.calibrate import Fit, gpu_of, held_out, machine_of
from hw.measured import Measurements
from hw.operators.gpu import Gpu
from hw.spec import HardwareSpec

MAX_POINTS = 400  # of a scatter, per operator and split


@dataclass(frozen=True)
class Row:
    """The error of a model on n measurements: mean, median and 95th percentile of |predicted / measured - 1|.

    check: gpu_operator, gpu_operator_regime (operator is then "operator: regime") or dram. split: fitted, held_out, other_device,
    or closed_form, where nothing is fitted.
    """

    check: str
    device: str
    framework: str
    version: str
    operator: str
    split: str
    n: int
    mape_frac: float
    median_frac: float
    p95_frac: float


@dataclass(frozen=True)
class Point:
    """One measurement beside the model's value."""

    check: str
    device: str
    framework: str
    version: str
    operator: str
    split: str
    regime: str
    shape: str
    measured: float
    predicted: float
    unit: str


@dataclass(frozen=True, eq=False)
class Comparison:
    """Predictions for the rows of one operator in one setup by constants of one split."""

    measurements: Measurements
    split: str
    predicted: NDArray[np.float64]
    regimes: NDArray[np.str_]

    def rows(self) -> Iterator[Row]:
        """The operator's row, then one per regime."""
        everything = np.ones(self.predicted.size, np.bool_)
        yield self._row("gpu_operator", self.measurements.operator, everything)
        for regime in np.unique(self.regimes):
            yield self._row("gpu_operator_regime", f"{self.measurements.operator}: {regime}", self.regimes == regime)

    def _row(self, check: str, operator: str, where: NDArray[np.bool_]) -> Row:
        setup = self.measurements.setup
        error = np.abs(self.predicted[where] / self.measurements.seconds[where] - 1.0)
        shares = (float(error.mean()), float(np.median(error)), float(np.quantile(error, 0.95)))
        return Row(check, setup.device, setup.framework, setup.version, operator, self.split, int(where.sum()), *shares)

    def points(self) -> Iterator[Point]:
        """At most MAX_POINTS of the rows, evenly spaced."""
        m = self.measurements
        for i in np.unique(np.linspace(0, m.seconds.size - 1, MAX_POINTS).astype(np.int64)):
            shape = ", ".join(f"{name} {values[i]}" for name, values in m.shapes.items())
            where = (m.setup.device, m.setup.framework, m.setup.version, m.operator, self.split, str(self.regimes[i]), shape)
            yield Point("gpu_operator", *where, float(m.seconds[i]), float(self.predicted[i]), "s")


def compare(
    tables: Iterable[Measurements], fits: Iterable[dict[str, Fit]], machines: tuple[HardwareSpec, ...] = ()
) -> Iterator[Comparison]:
    """Every measured table against the constants of its own setup (fitted and held-out rows) and of every other device.

    `machines`: a user's own, for devices that no shipped machine is measured as. Raises BadSpec if a device is unknown.
    """
    known = list(fits)
    for measurements in tables:
        gpu = gpu_of(machine_of(measurements.setup.device, machines), measurements.setup.dtype)
        for of_setup in known:
            fit = of_setup.get(measurements.operator)
            if fit is None:
                continue
            if fit.setup == measurements.setup:
                unseen = measurements.take(held_out(measurements))
                yield _comparison(fit, measurements, "fitted", gpu)
                yield _comparison(fit, unseen, "held_out", gpu)
            elif fit.setup.device != measurements.setup.device and fit.setup.dtype == measurements.setup.dtype:
                yield _comparison(fit, measurements, "other_device", gpu)


def _comparison(fit: Fit, measurements: Measurements, split: str, gpu: Gpu) -> Comparison:
    predicted = fit.seconds(gpu, measurements.shapes, held_out=split == "held_out")
    return Comparison(measurements, split, predicted, fit.regimes(gpu, measurements.shapes))


def dram_rows() -> list[Row]:
    """The closed form of hw/dram.py against its committed anchors, one row each; nothing is fitted."""
    rows = []
    for anchor in dram.anchors():
        error = abs(anchor.predicted_frac / anchor.measured_frac - 1.0)
        where = ("dram", anchor.preset, "Ramulator", "2.1", anchor.pattern, "closed_form")
        rows.append(Row(*where, 1, error, error, error))
    return rows


def dram_points() -> list[Point]:
    """The same as fractions of peak bandwidth."""
    return [
        Point(
            "dram", a.preset, "Ramulator", "2.1", a.pattern, "closed_form", "covered" if a.covered else "not covered",
            a.pattern, a.measured_frac, a.predicted_frac, "1",
        )
        for a in dram.anchors()
    ]  # fmt: skip


def as_dicts(rows: Iterable[Row | Point]) -> list[dict[str, object]]:
    """Rows as the warehouse's tables `validation` and `validation_points` take them."""
    return [asdict(row) for row in rows]

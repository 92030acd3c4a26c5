"""How wrong the cost models are: predicted against measured, by operator and regime, on rows fitted, held out and elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.hw import dram, reachable
from tokentape.hw.calibrate import POOLED, Fit, gpu_of, held_out, machine_of
from tokentape.hw.measured import Measurements
from tokentape.hw.operators.gpu import Gpu
from tokentape.hw.spec import HardwareSpec

MAX_POINTS = 400  # of a scatter, per operator and split
SIMULATOR = ("Ramulator", "2.1")  # what the DRAM anchors were measured in


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
        where_run = (setup.device, setup.framework, setup.version)
        return Row(check, *where_run, operator, self.split, int(where.sum()), *_shares(error))

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

    Rows that the device cannot have reached are left out, as they are of every fit. `machines`: a user's own, for devices that no
    shipped machine is measured as. Raises BadSpec if a device is unknown.
    """
    known = list(fits)
    for measurements in tables:
        gpu = gpu_of(machine_of(measurements.setup.device, machines), measurements.setup.dtype)
        measurements, _ = reachable.split(measurements, gpu)
        if not measurements.seconds.size:
            continue
        of_operator = [fits_of[measurements.operator] for fits_of in known if measurements.operator in fits_of]
        others = []
        for fit in of_operator:
            if fit.setup == measurements.setup:
                yield _comparison([fit], measurements, "fitted", gpu)
                unseen = measurements.take(held_out(measurements))
                if unseen.seconds.size:
                    yield _comparison([fit], unseen, "held_out", gpu)
            elif fit.setup.device not in (measurements.setup.device, POOLED) and fit.setup.dtype == measurements.setup.dtype:
                others.append(fit)
        if others:
            yield _comparison(others, measurements, "other_device", gpu)


def _comparison(fits: list[Fit], measurements: Measurements, split: str, gpu: Gpu) -> Comparison:
    """Every row by each of the constants: of several other devices, all errors together."""
    rows = np.tile(np.arange(measurements.seconds.size), len(fits))
    predicted = [fit.seconds(gpu, measurements.shapes, held_out=split == "held_out") for fit in fits]
    regimes = [fit.regimes(gpu, measurements.shapes) for fit in fits]
    return Comparison(measurements.take(rows), split, np.concatenate(predicted), np.concatenate(regimes))


def _pattern(anchor: dram.Anchor) -> str:
    """What was measured, in words; queue and dies only where they are not the preset's own."""
    timing = dram.timing(anchor.preset)
    words = [anchor.pattern.replace("_", " ")]
    if anchor.block_bytes is not None:
        n_kib = anchor.block_bytes / 1024
        words[0] += f" {n_kib:.4g} KiB" if n_kib >= 1 else f" {anchor.block_bytes} B"
    words += ["row map"] if anchor.address_map == "row" else []
    words += [f"queue {anchor.queue_depth}"] if anchor.queue_depth != timing.queue_entries.value else []
    words += [f"{anchor.density} dies"] if anchor.density != timing.density else []
    return ", ".join(words)


def dram_rows() -> list[Row]:
    """The closed form of hw/dram.py against its committed anchors, by preset and pattern; nothing is fitted."""
    errors: dict[tuple[str, str], list[float]] = {}
    for anchor in dram.anchors():
        error = abs(anchor.predicted_frac / anchor.measured_frac - 1.0)
        errors.setdefault((anchor.preset, _pattern(anchor)), []).append(error)
    return [
        Row("dram", preset, *SIMULATOR, pattern, "closed_form", len(of), *_shares(np.array(of)))
        for (preset, pattern), of in errors.items()
    ]


def _shares(error: NDArray[np.float64]) -> tuple[float, float, float]:
    """Mean, median and 95th percentile."""
    return float(error.mean()), float(np.median(error)), float(np.quantile(error, 0.95))


def dram_points() -> list[Point]:
    """The same as fractions of peak bandwidth; the regime says whether the form claims to cover the pattern."""
    points = []
    for anchor in dram.anchors():
        covered = "covered" if anchor.covered else "not covered"
        where = ("dram", anchor.preset, *SIMULATOR, _pattern(anchor), "closed_form", covered, _pattern(anchor))
        points.append(Point(*where, anchor.measured_frac, anchor.predicted_frac, "1"))
    return points


def as_dicts(rows: Iterable[Row | Point]) -> list[dict[str, object]]:
    """Rows as the warehouse's tables `validation` and `validation_points` take them."""
    return [asdict(row) for row in rows]

"""Measured times that the device cannot have reached, by its own data sheet: such rows are named and left out of every fit.

A row asks for so many operations and bytes at least (`least` of its operator). What the last-level cache holds may come from the
call before, as measurements repeat a call: of the bytes, only those beyond it have to pass the memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.hw.measured import Measurements
from tokentape.hw.operators import OPERATORS, Gpu

MOST = 1.05  # of a peak: clocks and timers are good to a few percent
# Of a table that is believed, so many rows at most, or this share, may ask more of the device than it can.
FEW_ROWS, FEW_FRAC = 10, 0.01
SLOWER_BY, MORE_S = 1.5, 5e-6


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A row that took less time than the device can. times_peak: of what resource says, operations or bytes per second."""

    operator: str
    source: str
    row: int
    shape: str
    seconds: float
    times_peak: float
    resource: str

    def __str__(self) -> str:
        return f"{self.source} row {self.row} ({self.shape}): {self.times_peak:.3g} times the peak {self.resource} per second"


def split(measurements: Measurements, gpu: Gpu) -> tuple[Measurements, list[LeftOut]]:
    """The rows that the device can have reached, and the others, the farthest beyond it first."""
    ops, n_bytes = OPERATORS[measurements.operator].least(measurements.shapes)
    missed_bytes = np.maximum(0.0, n_bytes - gpu.l2_bytes)
    by_ops, by_bytes = (
        work / peak / measurements.seconds for work, peak in ((ops, gpu.peak_ops_per_s), (missed_bytes, gpu.peak_bytes_per_s))
    )
    times_peak = np.maximum(by_ops, by_bytes)
    beyond = np.flatnonzero(times_peak > MOST)
    found = []
    for i in beyond[np.argsort(-times_peak[beyond], kind="stable")]:
        source, row = measurements.places[i].tolist() if len(measurements.places) else (0, int(i))
        found.append(
            LeftOut(
                operator=measurements.operator,
                source="/".join(Path(measurements.sources[source]).parts[-2:]),
                row=row,
                shape=", ".join(f"{name} {values[i]}" for name, values in measurements.shapes.items()),
                seconds=float(measurements.seconds[i]),
                times_peak=float(times_peak[i]),
                resource="operations" if by_ops[i] >= by_bytes[i] else "bytes",
            )
        )
    return measurements.take(times_peak <= MOST), found


def slow_rows(measurements: Measurements) -> NDArray[np.int64]:
    """Rows that took SLOWER_BY as long as one that is larger in one size and equal in the others, and MORE_S more: what
    interrupted them is not the operator's."""
    frame = pl.DataFrame({**measurements.shapes, "s": measurements.seconds}).with_row_index("row")
    slow = []
    for name in OPERATORS[measurements.operator].grows:
        others = [other for other in measurements.shapes if other != name]
        least = pl.col("s").cum_min().over(others)
        of_one = frame.sort(name, descending=True, maintain_order=True).with_columns(least=least)
        slow.append(of_one.filter(pl.col("s") > pl.max_horizontal(SLOWER_BY * pl.col("least"), MORE_S + pl.col("least")))["row"])
    return np.asarray(pl.concat(slow).unique().sort().to_numpy(), np.int64)


def said_slow(measurements: Measurements, rows: NDArray[np.int64]) -> str:
    """How many, and the slowest of them, in a line."""
    at = rows[np.argmax(measurements.seconds[rows])]
    shape = ", ".join(f"{name} {values[at]}" for name, values in measurements.shapes.items())
    return (
        f"{measurements.operator}, {measurements.setup.device}: {rows.size:,} rows took {SLOWER_BY:g} times as long as a larger "
        f"call, and stay; the slowest: {1e6 * measurements.seconds[at]:.4g} us ({shape})"
    )


def said(found: list[LeftOut]) -> str:
    """How many, and the farthest of them, in a line."""
    n = f"{len(found):,} rows" if len(found) > 1 else "1 row"
    return f"{found[0].operator}: {n} left out, above {100 * MOST:g} % of the device's peak; the farthest: {found[0]}"


def by_source(found: Iterable[LeftOut]) -> list[str]:
    """Every row, file by file, neighbours together: what a file of constants keeps."""
    places = sorted({(one.source, one.row) for one in found})
    return [f"{source}: rows {_runs([row for _, row in of])}" for source, of in groupby(places, key=lambda place: place[0])]


def _runs(rows: list[int]) -> str:
    """7, 9 to 12."""
    cuts = np.flatnonzero(np.diff(rows) > 1) + 1
    runs = [run.tolist() for run in np.split(np.array(rows), cuts)]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)

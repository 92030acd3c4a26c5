"""What every engine of this room returns: parameters, metrics with units and bands, and per-pass and per-request series."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tokentape.warehouse.tables import RESULT_TABLES, conform


@dataclass(frozen=True)
class Metric:
    """One number. low, high: the band from the hardware's ranges; denominator: what a ratio is divided by."""

    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    denominator: str | None = None


@dataclass(frozen=True, eq=False)
class ReplayResult:
    """A finished replay. `settings` are the columns of table `replays` but replay_id and study; the series are columns of
    `timeline`, `request_metrics` and `curves` by name, empty where the engine has none."""

    settings: dict[str, Any]
    metrics: dict[str, Metric]
    timeline: dict[str, NDArray[Any]] = field(default_factory=dict)
    request_metrics: dict[str, NDArray[Any]] = field(default_factory=dict)
    curves: dict[str, NDArray[Any]] = field(default_factory=dict)

    def tables(self, replay_id: str, study: str) -> dict[str, pa.Table]:
        """The result tables of warehouse/tables.py, rows in a fixed order: equal results give equal bytes."""
        # Frames, not pa.array: pyarrow imports pandas, where that is installed, for a third of a second.
        metrics = [
            {"replay_id": replay_id, "metric": name, **dataclasses.asdict(metric)}
            for name, metric in sorted(self.metrics.items())
        ]
        frames = {
            "replays": pl.DataFrame([{"replay_id": replay_id, "study": study, **self.settings}]),
            "metrics": pl.DataFrame(metrics, infer_schema_length=None),
        }
        for name in ("timeline", "request_metrics", "curves"):
            series: dict[str, NDArray[Any]] = getattr(self, name)
            if series:
                n_rows = len(next(iter(series.values())))
                frames[name] = pl.DataFrame({"replay_id": [replay_id] * n_rows, **series}, nan_to_null=True)
        return {name: conform(name, frames[name].to_arrow()) for name in RESULT_TABLES if name in frames}

"""What every engine of this room returns: parameters, metrics with units and bands, and per-pass and per-request series."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tokentape.warehouse.at_rest import Maker, at_rest, check_metrics, filled
from tokentape.warehouse.tables import conform


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
    """A finished replay. `settings` are the columns of view `replays` but replay_id and study; the series are columns of
    `timeline`, `request_metrics` and `lru_curves` by name, empty where the engine has none."""

    settings: dict[str, Any]
    metrics: dict[str, Metric]
    timeline: dict[str, NDArray[Any]] = field(default_factory=dict)
    request_metrics: dict[str, NDArray[Any]] = field(default_factory=dict)
    curves: dict[str, NDArray[Any]] = field(default_factory=dict)

    def tables(self, run_id: str, study: str, sources: str | None = None) -> dict[str, pa.Table]:
        """What rests of it (warehouse/schema/runs.py), rows in a fixed order: equal results give equal bytes."""
        check_metrics(f"replay {run_id}", {name: metric.unit for name, metric in self.metrics.items()})
        metrics = [
            {"run_id": run_id, "metric": name} | dataclasses.asdict(metric) for name, metric in sorted(self.metrics.items())
        ]
        tables = at_rest("replays", [{"replay_id": run_id, "study": study, **self.settings}], Maker(sources=sources))
        # Frames, not pa.array: pyarrow imports pandas, where that is installed, for a third of a second.
        frames = {"metrics": pl.DataFrame(metrics, infer_schema_length=None).drop("unit")}
        for name, series in (("steps", self.timeline), ("request_metrics", self.request_metrics)):
            if series:
                n_rows = len(next(iter(series.values())))
                frames[name] = pl.DataFrame({"run_id": [run_id] * n_rows, **series}, nan_to_null=True)
        if self.curves:
            points = pl.DataFrame({"replay_id": run_id, **self.curves}).to_dicts()
            tables |= at_rest("lru_curves", points)
        return tables | {name: conform(name, filled(name, frame.to_arrow())) for name, frame in frames.items()}

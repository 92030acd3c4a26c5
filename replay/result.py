"""What every engine of this room returns: parameters, metrics with units and bands, and per-pass and per-request series."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from warehouse.tables import RESULT_TABLES, conform, schema


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
        rows: dict[str, pa.Table] = {
            "replays": pa.Table.from_pylist([{"replay_id": replay_id, "study": study, **self.settings}], schema("replays")),
            "metrics": pa.Table.from_pylist(
                [
                    {
                        "replay_id": replay_id, "metric": name, "unit": m.unit, "value": m.value,
                        "low": m.low, "high": m.high, "denominator": m.denominator,
                    }
                    for name, m in sorted(self.metrics.items())
                ],
                schema("metrics"),
            ),
        }  # fmt: skip
        for name in ("timeline", "request_metrics", "curves"):
            series: dict[str, NDArray[Any]] = getattr(self, name)
            if series:
                n = len(next(iter(series.values())))
                columns = {"replay_id": pa.array([replay_id] * n, pa.string())}
                columns |= {c: pa.array(v, mask=np.isnan(v) if v.dtype.kind == "f" else None) for c, v in series.items()}
                rows[name] = pa.table(columns)
        return {name: conform(name, rows[name]) for name in RESULT_TABLES if name in rows}

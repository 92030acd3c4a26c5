"""What every engine of this room returns: parameters, metrics with units and bands, and per-pass and per-request series."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tokentape.warehouse.at_rest import at_rest, check_metrics, filled
from tokentape.warehouse.tables import BY_RUN, conform


@dataclass(frozen=True)
class Metric:
    """One number. low, high: the band from the hardware's ranges; denominator: what a ratio is divided by."""

    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    denominator: str | None = None


def ratio(part: float, whole: float, of: str) -> Metric:
    """A share of a whole; nan of nothing."""
    return Metric(float(part) / float(whole) if whole else float("nan"), "1", denominator=of)


@dataclass(frozen=True, eq=False)
class ReplayResult:
    """A finished replay. `settings` are the columns of its view (`replays`, of whole systems `system_runs`) but its id and study;
    the rest are columns of `timeline`, `request_metrics`, `lru_curves` and `series` by name, empty where the engine has none."""

    settings: dict[str, Any]
    metrics: dict[str, Metric]
    timeline: dict[str, NDArray[Any]] = field(default_factory=dict)
    request_metrics: dict[str, NDArray[Any]] = field(default_factory=dict)
    curves: dict[str, NDArray[Any]] = field(default_factory=dict)
    parts: dict[str, NDArray[Any]] = field(default_factory=dict)


def tables_of(
    made: Mapping[str, ReplayResult], study: str, sources: Mapping[str, str | None], view: str = "replays"
) -> dict[str, pa.Table]:
    """What rests of replays (warehouse/schema/runs.toml), by run_id, rows in a fixed order: equal results give equal bytes.

    sources: hash of what computed each.
    """
    rows = [{BY_RUN[view]: run_id, "study": study, **result.settings} for run_id, result in made.items()]
    tables = at_rest(view, rows)
    hashes = pl.Series([sources[run_id] for run_id in tables["runs"]["run_id"].to_pylist()], dtype=pl.String).to_arrow()
    tables["runs"] = tables["runs"].drop_columns("sources_sha256").append_column("sources_sha256", hashes)
    metrics = [
        {"run_id": run_id, "metric": name, **vars(metric)}
        for run_id, result in made.items()
        for name, metric in sorted(result.metrics.items())
    ]
    check_metrics(f"study {study}", {row["metric"]: row["unit"] for row in metrics})
    # Frames, not pa.array: pyarrow imports pandas, where that is installed, for a third of a second.
    frames = {"metrics": pl.DataFrame(metrics, infer_schema_length=None)}
    for name, table in (("timeline", "steps"), ("request_metrics", "request_metrics"), ("curves", "curves"), ("parts", "series")):
        series = {run_id: of for run_id, result in made.items() if (of := getattr(result, name))}
        if series:
            frames[table] = pl.DataFrame(_joined(series), nan_to_null=True)
    if "curves" in frames:
        tables |= at_rest("lru_curves", frames.pop("curves").rename({"run_id": "replay_id"}).to_dicts())
    return {name: conform(name, tables[name]) for name in tables} | {
        name: conform(name, filled(name, frame.to_arrow().select([c for c in frame.columns if c != "unit"])))
        for name, frame in frames.items()
    }


def _joined(series: Mapping[str, dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any] | pl.Series]:
    """Columns of all runs, one run after the other, with the run's id."""
    joined = {name: np.concatenate([of[name] for of in series.values()]) for name in next(iter(series.values()))}
    columns = {name: _texts(values) if values.dtype.kind == "U" else values for name, values in joined.items()}
    lengths = [len(next(iter(of.values()))) for of in series.values()]
    return {"run_id": _held(list(series), np.arange(len(lengths)), np.array(lengths)), **columns}


def _texts(values: NDArray[np.str_]) -> pl.Series:
    """A column of few texts that hold for long: an array of texts takes many times as long to become one, and to be written."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: values.size])
    names, codes = np.unique(values[starts], return_inverse=True)
    return _held(names.tolist(), codes, np.diff(np.append(starts, values.size)))


def _held(names: list[str], codes: NDArray[np.integer], lengths: NDArray[np.integer]) -> pl.Series:
    """names[codes[i]], each for lengths[i] rows."""
    return pl.Series(names, dtype=pl.Enum(names)).gather(np.repeat(codes, lengths))

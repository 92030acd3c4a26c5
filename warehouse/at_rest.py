"""Rows of a view <-> what rests of them: runs, and what was measured of each.

Both directions follow from the view's declaration (schema/table.py), so that what is written and what is read cannot differ.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import polars as pl
import pyarrow as pa

from tokentape.warehouse.schema.metrics import METRICS
from tokentape.warehouse.schema.table import DECISIONS, View
from tokentape.warehouse.tables import TABLES, VIEWS, BadTable, conform, schema

ID_DIGITS = 20  # of a hash: 80 bits
# Facts that are columns of `runs`. The rules of a replay lie in `semantics` as JSON, all others in `facts`.
OWN_COLUMNS = (
    *("study", "trace_id", "model_id", "hardware", "hardware_sha256", "workload", "batch", "seed", "origin", "is_bound"),
    *("is_extrapolated", "outside_envelope"),
)
SEMANTICS = ("scope", "lookup", "recency", "prefill", "start", "overflow", "fetching")
FOUND = ("assumed", "is_extrapolated", "outside_envelope", "system_sha256")  # facts that follow from the others
_BAND = ("low", "high")
_SQL = {pa.string(): "varchar", pa.bool_(): "boolean", pa.float64(): "double", pa.float32(): "float", pa.int64(): "bigint"}
_SQL |= {pa.int32(): "integer", pa.uint8(): "utinyint", pa.uint16(): "usmallint", pa.uint32(): "uinteger"}


def hash_of(parts: Any) -> str:
    """Hash of JSON values, their keys in any order. Raises ValueError for what JSON cannot hold exactly, NaN included."""
    return hash_of_text(text_of(parts))


def text_of(parts: Any) -> str:
    """What `hash_of` hashes."""
    try:
        return json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except TypeError as error:
        raise ValueError(f"{error}; give plain numbers, strings, lists and dicts") from error


def hash_of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]


def names_metrics(view: View) -> bool:
    """Whether each row names its metric and holds one value, instead of a column for each."""
    return "metric" in view.key and "metric" not in view.at


@lru_cache
def measured(name: str) -> tuple[str, ...]:
    """Columns of a view that are metrics of their names."""
    view = VIEWS[name]
    if names_metrics(view) or view.values not in ("metrics", "curves", "series"):
        return ()
    given = {*view.key, *view.facts, *view.at, *_BAND * bool(view.band), *OWN_COLUMNS}
    return tuple(c for c in view.columns if c not in given and view.column(c).type not in (pa.string(), pa.bool_()))


@lru_cache
def facts(name: str) -> tuple[str, ...]:
    """Columns of a view that say what ran."""
    view = VIEWS[name]
    if view.of:
        return tuple(c for c in view.key if c in facts(view.of) and c not in view.at)
    valued = ("metric", "unit", "value", *_BAND) if names_metrics(view) else _BAND * bool(view.band)
    others = {*valued, *measured(name), *view.at, view.run_id, *("unit",) * ("metric" in view.at)}
    return tuple(c for c in view.columns if c not in others)


def metric_defs() -> pl.DataFrame:
    """Table `metric_defs`: every metric that engines name, and the measured columns of views."""
    found = {c: view.column(c) for name, view in VIEWS.items() for c in measured(name)} | METRICS
    rows = [(name, metric.unit, metric.meaning) for name, metric in sorted(found.items())]
    return pl.DataFrame(rows, TABLES["metric_defs"].columns, orient="row")


# ------------------------------------------------------------------------------------------------ rows -> tables


@dataclass(frozen=True)
class Maker:
    """What made rows. study: that asked for them, where they do not say; copy_of: the study that ships which that one is a copy
    of, None: it ships itself; sources: hash of what computed them; decide: the decisions of the system that a row names, beyond
    those that the view has columns of."""

    study: str | None = None
    copy_of: str | None = None
    sources: str | None = None
    decide: Callable[[Mapping[str, Any]], Mapping[str, str]] = lambda row: {}


@dataclass(frozen=True)
class Point:
    """One run of a closed form: what was given, what its system decides by slot, and its numbers by the names of metric_defs."""

    facts: Mapping[str, Any]
    metrics: Mapping[str, float]
    decisions: Mapping[str, str] = field(default_factory=dict)


SHIPPED = Maker()  # by no copy, and the rows say the rest


def at_rest(name: str, rows: Sequence[Mapping[str, Any]], maker: Maker = SHIPPED) -> dict[str, pa.Table]:
    """The stored tables, `runs` first, that rows of a view lie in; a later row replaces one of its key.

    Raises ValueError for no rows, BadTable for rows that do not fit the declaration.
    """
    view = VIEWS[name]
    frame = pl.DataFrame(declared(name, rows))
    runs = dict[str, dict[str, Any]]()
    ids = []
    told = frame.select(*facts(name), *(view.run_id,) * bool(view.run_id))
    for row in told.iter_rows(named=True) if told.width else [{}] * frame.height:
        ids.append(run_id_of(name, row, maker))
        if not view.of and runs.setdefault(ids[-1], row) != row and view.values not in ("", "metrics"):
            raise BadTable(f"table {name}: rows of one run, {row}, say different facts of it")
        runs[ids[-1]] = row
    made = [_run(name, run_id, row, maker) for run_id, row in runs.items()]
    found = {} if view.of else {"runs": _table_of("runs", made)}
    if view.values:
        values = _values(name, frame.with_columns(run_id=pl.Series(ids, dtype=pl.String)))
        found[view.values] = conform(view.values, filled(view.values, values.to_arrow()))
    return found


def declared(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows of a table as it declares them. Raises ValueError for no rows, BadTable naming the column that does not fit."""
    if not rows:
        raise ValueError(f"{name}: no rows to write")
    undeclared = sorted({column for row in rows for column in row} - set(schema(name).names))
    if undeclared:
        raise BadTable(f"table {name}: column {undeclared[0]} is not declared in warehouse/columns.toml; remove or declare it")
    try:
        return _table_of(name, rows)
    except (pl.exceptions.PolarsError, TypeError) as error:
        raise BadTable(f"table {name}: {str(error).splitlines()[0]}") from error


def _table_of(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Nulls where a row lacks a column; a column of floats may begin with a whole number.

    By way of a frame: pyarrow imports pandas, where that is installed, for half a second.
    """
    types = pl.DataFrame(pa.Table.from_batches([], schema(name))).schema.items()
    frame = pl.DataFrame([pl.Series(column, [row.get(column) for row in rows], of, strict=True) for column, of in types])
    return conform(name, frame.to_arrow())


def filled(name: str, rows: pa.Table) -> pa.Table:
    """`rows` with nulls in the columns that a table may leave empty and they lack, as files of an older version do."""
    for column in TABLES[name].nullable:
        if column not in rows.column_names:
            rows = rows.append_column(column, pa.nulls(rows.num_rows, TABLES[name].column(column).type))
    return rows


def runs_at_rest(engine: str, points: Sequence[Point], maker: Maker = SHIPPED) -> dict[str, pa.Table]:
    """The stored tables of points that no view shows: their facts and metrics are all there is of them.

    Raises ValueError for no points, BadTable for a metric that is not declared.
    """
    if not points:
        raise ValueError(f"{engine}: no runs to write")
    defs = dict(metric_defs().select("metric", "unit").iter_rows())
    unknown = sorted({metric for point in points for metric in point.metrics} - set(defs))
    if unknown:
        raise BadTable(f"{engine}: metric {unknown[0]} is not declared in warehouse/schema/metrics.toml; declare it")
    runs, metrics = dict[str, dict[str, Any]](), list[dict[str, Any]]()
    for point in points:
        run_id = hash_of([engine, maker.study, dict(point.facts), dict(point.decisions)])
        named = {"run_id": run_id, "view_name": "", "conditions": run_id, "engine": engine}
        runs[run_id] = _told(named, point.facts, point.decisions, maker)
        metrics += [{"run_id": run_id, "metric": metric, "value": value} for metric, value in point.metrics.items()]
    tables = {"runs": list(runs.values()), "metrics": metrics}
    return {name: _table_of(name, rows) for name, rows in tables.items()}


def run_id_of(name: str, row: Mapping[str, Any], maker: Maker = SHIPPED) -> str:
    """A run is known by the id that its engine gave it, or by the key of its view, and the study where it is a copy."""
    view = VIEWS[name]
    return str(row[view.run_id]) if view.run_id else _hash_of(view.of or name, row, VIEWS[view.of or name].key, maker)


def _hash_of(name: str, row: Mapping[str, Any], columns: Sequence[str], maker: Maker) -> str:
    told = {column: row[column] for column in columns if column in facts(name)}
    return hash_of([name, told, *(maker.study,) * bool(maker.copy_of)])


def _run(name: str, run_id: str, row: dict[str, Any], maker: Maker) -> dict[str, Any]:
    """A row of `runs`."""
    view = VIEWS[name]
    given = [column for column in facts(name) if column not in FOUND]
    system = {slot: row[column] for slot, column in view.decisions.items() if row[column] is not None}
    system |= maker.decide(row)
    conditions = _hash_of(name, row, given, maker) if view.run_id else run_id
    named = {"run_id": run_id, "view_name": name, "conditions": conditions, "engine": view.engine}
    rules = {column: row[column] for column in SEMANTICS if column in row}
    return _told(named, {c: value for c, value in row.items() if c not in {*rules, view.run_id}}, system, maker, rules)


def _told(
    named: dict[str, Any], facts: Mapping[str, Any], system: Mapping[str, str], maker: Maker, rules: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """A row of `runs`: what it is called, what ran, what its system decides, and the rules of a replay."""
    own = {column: value for column, value in facts.items() if column in OWN_COLUMNS}
    others = {column: value for column, value in facts.items() if column not in own}
    return {
        **named,
        "system": _json(system),
        **dict.fromkeys(DECISIONS),
        **system,
        "study": maker.study,
        "copy_of": maker.copy_of,
        "sources_sha256": maker.sources,
        "code_version": _version(),
        **own,
        "semantics": _json(rules) if rules else None,
        "facts": _json(others),
    }


@lru_cache
def _version() -> str:
    return version("tokentape")


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, ensure_ascii=False)


def _values(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """What was measured, as rows of the view's stored table."""
    view = VIEWS[name]
    at = [pl.col(column).alias(there) for column, there in view.at.items()]
    if names_metrics(view):
        rows = frame.select("run_id", "metric", *at, "value", *_BAND)
        check_metrics(name, dict(frame.select("metric", "unit").unique().iter_rows()))
    elif not measured(name):
        rows = frame.select("run_id", *at)
    else:
        rows = pl.concat(
            frame.select(
                "run_id",
                *at,
                pl.lit(metric).alias("metric"),
                pl.col(metric).cast(pl.Float64).alias("value"),
                *(pl.col(end) if metric == view.band else pl.lit(None, pl.Float64).alias(end) for end in _BAND),
            )
            for metric in measured(name)
        )
        if view.values == "metrics":
            rows = rows.drop_nulls("value")
    key = [column for column in TABLES[view.values].key if column in rows.columns]
    return rows.unique(key, keep="last", maintain_order=True)


def check_metrics(name: str, units: Mapping[str, str]) -> None:
    """Raises BadTable for a metric that is not declared, or in another unit. units: by metric; name: who names them."""
    for metric, unit in units.items():
        if metric not in METRICS:
            raise BadTable(f"{name}: metric {metric} is not declared in warehouse/schema/metrics.toml; declare it")
        if METRICS[metric].unit != unit:
            raise BadTable(f"{name}: metric {metric} is in {unit or 'no unit'}, declared in {METRICS[metric].unit or 'none'}")


# ------------------------------------------------------------------------------------------------ tables -> rows


def view_sql(name: str) -> str:
    """`create view` of a view over the stored tables, in the order of its key."""
    return f"create view {name} as {selected(name)}"


def selected(name: str) -> str:
    """What a view selects."""
    view = VIEWS[name]
    told = [f"{_fact(view, column)} as {_quoted(column)}" for column in facts(name)]
    told += [f"r.run_id as {view.run_id}"] * bool(view.run_id)
    values, joined = _read_values(name)
    columns = ", ".join(_quoted(column) for column in view.columns)
    key = ", ".join(_quoted(column) for column in view.key)
    return (
        f"select {columns} from (select {', '.join([*told, *values])} from runs r{joined} "
        f"where r.view_name = '{view.of or name}' and r.copy_of is null) order by {key}"
    )


def _read_values(name: str) -> tuple[list[str], str]:
    """Expressions of the columns that are no facts, and the join that has them."""
    view = VIEWS[name]
    if not view.values:
        return [], ""
    mine = f"run_id in (select run_id from runs where view_name = '{view.of or name}' and copy_of is null)"
    at = [f"cast(v.{there} as {_type(view, column)}) as {_quoted(column)}" for column, there in view.at.items()]
    if names_metrics(view):
        columns = ["v.metric as metric", "d.unit as unit", *(f"v.{column} as {column}" for column in ("value", *_BAND))]
        return [*at, *columns], f" join {view.values} v using (run_id) join metric_defs d using (metric)"
    if not measured(name):
        return at, f" join {view.values} v using (run_id)"
    index = ", ".join(("run_id", *view.at.values()))
    pivoted = [f"max(value) filter (metric = '{metric}') as {_quoted(metric)}" for metric in measured(name)]
    pivoted += [f"max({end}) filter (metric = '{view.band}') as {end}" for end in _BAND * bool(view.band)]
    columns = [f"cast(v.{_quoted(metric)} as {_type(view, metric)}) as {_quoted(metric)}" for metric in measured(name)]
    columns += [f"v.{end}" for end in _BAND * bool(view.band)]
    how = " left" if view.values == "metrics" else ""
    only = " and ".join([mine, *(f"{column} is null" for column in _elsewhere(view))])
    joined = (
        f"{how} join (select {index}, {', '.join(pivoted)} from {view.values} where {only} group by {index}) v using (run_id)"
    )
    if "metric" in view.at:
        columns.append("d.unit as unit")
        joined += f" join metric_defs d on d.metric = v.{view.at['metric']}"
    return [*at, *columns], joined


def _elsewhere(view: View) -> list[str]:
    """Columns of `series` that tell apart the rows of the run's other views."""
    told = TABLES[view.values].key if view.values == "series" else ()
    return [column for column in told if column not in ("run_id", "metric", *view.at.values())]


def _fact(view: View, column: str) -> str:
    if column in OWN_COLUMNS:
        return f"r.{column}"
    where = "semantics" if column in SEMANTICS else "facts"
    return f"cast(json_extract_string(r.{where}, '$.{column}') as {_type(view, column)})"


def _type(view: View, column: str) -> str:
    return _SQL[view.column(column).type]


def _quoted(name: str) -> str:
    return f'"{name}"'

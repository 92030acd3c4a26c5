"""What moved between two runs, or between what a study's runs said at two times: by metric, beside the spread over seeds."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from statistics import median
from typing import Any

import polars as pl

from tokentape.policies.names import unknown
from tokentape.warehouse import results
from tokentape.warehouse.at_rest import FOUND, hash_of_text, metric_defs
from tokentape.warehouse.tape import Store

EXACT = 1e-9  # of a value, below which nothing has moved
LATEST = "latest"
# What ran, whatever the seed and the code; the rest is in `facts`.
NO_RUNS = ("study_points", "failed_runs")  # views of what a study asked for
SAME = ("view_name", "engine", "system", "trace_id", "model_id", "hardware", "profile", "batch", "semantics")
BUT_SEEDS = ("place", "study", "sources_sha256", "hardware_sha256")  # what runs have alike that differ in their seed alone
Row = dict[str, Any]
Band = tuple[float, float]


@dataclass(frozen=True)
class Moved:
    """A metric of two runs, or the medians of their seeds. before, after: None where that side lacks it. band: of the values over
    seeds before, of `n_seeds` of them; None where there is one. is_beyond: the band, or EXACT where there is none."""

    run: str
    metric: str
    unit: str
    before: float | None
    band: Band | None
    n_seeds: int
    after: float | None
    is_beyond: bool

    @property
    def change_frac(self) -> float | None:
        if not self.before or self.after is None:
            return None
        return (self.after - self.before) / abs(self.before)


@dataclass(frozen=True)
class Difference:
    """moved: metrics whose value is another. n_metrics: compared. n_same: runs of both sides. n_before,
    n_after: sets of conditions that only one side has."""

    moved: tuple[Moved, ...]
    n_metrics: int
    n_same: int
    n_before: int
    n_after: int


def difference(store: Store, before: str, after: str) -> Difference:
    """Of two runs by the beginnings of their ids, or of studies as STUDY@TIME and STUDY@latest.

    Runs are matched by all that was given but the seed; two single runs with each other, whatever they ran.
    Raises ValueError for a run, study or time that is not there, and where nothing can be compared.
    """
    whole = [
        batch for batch in results.batches(store) if not results.lost_files(store, [results.batch_path(store, "runs", batch)])
    ]
    runs = results.stored(store, "runs", whole)
    rows = runs.with_columns(place=pl.Series([_place(row) for row in runs.iter_rows(named=True)], dtype=pl.String)).to_dicts()
    for row in rows:  # of a system's run, also the seed of its requests
        asked = json.loads(json.loads(row["facts"]).get("asked") or "{}")
        row["seed"] = asked.get("workload", {}).get("seed", row["seed"])
    sides = [_side(store, rows, word) for word in (before, after)]
    alone = [len(side) == 1 and "@" not in word for side, word in zip(sides, (before, after), strict=True)]
    of = [{row["place"] if not all(alone) else "": row for row in side} for side in sides]
    both = [place for place in of[0] if place in of[1]]
    if not both:
        raise ValueError(
            f'{before} and {after} have no run of the same conditions; `tokentape sql "from runs"` shows what there is'
        )
    seeds = [[row for row in rows if alone[0] and all(row[name] == sides[0][0][name] for name in BUT_SEEDS)], []]
    found = {row["run_id"]: row for row in chain(*sides, *seeds)}
    values = _values(store, pl.DataFrame(list(found.values()), infer_schema_length=None))
    units, moved, n_metrics = dict(metric_defs().select("metric", "unit").iter_rows()), list[Moved](), 0
    for place in both:
        here = [[row for row in side if all(alone) or row["place"] == place] for side in sides]
        spread = seeds[0] or here[0]
        for metric in sorted({metric for row in chain(*here) for metric in values.get(row["run_id"], {})}):
            was, now = ([values[r["run_id"]][metric] for r in part if metric in values.get(r["run_id"], {})] for part in here)
            band, n_seeds = _band(spread, values, metric)
            n_metrics += 1
            ends = [median(value for value, *_ in part) if part else None for part in (was, now)]
            if not _equal(*ends):
                is_beyond = None in ends or band is None or not _within(ends[1], band)
                moved.append(
                    Moved(_named(here[1][-1]), metric, units.get(metric, ""), ends[0], band, n_seeds, ends[1], is_beyond)
                )
    if not n_metrics:
        raise ValueError(f"{before} and {after} hold no metrics, so that nothing can be compared")
    ids = [{row["run_id"] for row in side} for side in sides]
    return Difference(tuple(moved), n_metrics, len(ids[0] & ids[1]), len({*of[0]} - {*both}), len({*of[1]} - {*both}))


def _place(row: Row) -> str:
    """Hash of what a run was given but its seed, machine's numbers and code."""
    facts = {name: value for name, value in json.loads(row["facts"]).items() if name not in FOUND}
    workload = row["workload"]
    if asked := facts.pop("asked", None):  # which says the workload too
        facts["asked"] = json.loads(asked)
        facts["asked"].get("workload", {}).pop("seed", None)  # a run that was not possible has none
        workload = None
    return hash_of_text(json.dumps([*(row[name] for name in SAME), workload, facts], sort_keys=True))  # a number may be NaN


def _side(store: Store, rows: Sequence[Row], word: str) -> list[Row]:
    """The run of that id, or the newest runs of the study, one per set of conditions and seed."""
    study, at, time = word.rpartition("@")
    if not at:
        ids = sorted({row["run_id"] for row in rows if row["run_id"].startswith(word)})
        if len(ids) > 1:
            raise ValueError(f"run {word!r} is ambiguous: {', '.join(ids[:5])}; give more of it")
        if not ids or not word:
            raise unknown("run", word, sorted({row["run_id"] for row in rows})[:20])
        return [row for row in rows if row["run_id"] == ids[0]][-1:]
    points = {
        json.loads(row["facts"])["result_id"] for row in rows if row["view_name"] == "study_points" and row["study"] == study
    }
    places = {row["place"] for row in rows if row["run_id"] in points}
    mine = [row for row in rows if row["view_name"] not in NO_RUNS and (row["study"] == study or row["place"] in places)]
    if not mine:
        raise unknown("study", study, {row["study"] for row in rows} - {None, ""})
    if time != LATEST:
        before = _time(word, time)
        written = {stem: _written(store, stem) for stem in {row["stem"] for row in mine}}
        early = [row for row in mine if written[row["stem"]] < before]
        if not early:
            raise ValueError(f"{word}: no run of that study is older; its first is of {min(written.values()):%Y-%m-%dT%H:%M:%SZ}")
        mine = early
    return list({(row["place"], row["seed"]): row for row in mine}.values())


def _time(word: str, time: str) -> datetime:
    try:
        found = datetime.fromisoformat(time)
    except ValueError as error:
        raise ValueError(f"{word}: {time!r} is no time; give {LATEST}, 2026-11-23 or 2026-11-23T02:00 (UTC)") from error
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def _written(store: Store, batch: str) -> datetime:
    try:
        made: datetime = store.fs.modified(results.batch_path(store, "runs", batch))
    except NotImplementedError as error:
        raise ValueError(f"{store.root}: this kind of store tells no times; give runs by their ids") from error
    return made.astimezone(UTC) if made.tzinfo else made.replace(tzinfo=UTC)


def _values(store: Store, runs: pl.DataFrame) -> dict[str, dict[str, tuple[float, float | None, float | None]]]:
    """By run and metric: value, low, high."""
    found = dict[str, dict[str, tuple[float, float | None, float | None]]]()
    columns = ("run_id", "metric", "value", "low", "high")
    for run_id, metric, *value in results.measured_of(store, "metrics", runs).select(columns).iter_rows():
        found.setdefault(run_id, {})[metric] = (value[0], value[1], value[2])
    return found


def _band(rows: Sequence[Row], values: Mapping[str, Any], metric: str) -> tuple[Band | None, int]:
    """Lowest and highest of a metric over seeds, from runs of several, or as one of several says itself; how many seeds."""
    of = {row["seed"]: values[row["run_id"]][metric] for row in rows if metric in values.get(row["run_id"], {})}
    if len(of) > 1:
        return (min(value for value, *_ in of.values()), max(value for value, *_ in of.values())), len(of)
    n_seeds = json.loads(rows[0]["facts"]).get("n_seeds") or 1
    for _, low, high in of.values():
        if n_seeds > 1 and low is not None and high is not None:
            return (low, high), n_seeds
    return None, n_seeds


def _equal(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return False
    return math.isclose(before, after, rel_tol=EXACT) or (math.isnan(before) and math.isnan(after))


def _within(value: float | None, band: Band) -> bool:
    return value is not None and (band[0] <= value <= band[1] or any(math.isclose(value, end, rel_tol=EXACT) for end in band))


def _named(row: Row) -> str:
    """A run in words: what decides in it, at which capacity, on which machine and tape."""
    facts, rules = json.loads(row["facts"]), json.loads(row["semantics"] or "{}")
    size = facts.get("capacity_frac")
    words = [*json.loads(row["system"]).values(), f"{100 * size:.3g} %" if size is not None else "", rules.get("scope")]
    return ", ".join(str(word) for word in [*words, row["hardware"], row["trace_id"]] if word) or row["run_id"]

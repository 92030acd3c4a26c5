"""What moved between two runs, or between what a study's runs said at two times: by metric, beside the spread over seeds."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from statistics import median
from typing import Any, NamedTuple

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
Ends = tuple[float, float | None, float | None]  # value, low, high


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


class Difference(NamedTuple):
    """moved: metrics whose value is another, of n_metrics compared. n_same: runs of both sides. alone: sets of conditions that
    only the one side has, and only the other."""

    moved: list[Moved]
    n_metrics: int
    n_same: int
    alone: tuple[int, int]


def difference(store: Store, before: str, after: str) -> Difference:
    """Of two runs by the beginnings of their ids, or of studies as STUDY@TIME and STUDY@latest.

    Runs are matched by all that was given but the seed; two single runs with each other, whatever they ran.
    Raises ValueError for a run, study or time that is not there, and where nothing can be compared.
    """
    lost = set(results.broken(store))
    whole = [batch for batch in results.batches(store) if batch not in lost]
    rows = results.stored(store, "runs", whole).to_dicts()
    for row in rows:
        row["facts"] = json.loads(row["facts"])
        asked = json.loads(row["facts"].get("asked") or "{}").get("workload", {})  # of a system's run, whose requests draw too
        row |= {"place": _place(row), "seed": asked.get("seed", row["seed"])}
    sides = [_side(store, rows, word) for word in (before, after)]
    alone = [len(side) == 1 and "@" not in word for side, word in zip(sides, (before, after), strict=True)]
    of = [defaultdict[str, list[Row]](list) for _ in sides]
    for side, places in zip(sides, of, strict=True):
        for row in side:
            places["" if all(alone) else row["place"]].append(row)
    both = [place for place in of[0] if place in of[1]]
    if not both:
        raise ValueError(
            f'{before} and {after} have no run of the same conditions; `tokentape sql "from runs"` shows what there is'
        )
    seeds = [row for row in rows if alone[0] and all(row[name] == sides[0][0][name] for name in BUT_SEEDS)]
    found = {row["run_id"]: row["stem"] for row in chain(*sides, seeds)}
    values = defaultdict[str, dict[str, Ends]](dict)
    runs = pl.DataFrame({"run_id": [*found], "stem": [*found.values()]})
    for run_id, metric, *ends in (
        results.measured_of(store, "metrics", runs).select("run_id", "metric", "value", "low", "high").iter_rows()
    ):
        values[run_id][metric] = (ends[0], ends[1], ends[2])
    units, moved, n_metrics = dict(metric_defs().select("metric", "unit").iter_rows()), list[Moved](), 0
    for place in both:
        here = [places[place] for places in of]
        for metric in sorted({metric for row in chain(*here) for metric in values[row["run_id"]]}):
            told = [[values[row["run_id"]][metric] for row in part if metric in values[row["run_id"]]] for part in here]
            was, now = (median(value for value, *_ in part) if part else None for part in told)
            band, n_seeds = _band(seeds or here[0], values, metric)
            n_metrics += 1
            if was is None or now is None or not _equal(was, now):
                is_beyond = was is None or now is None or band is None or not _within(now, band)
                moved.append(Moved(_named(here[1][-1]), metric, units.get(metric, ""), was, band, n_seeds, now, is_beyond))
    if not n_metrics:
        raise ValueError(f"{before} and {after} hold no metrics, so that nothing can be compared")
    ids = [{row["run_id"] for row in side} for side in sides]
    return Difference(moved, n_metrics, len(ids[0] & ids[1]), (len({*of[0]} - {*both}), len({*of[1]} - {*both})))


def _place(row: Row) -> str:
    """Hash of what a run was given but its seed, machine's numbers and code."""
    facts, workload = {name: value for name, value in row["facts"].items() if name not in FOUND}, row["workload"]
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
    points = {row["facts"]["result_id"] for row in rows if (row["view_name"], row["study"]) == ("study_points", study)}
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
    return _utc(found)


def _written(store: Store, batch: str) -> datetime:
    try:
        return _utc(store.fs.modified(results.batch_path(store, "runs", batch)))
    except NotImplementedError as error:
        raise ValueError(f"{store.root}: this kind of store tells no times; give runs by their ids") from error


def _utc(time: datetime) -> datetime:
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


def _band(rows: Sequence[Row], values: Mapping[str, Mapping[str, Ends]], metric: str) -> tuple[Band | None, int]:
    """Lowest and highest of a metric over seeds, from runs of several, or as one of several says itself; how many seeds."""
    of = {row["seed"]: found[metric] for row in rows if metric in (found := values[row["run_id"]])}
    if len(of) > 1:
        return (min(value for value, *_ in of.values()), max(value for value, *_ in of.values())), len(of)
    n_seeds = rows[0]["facts"].get("n_seeds") or 1
    _, low, high = next(iter(of.values()), (0.0, None, None))
    return ((low, high) if n_seeds > 1 and low is not None and high is not None else None), n_seeds


def _equal(before: float, after: float) -> bool:
    return math.isclose(before, after, rel_tol=EXACT) or (math.isnan(before) and math.isnan(after))


def _within(value: float, band: Band) -> bool:
    return band[0] <= value <= band[1] or any(math.isclose(value, end, rel_tol=EXACT) for end in band)


def _named(row: Row) -> str:
    """A run in words: what decides in it, at which capacity, on which machine and tape."""
    size, rules = row["facts"].get("capacity_frac"), json.loads(row["semantics"] or "{}")
    words = [*json.loads(row["system"]).values(), f"{100 * size:.3g} %" if size is not None else "", rules.get("scope")]
    return ", ".join(str(word) for word in [*words, row["hardware"], row["trace_id"]] if word) or row["run_id"]

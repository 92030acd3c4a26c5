"""What moved between runs, and between what a study said at two times: against numbers written by hand."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from command import Cli
from test_grid import SMALL
from tiny_tape import write_tiny

from tokentape.flows import grid, study
from tokentape.flows.moved import SAME, _place, difference
from tokentape.warehouse import results
from tokentape.warehouse.tape import Store

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A study's runs of noon, and again an hour later by other code: an LRU with a miss more, random by part of its spread."""
    folder = tmp_path_factory.mktemp("moved")
    place = Store(str(folder / "tape"))
    write_tiny(place)
    (folder / "small.toml").write_text(SMALL.replace('"25%", "50%", "3 experts"', '"50%"').replace(', "per-layer"', ""))
    grid.run(study.load(str(folder / "small.toml")), place)
    for path in Path(place.root).glob("runs/*.parquet"):
        os.utime(path, (NOON, NOON))
    stems = results.batches(place)
    runs = results.stored(place, "runs", stems)
    metrics = results.measured_of(place, "metrics", runs)
    of_random = pl.Series(runs.filter(pl.col("seed") > 0)["run_id"])
    of_lru = pl.Series(runs.filter(pl.col("residency").str.starts_with("lru"))["run_id"])
    half = pl.col("value").filter(pl.col("metric") == "n_hits", pl.col("run_id").is_in(of_random.implode()))
    changed = (
        pl.when(pl.col("metric") != "n_hits")
        .then(pl.col("value"))
        .when(pl.col("run_id").is_in(of_lru.implode()))
        .then(pl.col("value") - 1)
        .when(pl.col("run_id").is_in(of_random.implode()))
        .then(pl.col("value") + (half.max() - half.min()) / 4)
        .otherwise(pl.col("value"))
    )
    renamed = pl.concat_str(pl.lit("f"), "run_id").alias("run_id")
    metrics, runs = metrics.with_columns(changed.alias("value")).with_columns(renamed), runs.drop("stem").with_columns(renamed)
    results.write_replays(place, {"runs": runs.to_arrow(), "metrics": metrics.to_arrow()})
    return place


def test_a_table_is_listed_once_for_all_batches(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    listed, batches = list[str](), results.batches
    monkeypatch.setattr(results, "batches", lambda store, table="runs": listed.append(table) or batches(store, table))
    ids = results.run_ids(kept)
    listed.clear()
    difference(kept, ids[0], ids[-1])
    assert 2 < len(listed) <= 2 * len(set(listed))  # for what lost a file, and for what is read


def test_runs_that_were_not_possible_stand_beside_others() -> None:
    first, second, apart = (
        {"policy": "lru", "workload": {"seed": 1}, "numbers": {"static_w": float("nan")}},  # as older grids took it
        {"policy": "lru", "workload": {"seed": 2}, "numbers": {"static_w": float("nan")}},
        {"policy": "lru"},
    )
    rows = [dict.fromkeys(SAME) | {"workload": None, "facts": {"asked": json.dumps(of)}} for of in (first, second, apart)]
    of_first, of_second, of_apart = map(_place, rows)
    assert of_first == of_second != of_apart


def test_a_study_between_two_times(kept: Store) -> None:
    moved, _, n_same, alone = difference(kept, "small@2026-11-23T12:30", "small@latest")
    hits = {one.run.split(" ")[0].split(",")[0]: one for one in moved}
    assert {(one.metric, one.is_beyond) for one in moved} == {("n_hits", True), ("n_hits", False)}
    assert (hits["lru"].after or 0) == (hits["lru"].before or 0) - 1
    assert hits["lru"].is_beyond
    random = next(one for one in moved if not one.is_beyond)
    assert random.n_seeds == 2
    assert random.band is not None
    assert random.band[0] <= (random.after or 0) <= random.band[1]
    assert (n_same, alone) == (0, (0, 0))
    assert not difference(kept, "small@latest", "small@latest")[0]


def test_two_runs_and_the_exit_code(kept: Store, tokentape: Cli) -> None:
    at = ("--store", str(kept.root))
    ids = results.run_ids(kept)
    lru = next(key for key in ids if f"f{key}" in ids and results.rows_of_run(kept, "replays", key)[0]["policy"] == "lru")
    done = tokentape("diff", lru, f"f{lru}", "--json", *at)
    table, said = json.loads(done.out)
    assert done.code == 1
    assert [(row["metric"], row["beyond"]) for row in table["rows"]] == [("n_hits", "yes")]
    assert said["said"].startswith("1 of ")
    assert "0 of" in tokentape.ok("diff", lru, lru, *at).out
    assert "no run of that study is older" in tokentape.refused("diff", "small@2026-01-01", "small@latest", *at).err
    assert "is no time" in tokentape.refused("diff", "small@noon", "small@latest", *at).err

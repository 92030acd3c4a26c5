"""Results of the layout before runs, taken over: every row is there again, and nothing of the old is left."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tokentape.warehouse.at_rest import Maker, Point, runs_at_rest
from tokentape.warehouse.load import database_path, load
from tokentape.warehouse.migrate import migrate, older
from tokentape.warehouse.results import batches, read_rows, stored, write_batch, write_rows
from tokentape.warehouse.sql import query
from tokentape.warehouse.tables import TABLES, VIEWS, BadTable
from tokentape.warehouse.tape import Store

AT = {"trace_id": "hand-made", "policy": "h2o", "parameters": "{}", "renorm": True}
KV = AT | {
    "is_bound": False, "origin": "captured", "is_exact": True, "budget_tokens": 8, "n_requests": 1, "n_steps": 4,
    "kept_mass_frac": 0.75, "kept_mass_high_frac": 0.8, "n_evicted": 2,
    "n_updates": 4, "popular_frac": 0.5, "popular_stays_frac": None, "x_bytes": 0,
    "kv_bytes": 64, "full_bytes": 128,
}  # fmt: skip
HEADS = [
    AT | {"layer": 0, "kv_head": h, "n_steps": 4, "kept_mass_frac": 0.5 + h, "kept_mass_high_frac": 0.5, "n_evicted": 1}
    for h in (0, 1)
]
POINT = {"study": "s", "point_id": "p", "request_id": 3, "place": 0, "time_s": 0.5}


def replay_row(key: str) -> dict[str, object]:
    return {
        "replay_id": key, "trace_id": "hand-made", "study": "test", "policy": "lru", "policy_params": "{}", "is_bound": False,
        "hardware": "phone", "hardware_sha256": "ab", "scope": "global", "lookup": "atomic", "prefill": "layer-major",
        "start": "persistent", "overflow": "evict", "fetching": "blocking", "expert_format": "int4", "capacity_bytes": 100,
        "capacity_experts": 1.0, "capacity_frac": 0.25, "cycle_experts": 2, "seed": 0, "origin": "captured",
        "is_extrapolated": False, "outside_envelope": "", "assumed": "",
    }  # fmt: skip  # `recency` was declared later


def old_layout(store: Store) -> None:
    """What a version before runs wrote: a replay, one that lost its mark, an attention replay, and machines, which stay."""
    step = {
        "pass_id": 0,
        "kind": "decode",
        "n_tokens": 1,
        "start_s": 0.0,
        "step_s": 1.0,
        "energy_j": 2.0,
        "n_lookups": 2,
        "n_hits": 1,
    }
    files = {
        "results/replays/r0": [replay_row("r0")],
        "results/metrics/r0": [
            {
                "replay_id": "r0",
                "metric": "hit_frac",
                "unit": "1",
                "value": 0.5,
                "low": None,
                "high": None,
                "denominator": "lookups",
            }
        ],
        "results/timeline/r0": [{"replay_id": "r0", **step, "fast_bytes": 1, "backing_bytes": 2}],
        "results/curves/r0": [{"replay_id": "r0", "capacity_experts": 1.0, "n_lookups": 4, "n_hits": 1, "hit_frac": 0.25}],
        "results/metrics/cut": [{"replay_id": "cut", "metric": "hit_frac", "unit": "1", "value": 0.5}],
        "kv_replays/aa": [KV],
        "kv_heads/bb": HEADS,
        "kv_heads/cc": [row | {"policy": "gone"} for row in HEADS],
        "serving_tokens/dd": [POINT],
    }
    for path, rows in files.items():
        store.write_parquet(store.path(*f"{path}.parquet".split("/")), pa.Table.from_pylist(rows))


def test_every_row_is_there_again_and_the_old_files_are_gone(small: Store) -> None:
    old_layout(small)
    report = load(small, database_path(small))
    assert report.n_older == 9
    assert "9 files of an older version's results (`tokentape migrate` takes them over)" in str(report)
    assert list(migrate(small))[-1] == (9, 9)
    assert older(small) == []
    assert not {"results", "kv_replays", "kv_heads", "serving_tokens"} & {p.name for p in Path(small.root).iterdir()}
    assert read_rows(small, "kv_replays") == [KV]
    assert read_rows(small, "kv_heads") == HEADS
    (taken,) = (
        row
        for row in read_rows(small, "replays")
        if row["replay_id"] == "r0" and row["study"] == "test" and row["recency"] is None
    )
    assert taken == replay_row("r0") | {"recency": None, "profile": None}
    database = load(small, database_path(small)).database
    assert query(database, "select step_s, energy_j from timeline where replay_id = 'r0'").rows() == [(1.0, 2.0)]
    assert query(database, "select value, denominator from metrics where run_id = 'r0'").rows() == [(0.5, "lookups")]
    assert query(database, "from lru_curves where replay_id = 'r0'").rows() == [("r0", 1.0, 4, 1, 0.25)]


def test_interrupted_it_goes_on_and_nothing_is_lost(small: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    old_layout(small)
    whole = Store.write_parquet

    def full(store: Store, path: str, rows: pa.Table) -> None:
        if "/runs/kv_replays" in path:
            raise OSError(28, "no space left")
        whole(store, path, rows)

    monkeypatch.setattr(Store, "write_parquet", full)
    with pytest.raises(OSError, match="no space left"):
        list(migrate(small))
    assert len(older(small)) == 5  # those of the replay are taken over
    monkeypatch.undo()
    assert list(migrate(small))[-1] == (5, 5)
    assert read_rows(small, "kv_heads") == HEADS


def test_a_damaged_old_file_is_named_and_stays(small: Store) -> None:
    old_layout(small)
    path = Path(small.path("kv_replays", "aa.parquet"))
    path.write_bytes(path.read_bytes()[:80])
    with pytest.raises(BadTable, match=r"kv_replays/aa\.parquet: not a readable Parquet file"):
        list(migrate(small))
    assert path.exists()


HITS = {
    "study": "cxl-ndp", "model_id": "m", "source": "drawn", "origin": "synthetic", "batch": 16, "placement": "oracle",
    "is_bound": True, "hot_experts": 4, "layer": 0, "gpu_hit_frac": 0.5, "low": 0.4, "high": 0.6, "n_seeds": 3,
}  # fmt: skip
TRIED = {
    **dict.fromkeys(TABLES["quality"].nullable), "model_id": "m", "policy": "ndp", "parameters": "{}", "dataset": "docs",
    "seed": 0, "perplexity": 3.5, "n_items": 1, "n_tokens": 8,
}  # fmt: skip
CHECK = {
    "study": "s", "block": "all", "level": "L1", "fit": "f", "hit_model": "physical", "value": 0.1, "unit": "1", "n": 3,
    "bar_low": 0.0, "bar_high": 0.5,
}  # fmt: skip
ANSWER = {"claim_id": "c", "study": "layered-prefill", "mode": "paper", "value": 1.5, "low": None, "high": None, "how": "counted"}


def test_names_of_before_become_todays_and_so_do_the_ids_that_follow_from_them(
    small: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for views in (VIEWS, TABLES):
        monkeypatch.setitem(views, "ndp_hits", VIEWS["cxl_ndp_hits"])
    copied = Maker("mine", "cxl-ndp")
    write_rows(small, "ndp_hits", [HITS], "cxl-ndp")
    write_rows(small, "ndp_hits", [HITS | {"study": "mine"}], "mine", copied)
    monkeypatch.undo()
    small.write_parquet(small.path("elastic_checks", "aa.parquet"), pa.Table.from_pylist([CHECK]))  # of before runs
    write_rows(small, "quality", [TRIED])
    write_rows(small, "answers", [ANSWER], "layered-prefill")
    write_batch(small, "x", runs_at_rest("cxl_ndp", [Point({"batch": 4, "n": 2}, {"hit_frac": 0.5})], Maker("cxl-ndp")))
    assert "5 files of an older version's results" in str(load(small, database_path(small)))
    assert list(migrate(small))[-1] == (9, 9)
    assert list(migrate(small))[-1] == (0, 0)
    renamed = stored(small, "runs", batches(small))
    assert set(renamed["study"]) == {"cxl_ndp", "mine", "s", "test", None}
    assert read_rows(small, "cxl_ndp_hits") == [HITS | {"study": "cxl_ndp"}]
    assert read_rows(small, "cxl_ndp_hits", "mine") == [HITS | {"study": "mine"}]
    assert read_rows(small, "elmoe3d_checks") == [CHECK | {"how": None}]
    assert [row["policy"] for row in read_rows(small, "quality")] == ["cxl_ndp"]
    assert read_rows(small, "answers") == [ANSWER | {"study": "layered_prefill"}]
    write_rows(small, "cxl_ndp_hits", [HITS | {"study": "cxl_ndp"}], "cxl_ndp")
    write_rows(small, "quality", [TRIED | {"policy": "cxl_ndp"}])
    write_batch(small, "x", runs_at_rest("cxl_ndp", [Point({"batch": 4, "n": 2}, {"hit_frac": 0.5})], Maker("cxl_ndp")))
    assert set(stored(small, "runs", batches(small))["run_id"]) == set(renamed["run_id"])

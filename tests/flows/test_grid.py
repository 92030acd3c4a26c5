"""A study's replays: multiplied out, run once, the same bytes on every runner, continued where they stopped."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from refusing import full, refuses
from tiny_tape import N_LAYERS, write_tiny

from tokentape.flows import grid, study
from tokentape.flows.planned import cpu_per_run, planned, record
from tokentape.flows.shared import mapped, shared
from tokentape.replay.semantics import Semantics
from tokentape.replay.stream import Stream, stream
from tokentape.replay.trace import Trace
from tokentape.warehouse import at_rest, results
from tokentape.warehouse.tape import Store

ROOT = Path(__file__).resolve().parents[2]
SMALL = """
question = "which?"
capacities = ["25%", "50%", "3 experts"]
scopes = ["global", "per-layer"]
hardware = ["phone-lpddr5x-ufs4"]
[[policies]]
name = "lru"
[[policies]]
name = "random"
seeds = [1, 2]
[[policies]]
name = "belady"
"""


@pytest.fixture
def small(tmp_path: Path) -> study.Study:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return study.load(str(path))


def expanded(asked: study.Study, store: Store) -> list[grid.Job]:
    return [job for _, jobs in grid.asked(asked, store)[0] for job in jobs]


def digests(store: Store) -> dict[str, str]:
    root = Path(store.root)
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(root.rglob("*.parquet"))}


def test_everything_is_multiplied_out_and_what_decides_the_numbers_decides_the_id(small: study.Study, store: Store) -> None:
    cells = expanded(small, store)
    assert len(cells) == len(set(cells)) == 2 * 3 * 4  # scopes x capacities x (lru, random twice, belady)
    ids = {grid.replay_key(store, cell) for cell in cells}
    assert len(ids) == len(cells)
    assert all(len(i) == at_rest.ID_DIGITS for i in ids)


def test_a_plan_is_what_a_run_then_does_and_leaves_the_store_alone(small: study.Study, store: Store) -> None:
    before = digests(store)
    plan, _ = planned(small, store)
    assert digests(store) == before
    ran = grid.run(small, store)
    assert (plan["found"], plan["left"] + plan["impossible"], plan["runs"], plan["bytes"]) == (0, 24, 24, None)
    assert ran.n_run + len(ran.impossible) == 24
    more = small.model_copy(update={"capacities": (*small.capacities, "75%", "75%")})  # twice the same is one run
    again, reasons = planned(more, store)
    assert (again["found"], again["left"] + len(reasons)) == (ran.n_run, 8 + 24 - ran.n_run)
    tables = {path.parent for path in Path(store.root).rglob("replays-*.parquet")}
    n_bytes = sum(path.stat().st_size for table in tables for path in table.glob("replays-*.parquet"))
    assert again["bytes"] == pytest.approx(again["left"] * n_bytes / ran.n_run, abs=1)
    assert (plan["cpu_s"], bool(again["cpu_s"])) == (None, True)


def test_cpu_time_is_that_of_earlier_runs_by_tape_else_by_row_of_the_policy_else_of_any(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert cpu_per_run(store)("a", "lru", 5) is None
    record(store, "one", "a", 100, {"lru": 4, "belady": 1}, {"lru": 8.0, "belady": 10.0})
    record(store, "one", "a", 100, {"lru": 2}, {"lru": 2.0})  # of new code
    record(store, "two", "b", 50, {"lru": 1}, {"lru": 4.0})
    took = cpu_per_run(store)
    assert [took("a", "lru", 100), took("a", "belady", 100)] == [1.0, 10.0]
    assert took("c", "lru", 1000) == pytest.approx(1000 * 6.0 / 250)
    assert took("c", "fifo", 1000) == pytest.approx(1000 * 16.0 / 350)
    for path in tmp_path.joinpath("run_costs").iterdir():  # damaged, by a bit: it is as if nothing had run
        told = path.read_text()
        path.write_text("[" * 100_000 if "belady" in told else re.sub('("n_runs"): 1', r"\1: 0", told))
    assert cpu_per_run(store)("a", "lru", 5) is None


def test_what_fails_is_kept_with_its_reason_until_it_runs_and_the_rest_is_finished(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(SMALL + '[[policies]]\nname = "mine.py:LRU"\n')
    lru = (ROOT / "policies" / "lru.py").read_text()
    (tmp_path / "mine.py").write_text(lru.replace("promote: ClassVar[bool] = True", "promote = property(lambda self: 1 / 0)"))
    report = grid.run(study.load(str(path)), store)
    rows = results.read_rows(store, "failed_runs")
    assert len(rows) == len(report.impossible) == 3 * 2 + 4
    mine = [row for row in rows if row["system"].endswith("mine.py:LRU")]
    assert ["ZeroDivisionError" in row["reason"] and "line" in row["reason"] for row in mine].count(True) == 5
    assert {json.loads(row["asked"])["capacity"] for row in mine} == {"25%", "50%", "3 experts"}
    (tmp_path / "mine.py").write_text(lru)
    again = grid.run(study.load(str(path)), store)
    assert (again.n_run, len(results.read_rows(store, "failed_runs"))) == (5, 5)  # what no cache of 3 experts can hold
    grid.run(study.load(str(path)).model_copy(update={"capacities": ("50%",)}), store)
    assert results.read_rows(store, "failed_runs") == []
    monkeypatch.setattr(grid.experts, "replay", lambda *given: 1 / 0)  # a bug of ours
    more = grid.run(study.load(str(path)).model_copy(update={"capacities": ("50%", "60%")}), store)
    assert (more.n_run, more.n_found, len(more.impossible)) == (0, 10, 10)
    assert "raised ZeroDivisionError: division by zero (" in more.impossible[0]


def test_a_shared_stream_and_mapped_arrays_are_those_of_the_tape(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokentape.replay.trace.CELLS", 3 * N_LAYERS)
    trace = grid.load_trace(store, "tiny-0001")
    for semantics in (Semantics("global"), Semantics("global", prefill="token-major")):
        whole = stream(trace, semantics)
        assert len(list(trace.parts)) > 3
        for passes, part in trace.parts:
            for name, value in vars(stream(part, semantics)).items():
                np.testing.assert_array_equal(getattr(whole.of(passes), name), value)
    with shared({"trace": trace, "stream": whole}) as folder:
        given = {"trace_id": "tiny-0001", "origin": trace.origin, "geometry": trace.geometry, "read": None, "told": {}}
        again = mapped(folder, "trace", Trace, **given)
        assert again is not None
        for name in ("row_pass", "row_layer", "offsets", "ids", "members"):
            np.testing.assert_array_equal(getattr(again, name), getattr(trace, name))
        again.ids[:] = 0
        assert mapped(folder, "stream", Stream, told={}) is not None
    assert not Path(folder).exists()
    assert mapped(folder, "stream", Stream, told={}) is None
    assert trace.ids.any()
    monkeypatch.setattr(Path, "mkdir", full)
    with shared({"trace": trace}) as folder:
        assert folder == ""


def test_a_second_run_computes_nothing_and_a_lost_result_alone_is_computed(small: study.Study, store: Store) -> None:
    first = grid.run(small, store)
    assert first.n_found == 0
    assert first.n_run + len(first.impossible) == 24
    before, ids = results.read_rows(store, "replays"), results.run_ids(store)
    second = grid.run(small, store)
    assert (second.n_run, second.n_found) == (0, first.n_run)
    for table in ("runs", "metrics", "steps"):
        batch = results.batches(store)[1]
        n_lost = results.stored(store, "runs", [batch]).height
        Path(results.batch_path(store, table, batch)).unlink()
        third = grid.run(small, store)
        assert (third.n_run, third.n_found) == (n_lost, first.n_run - n_lost)
        assert (results.read_rows(store, "replays"), results.run_ids(store)) == (before, ids)


def test_what_is_there_is_read_as_often_for_many_tapes_as_for_one(
    small: study.Study, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (2, 3, 4):
        write_tiny(store, f"tiny-000{n}")
    grid.run(small, store, workers=1)
    of_tape = {results.stored(store, "runs", [batch])["trace_id"][0]: batch for batch in results.batches(store)}
    for table, batch in zip(("runs", "metrics", "steps", "runs"), of_tape.values(), strict=False):  # every tape lacks some
        Path(results.batch_path(store, table, batch)).unlink()
    kept, opened, parquet = results.batches(store)[0], list[str](), Store.parquet
    monkeypatch.setattr(Store, "parquet", lambda self, path: opened.append(path) or parquet(self, path))
    assert grid.run(small, store, workers=1).n_run >= 4
    assert opened.count(results.batch_path(store, "runs", kept)) == 2  # for the ids that are there, and for what lost a file


def test_one_run_is_asked_for_without_listing_all_that_there_are(
    small: study.Study, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid.run(small, store)
    batch = results.batches(store)[0]
    view, _, key = batch.rpartition("-")
    monkeypatch.setattr(results, "batches", lambda store, table: pytest.fail(f"listed {table}"))
    assert results.stored_run(store, view, key)
    Path(results.batch_path(store, "steps", batch)).unlink()
    assert results.stored_run(store, view, key) is None
    cell, file = grid.Cell("tiny-0001", "lru", (), "phone-lpddr5x-ufs4", Semantics("global"), "50%"), "replays-{}".format
    for _ in range(2):  # as one that lost a file
        key, _ = grid.replay_once(store, cell)
        assert results.is_whole(store, file(key))
        Path(results.batch_path(store, "steps", file(key))).unlink()


def test_threads_and_processes_write_the_same_bytes(small: study.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = {}
    for runner in ("threads", "processes"):
        place = Store(str(tmp_path / runner))
        write_tiny(place)
        with monkeypatch.context() as patched:
            if runner == "threads":  # of which each replay reads the tape as a long one
                patched.setattr(grid, "LONG_ROWS", 0)
            grid.run(small, place, runner, workers=2)
        written[runner] = digests(place)
    assert written["threads"]
    assert written["threads"] == written["processes"]


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    code = (
        "import os, time\nfrom tokentape.flows import workers\n"
        "if __name__ == '__main__':\n"
        "    pool = workers.pool_of('processes', 1)\n"  # one that no name holds ends its workers
        "    print(pool.submit(os.getpid).result(), flush=True)\n    time.sleep(60)\n"
    )
    (tmp_path / "parent.py").write_text(code)
    command = [sys.executable, "parent.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        os.kill(int(parent.stdout.readline()), 0)
        parent.kill()
        parent.stdout.read()  # until the worker, which shares it, is gone too


def test_caches_that_hold_no_expert_are_reported_and_tapes_without_routing_left_out(small: study.Study, store: Store) -> None:
    report = grid.run(small.model_copy(update={"capacities": ("50%", "1 B")}), store)
    assert report.n_run == 8
    assert len(report.impossible) == 8
    refuses("small", grid.run, small.model_copy(update={"capacities": ("1 B",)}), store)
    write_tiny(store, "dense-0001", tables=("requests", "tokens"))
    assert {cell.trace_id for cell in expanded(small, store)} == {"tiny-0001"}
    refuses("holds routing", expanded, small.model_copy(update={"traces": ("dense",)}), store)


def test_a_changed_import_of_ones_own_policy_makes_the_replay_again(small: study.Study, store: Store, tmp_path: Path) -> None:
    lru = (ROOT / "policies" / "lru.py").read_text().replace("kind: ClassVar", "scale: int = HALF\n    kind: ClassVar")
    (tmp_path / "half.py").write_text("HALF = 5\n")
    (tmp_path / "mine.py").write_text(lru.replace("\n@dataclass", "from half import HALF\n\n\n@dataclass", 1))
    mine = small.policies[0].model_copy(update={"name": f"{tmp_path / 'mine.py'}:LRU"})
    asked = small.model_copy(update={"policies": (mine,), "capacities": ("50%",), "scopes": ("global",)})
    assert (grid.run(asked, store).n_run, grid.run(asked, store).n_found) == (1, 1)
    (tmp_path / "half.py").write_text("HALF = 6\n")
    assert grid.run(asked, store).n_run == 1
    assert grid.run(asked, store).n_found == 1

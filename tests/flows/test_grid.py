"""A study's replays: multiplied out, run once, the same bytes on every runner, continued where they stopped."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_tape import write_tiny

from tokentape.flows import grid, study
from tokentape.warehouse import results
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


def digests(store: Store) -> dict[str, str]:
    root = Path(store.root)
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(root.rglob("*.parquet"))}


def test_everything_is_multiplied_out(small: study.Study, store: Store) -> None:
    cells = grid.expand(small, store)
    assert len(cells) == len(set(cells)) == 2 * 3 * 4  # scopes x capacities x (lru, random twice, belady)


def test_a_plan_is_what_a_run_then_does_and_leaves_the_store_alone(small: study.Study, store: Store) -> None:
    before = digests(store)
    plan = grid.planned(small, store)
    assert digests(store) == before
    ran = grid.run(small, store)
    assert (plan.n_found, plan.n_left + len(plan.impossible), plan.n_bytes) == (0, 24, None)
    assert ran.n_run + len(ran.impossible) == 24
    more = small.model_copy(update={"capacities": (*small.capacities, "75%")})
    again = grid.planned(more, store)
    assert (again.n_found, again.n_left + len(again.impossible)) == (ran.n_run, 8 + 24 - ran.n_run)
    tables = {path.parent for path in Path(store.root).rglob("replays-*.parquet")}
    n_bytes = sum(path.stat().st_size for table in tables for path in table.glob("replays-*.parquet"))
    assert again.n_bytes == pytest.approx(again.n_left * n_bytes / ran.n_run, abs=1)


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
        "    print(workers.pool_of('processes', 1).submit(os.getpid).result(), flush=True)\n    time.sleep(60)\n"
    )
    (tmp_path / "parent.py").write_text(code)
    command = [sys.executable, "parent.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        os.kill(worker, 0)
        parent.kill()
        parent.stdout.read()  # until the worker, which shares it, is gone too


def test_a_cache_that_cannot_hold_an_expert_is_reported_not_run(small: study.Study, store: Store) -> None:
    report = grid.run(small.model_copy(update={"capacities": ("50%", "1 B")}), store)
    assert report.n_run == 8
    assert len(report.impossible) == 8
    with pytest.raises(ValueError, match="small"):
        grid.run(small.model_copy(update={"capacities": ("1 B",)}), store)


def test_what_decides_the_numbers_decides_the_id(small: study.Study, store: Store) -> None:
    cells = grid.expand(small, store)
    ids = {grid.replay_key(store, cell) for cell in cells}
    assert len(ids) == len(cells)
    assert all(len(i) == results.ID_DIGITS for i in ids)


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


def test_tapes_without_routing_are_left_out(small: study.Study, store: Store) -> None:
    write_tiny(store, "dense-0001", tables=("requests", "tokens"))
    assert {cell.trace_id for cell in grid.expand(small, store)} == {"tiny-0001"}
    with pytest.raises(ValueError, match="holds routing"):
        grid.expand(small.model_copy(update={"traces": ("dense",)}), store)

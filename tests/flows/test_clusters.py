"""Dask and Ray: the same bytes as threads, also where workers are killed in the middle; what cannot be had in one line."""

import importlib.util
import os
import signal
import time
from concurrent.futures import Executor
from pathlib import Path
from threading import Thread

import psutil
import pytest
from command import Cli
from test_grid import SMALL, digests
from test_workers import fail_or_sleep
from tiny_tape import write_tiny

from tokentape.flows import grid, study
from tokentape.flows.workers import as_finished, ending, pool_of
from tokentape.warehouse import results
from tokentape.warehouse.tape import Store

NEEDS = {"dask": "distributed", "ray": "ray"}


def kill_once(told: str) -> int:
    """Kills its worker the first time."""
    if not Path(told).exists():
        Path(told).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def kill_then_fail(pool: Executor, job: str) -> None:
    with ending(pool):
        ((done, by),) = as_finished(pool, kill_once, [job])
        assert (done, Path(job).exists()) == (job, True)
        assert by != os.getpid()
        list(as_finished(pool, fail_or_sleep, range(3)))


@pytest.fixture(autouse=True)
def workers_find_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.mark.slow
@pytest.mark.parametrize("runner", NEEDS)
def test_a_job_whose_worker_was_killed_is_done_by_another_and_an_error_ends_the_rest(runner: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[runner])
    with pytest.raises(ValueError, match=r"^job 0 is bad$"):
        kill_then_fail(pool_of(runner, 2), str(tmp_path / "0"))
    assert not [child for child in psutil.Process().children(recursive=True) if "ray" in child.name() or "spawn" in child.name()]


@pytest.mark.slow
@pytest.mark.parametrize("runner", NEEDS)
def test_a_study_writes_the_bytes_of_threads_though_a_worker_is_killed_in_the_middle(runner: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[runner])
    path = tmp_path / "small.toml"
    path.write_text(SMALL.replace('"25%", "50%"', ", ".join(f'"{percent}%"' for percent in range(30, 90))))
    asked, written, killed = study.load(str(path)), {}, list[int]()
    for name in ("threads", runner):
        store = Store(str(tmp_path / name))
        write_tiny(store)

        def kill(place: Store = store) -> None:
            workers = list[psutil.Process]()
            while not (workers and results.batches(place)):
                time.sleep(0.05)
                workers = [child for child in psutil.Process().children(recursive=True) if is_worker(child, runner)]
            killed.append(workers[0].pid)
            workers[0].kill()

        if name == runner:
            Thread(target=kill, daemon=True).start()
        report = grid.run(asked, store, name, workers=2)
        assert report.n_found == 0
        written[name] = digests(store)
    assert len(killed) == 1
    assert len(written["threads"]) > 10
    assert written[runner] == written["threads"]


def is_worker(process: psutil.Process, runner: str) -> bool:
    try:
        said = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return said.startswith("ray::_call") if runner == "ray" else "spawn_main" in said


def test_what_cannot_be_had_is_one_line(tokentape: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did you mean 'dask'" in tokentape.refused("study", "baselines", "--runner", "dusk:tcp://a:1").err
    assert "threads has none" in tokentape.refused("study", "baselines", "--runner", "threads:tcp://a:1").err
    assert "expected after the colon (dask:tcp://HOST:8786" in tokentape.refused("study", "baselines", "--runner", "ray:").err
    write_tiny(Store("tape"))
    for runner, address in (("dask", "tcp://127.0.0.1:1"), ("ray", "127.0.0.1:1")):
        if importlib.util.find_spec(NEEDS[runner]):
            said = tokentape.refused("study", "baselines", "--runner", f"{runner}:{address}").err
            assert f"--runner {runner}:{address}: nothing answers there; start it" in said
        monkeypatch.setitem(__import__("sys").modules, NEEDS[runner], None)
        assert f"pip install 'tokentape[{runner}]'" in tokentape.refused("study", "baselines", "--runner", runner).err

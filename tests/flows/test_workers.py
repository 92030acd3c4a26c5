"""Long jobs on threads, processes and clusters: all are done, an error or a killed worker ends the rest, nothing stays behind."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor
from multiprocessing import active_children
from pathlib import Path
from threading import Thread

import psutil
import pytest
from command import Cli
from test_grid import SMALL, digests
from tiny_tape import write_tiny

from tokentape.flows import grid, study
from tokentape.flows.workers import as_finished, each, ending, pool_of
from tokentape.warehouse import results
from tokentape.warehouse.tape import Store

LONG_S = 120.0


def square(n: int) -> int:
    return n * n


def fail_or_sleep(n: int) -> int:
    if n == 0:
        raise ValueError("job 0 is bad")
    time.sleep(LONG_S)
    return n


def die(n: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return n


def test_errors_and_consumers_that_stop_end_the_jobs_under_way() -> None:
    with pytest.raises(ValueError, match="job 0 is bad"):
        list(each(pool_of("processes", 2), fail_or_sleep, range(6)))
    assert active_children() == []
    made = each(pool_of("processes", 1), square, range(50))
    next(made)
    made.close()
    assert active_children() == []


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_a_killed_worker_is_said_in_one_line() -> None:
    with pytest.raises(ChildProcessError, match="use --workers 1"):
        list(each(pool_of("processes", 1), die, range(2)))


def test_a_script_is_not_run_over_by_its_workers(tmp_path: Path) -> None:
    """Without `if __name__ == "__main__"` it would start workers in each of them."""
    script = tmp_path / "mine.py"
    script.write_text(
        "from tokentape.flows.workers import each, pool_of\nprint(sorted(each(pool_of('processes', 2), abs, [-1, 2])))\n"
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert ran.stdout == "[(-1, 1), (2, 2)]\n"


JOBS = """
import pathlib, time

def stubborn(n):
    pathlib.Path(f"started-{n}").touch()
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
"""
SCRIPT = """
import signal, sys
from jobs import stubborn
from tokentape.flows.workers import each, gone_soon, pool_of

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with gone_soon(3.0):
        list(each(pool_of(sys.argv[1], 2), stubborn, range(4)))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no process groups there")
@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_ctrl_c_ends_even_jobs_that_do_not_listen_and_leaves_no_process(runner: str, tmp_path: Path) -> None:
    for name, text in (("jobs.py", JOBS), ("script.py", SCRIPT)):
        (tmp_path / name).write_text(text)
    command = [sys.executable, "script.py", runner]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    give_up = time.monotonic() + 60
    while len(list(tmp_path.glob("started-*"))) < 2:
        assert process.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: every process of the group
    process.communicate(timeout=60)
    assert process.returncode != 0
    while time.monotonic() < give_up + 60:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("a process of the group goes on")


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
    write_tiny(Store("tape"))
    for runner, address in (("dask", "tcp://127.0.0.1:1"), ("ray", "127.0.0.1:1")):
        if importlib.util.find_spec(NEEDS[runner]):
            said = tokentape.refused("study", "baselines", "--runner", f"{runner}:{address}").err
            assert f"--runner {runner}:{address}: nothing answers there; start it" in said
        monkeypatch.setitem(__import__("sys").modules, NEEDS[runner], None)
        assert f"pip install 'tokentape[{runner}]'" in tokentape.refused("study", "baselines", "--runner", runner).err

"""Long jobs on threads and processes: all are done, an error or a killed worker ends the rest, nothing stays behind."""

import os
import signal
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path

import pytest

from tokentape.flows.workers import each, pool_of

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


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_every_job_comes_back_with_its_result(runner: str) -> None:
    assert dict(each(pool_of(runner, 2), square, range(5))) == {n: n * n for n in range(5)}


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

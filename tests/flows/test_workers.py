"""Long jobs on threads and processes: all are done, an error or a killed worker ends the rest, nothing stays behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing import active_children

import pytest

from flows.workers import each, pool_of

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


def test_an_error_ends_the_jobs_under_way() -> None:
    with pytest.raises(ValueError, match="job 0 is bad"):
        list(each(pool_of("processes", 2), fail_or_sleep, range(6)))
    assert active_children() == []


def test_a_consumer_that_stops_ends_the_jobs_too() -> None:
    made = each(pool_of("processes", 1), square, range(50))
    next(made)
    made.close()
    assert active_children() == []


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_a_killed_worker_is_said_in_one_line() -> None:
    with pytest.raises(ChildProcessError, match="use --workers 1"):
        list(each(pool_of("processes", 1), die, range(2)))


def test_an_unknown_runner_is_named_with_its_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'threads'"):
        pool_of("thread", 1)

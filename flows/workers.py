"""Threads and processes that work through jobs: the same results from either."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait as wait_for
from threading import Thread
from typing import TypeVar

from flows.names import unknown

Job, Result = TypeVar("Job"), TypeVar("Result")
# A wait without end would not see Ctrl-C: polars has the system resume it (SA_RESTART).
WAKE_S = 0.5


def _leave(*told: object) -> None:
    """Ends the job in hand, which removes what it was writing; a second call ends the process there and then."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(1)


def _in_worker() -> None:
    """Ctrl-C is the parent's, which then ends the worker; what the worker was writing is removed on the way out.

    It ends too when the process that started it is gone, even killed in a way that no one can answer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    Thread(target=end, daemon=True).start()


RUNNERS: dict[str, Callable[[int], Executor]] = {
    "threads": ThreadPoolExecutor,  # kernels release the interpreter's lock
    "processes": partial(ProcessPoolExecutor, mp_context=get_context("spawn"), initializer=_in_worker),
}


def pool_of(runner: str, workers: int | None) -> Executor:
    """A pool of `workers` (the number of cores). Raises ValueError with the nearest name for an unknown runner."""
    if runner not in RUNNERS:
        raise unknown("runner", runner, RUNNERS)
    return RUNNERS[runner](workers or os.cpu_count() or 1)


def each(pool: Executor, work: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[Job, Result]]:
    """Long jobs and what came of them, as they finish; each writes its own files.

    Ctrl-C or an error ends processes in the middle of their job, and threads after it. Raises ChildProcessError where a worker
    was killed.
    """
    running = {pool.submit(work, job): job for job in jobs}
    try:
        while running:
            done, _ = wait(running, WAKE_S, FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()
    except BrokenProcessPool as error:
        raise ChildProcessError("a worker was killed, most likely for memory; use --workers 1") from error
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in active_children():
            while child.is_alive():  # the first call may end no more than the job in hand
                child.terminate()
                child.join(WAKE_S)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

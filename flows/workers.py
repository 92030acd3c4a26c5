"""Threads and processes that work through jobs: the same results from either."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as wait_for
from threading import Thread
from typing import Any

from flows.names import unknown


def _end_with_parent() -> None:
    """In a worker: it ends when the process that started it is gone, even killed in a way that no one can answer."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    Thread(target=wait, daemon=True).start()


RUNNERS: dict[str, Callable[[int], Executor]] = {
    "threads": ThreadPoolExecutor,  # kernels release the interpreter's lock
    "processes": partial(ProcessPoolExecutor, mp_context=get_context("spawn"), initializer=_end_with_parent),
}


def pool_of(runner: str, workers: int | None) -> Executor:
    """A pool of `workers` (the number of cores). Raises ValueError with the nearest name for an unknown runner."""
    if runner not in RUNNERS:
        raise unknown("runner", runner, RUNNERS)
    return RUNNERS[runner](workers or os.cpu_count() or 1)


def each(pool: Executor, work: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Jobs and what came of them, as they finish. Ctrl-C or an error stops after those in hand."""
    running = {pool.submit(work, job): job for job in jobs}
    try:
        for done in as_completed(running):
            yield running[done], done.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

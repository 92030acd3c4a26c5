"""Runners that work through jobs, threads, processes, Dask and Ray: the same results from any.

Each is an `Executor` of concurrent.futures. Jobs read tapes from the store and write their results to it, and so need no disk in
common with what gives them out but the store.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait as wait_for
from queue import Empty, SimpleQueue
from threading import Event, Thread
from types import ModuleType
from typing import Any, TypeVar, cast

from tokentape.flows.memory import keep_memory
from tokentape.policies.names import refuse_unknown

Job = TypeVar("Job")
Result = TypeVar("Result")
# A wait without end would not see Ctrl-C: polars has the system resume it (SA_RESTART).
WAKE_S = 0.5
LEAVE_S = 2.0  # for a worker that is told to end, after which it is killed
GONE_S = 4.0  # for the whole process from Ctrl-C on, see `gone_soon`


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


def _do(work: Callable[[Job], Result], job: Job) -> Result:
    keep_memory()
    return work(job)


class Processes(ProcessPoolExecutor):
    """Workers that do not run the script over that they were started from, which may lack `if __name__ == "__main__"`: they are
    given names and numbers, nothing that a script holds."""

    def submit(self, fn: Callable[..., Any], /, *told: Any, **named: Any) -> Future[Any]:
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            return super().submit(fn, *told, **named)
        finally:
            sys.modules["__main__"] = main


class Telling(Executor):
    """A pool that tells of its jobs, and so is given those too whose results are there."""


def _of_cluster(kind: str) -> Callable[[int, str], Executor]:
    return lambda *how: cast(Executor, getattr(import_module("tokentape.flows.clusters"), kind)(*how))


RUNNERS: dict[str, Callable[[int, str], Executor]] = {
    "threads": lambda workers, _: ThreadPoolExecutor(workers),  # kernels release the interpreter's lock
    "processes": lambda workers, _: Processes(workers, get_context("spawn"), _in_worker),
    "dask": _of_cluster("Dask"),
    "ray": _of_cluster("Ray"),
}
OF_CLUSTERS = ("dask", "ray")  # that take an address


def check_runner(runner: str) -> tuple[str, str]:
    """Its name and address, which is empty where workers are started here. Raises ValueError with the nearest name."""
    name, colon, address = runner.partition(":")
    refuse_unknown("runner", name, RUNNERS)
    if colon and not (address and name in OF_CLUSTERS):
        example = " (dask:tcp://HOST:8786, ray:HOST:6379)" if name in OF_CLUSTERS else f", which {name} has none of"
        raise ValueError(f"--runner {runner}: an address is expected after the colon{example}")
    return name, address


def pool_of(runner: str, workers: int | None) -> Executor:
    """A pool of `workers` (the number of cores), or that of a cluster at an address, which has its own number.

    Raises ValueError with the nearest name for an unknown runner, OSError where nothing answers at an address.
    """
    name, address = check_runner(runner)
    return RUNNERS[name](workers or os.cpu_count() or 1, address)


def each(pool: Executor, work: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[Job, Result]]:
    """Long jobs and what came of them, as they finish; each writes its own files.

    Ctrl-C or an error ends processes in the middle of their job, and threads after it. Raises ChildProcessError where a worker
    was killed.
    """
    with ending(pool):
        yield from as_finished(pool, work, jobs)


def as_finished(pool: Executor, work: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[Job, Result]]:
    """Jobs and what came of them, as they finish, on a pool that goes on to live; see `each`."""
    # Ctrl-C reaches every process of a terminal: workers start with it blocked, or they would answer before they can ignore it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        running = {pool.submit(partial(_do, work), job): job for job in jobs}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    done = SimpleQueue[Future[Result]]()
    for future in running:
        future.add_done_callback(done.put)
    while running:
        with suppress(Empty):
            yield running.pop(future := done.get(timeout=WAKE_S)), future.result()


@contextmanager
def ending(pool: Executor) -> Iterator[None]:
    """Ends the pool: when its work is done, or at once where an error or Ctrl-C comes between. See `each`."""
    try:
        yield
    except BrokenProcessPool as error:
        raise ChildProcessError("a worker was killed, most likely for memory; use --workers 1") from error
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        _end_children()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _end_children() -> None:
    """Tells every child process to end, again where the first call ended no more than the job in hand; kills what goes on."""
    give_up = time.monotonic() + LEAVE_S
    while (children := active_children()) and time.monotonic() < give_up:
        for child in children:
            child.terminate()
        children[0].join(WAKE_S)
    for child in active_children():
        child.kill()
        child.join()


@contextmanager
def gone_soon(seconds: float = GONE_S, code: int = 130) -> Iterator[None]:
    """Within it, Ctrl-C or SIGTERM ends the process in the usual way or, where that takes longer than `seconds`, there and then.

    A thread in a kernel cannot be stopped, and Python answers a signal only between two of its own steps. What such an end
    leaves are files under names that no reader takes. Only for the main thread.
    """
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    left = Event()

    def watch() -> None:
        with os.fdopen(told, "rb", buffering=0) as numbers:
            while (number := numbers.read(1)) and number[0] not in (signal.SIGINT, signal.SIGTERM):
                pass
        if number and not left.wait(seconds):
            for child in active_children():
                child.kill()
            os.write(2, b"tokentape: stopped; what was finished is kept, the same command goes on from here\n")
            os._exit(code)

    before = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        left.set()
        os.close(tell)

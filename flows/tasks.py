"""What Prefect is told of a flow run: its steps and batches of work as task runs, how far it is, what failed and how to repeat.

Only flows/pipeline.py and flows/demo.py use it, so that a study from the command line starts no server.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, cast
from uuid import UUID

from tokentape.flows import prefect_settings  # noqa: F401 isort:skip  before prefect
from prefect import Task, task
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.tasks import exponential_backoff

from tokentape.flows.console import progress_bar, time_left
from tokentape.flows.workers import Telling, pool_of
from tokentape.warehouse.tape import is_disk_full

Result = TypeVar("Result")
MODEL, WAREHOUSE = "uses:model", "uses:warehouse"  # tags of what only so many task runs may use at once
LIMITS = {MODEL: 1, WAREHOUSE: 1}
RETRIES, FIRST_DELAY_S = 3, 2.0  # then twice as long each time
LONGEST_S = 6 * 3600.0  # of a task run, which is then seen timed out
TOLD_EVERY_S = 5.0  # each telling is a write to Prefect's database
FOR_GOOD = (FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError, TimeoutError, ChildProcessError)


def may_pass(_task: Any, _run: Any, state: Any) -> bool:
    """Whether it can help to try again: reading and writing failed in a way that passes; never on bad input."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, OSError) and not isinstance(error, (ValueError, *FOR_GOOD)) and not is_disk_full(error)


def _task(
    work: Callable[[], Result], name: str, tags: Sequence[str], key: str | None, is_there: bool, limit_s: float | None
) -> Task[[], Result]:
    """key: a hash of all that decides what comes out. is_there: the store holds that; where it does not, what Prefect has kept is
    not taken."""
    kept: dict[str, Any] = {"cache_key_fn": lambda *_: key, "persist_result": True, "refresh_cache": not is_there} if key else {}
    return task(
        name="step",
        task_run_name=lambda: name,
        tags=tags,
        retries=RETRIES,
        retry_delay_seconds=exponential_backoff(FIRST_DELAY_S),
        retry_jitter_factor=0.5,
        retry_condition_fn=may_pass,
        timeout_seconds=limit_s,
        **kept,
    )(lambda: work())


def step(name: str, work: Callable[[], Result], *tags: str, key: str | None = None, is_there: bool = False) -> Result:
    """What `work` returns, as a task run of the flow run; see `_task`."""
    return _task(work, name, tags, key, is_there, LONGEST_S)()


class TaskPool(ThreadPoolExecutor, Telling):
    """A pool whose jobs are task runs, named by their text, each in a thread that waits for it. A job may have `tags`, `key` and
    `is_there`; see `_task`."""

    def __init__(self, pool: Executor) -> None:
        super().__init__(getattr(pool, "_max_workers", os.cpu_count()))
        self.pool = pool

    def submit(self, work: Callable[..., Any], job: Any, /) -> Future[Any]:  # type: ignore[override]
        key, is_there = getattr(job, "key", None), getattr(job, "is_there", False)
        told = (str(job), getattr(job, "tags", ()), key if isinstance(key, str) else None, is_there)
        one = _task(partial(self._wait, work, job), *told, limit_s=None)  # a thread's is `_wait`'s
        return super().submit(copy_context().run, one)  # of the flow run

    def _wait(self, work: Callable[..., Any], job: Any) -> Any:
        running = self.pool.submit(work, job)
        try:
            return running.result(LONGEST_S)
        except TimeoutError as error:
            raise TimeoutError(f"{job}: took longer than {LONGEST_S / 3600:g} hours") from error

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.pool.shutdown(wait, cancel_futures=cancel_futures)
        super().shutdown(wait, cancel_futures=cancel_futures)


def task_pool(runner: str, workers: int | None) -> Executor:
    """`pool_of`, its jobs as task runs."""
    return TaskPool(pool_of(runner, workers))


@contextmanager
def told_progress(label: str) -> Iterator[Callable[..., None]]:
    """`progress_bar`, and an artifact of the flow run beside it, with the time left."""
    key = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")  # as an artifact's has to be
    artifact, last = cast(UUID, create_progress_artifact(0.0, key=key, description=label)), [0.0]
    left = time_left()
    with progress_bar(label) as show:

        def tell(done: float, total: float | None, text: str = "") -> None:
            show(done, total, text)
            told = ", ".join(filter(None, (label, left(done, total))))
            if total and (done >= total or time.monotonic() - last[0] > TOLD_EVERY_S):
                last[0] = time.monotonic()
                update_progress_artifact(artifact, 100.0 * done / total, description=told)

        yield tell


@contextmanager
def noted(command: str) -> Iterator[None]:
    """A failure inside is an artifact of the flow run: its reason, and the command that repeats the step."""
    try:
        yield
    except Exception as error:
        text = f"## Failed\n\n{error}\n\nRepeat this step:\n\n```\n{command}\n```\n"
        create_markdown_artifact(text, key="failure", description=f"{type(error).__name__}: {error}")
        raise

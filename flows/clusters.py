"""Dask and Ray as pools: on this machine, or a cluster at an address. A job whose worker was killed is given to another one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from typing import Any

ANSWER_S = 10  # seconds in which a cluster has to answer
TRIES = 3  # of a job whose worker was killed


class Dask(Executor):
    """Workers of one thread each, or those of the scheduler at `address`."""

    def __init__(self, workers: int, address: str) -> None:
        from distributed import Client, LocalCluster

        self._open = ExitStack()
        if address:
            try:
                client = Client(address, timeout=ANSWER_S, set_as_default=False)
            except (OSError, ValueError) as error:
                raise OSError(f"--runner dask:{address}: no scheduler answers there; `dask scheduler` starts one") from error
        else:
            own = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0}
            client = Client(self._open.enter_context(LocalCluster(**own)), set_as_default=False)
        self._open.enter_context(client)
        self._max_workers = max(1, sum(client.nthreads().values()))
        self._executor = client.get_executor(pure=False, retries=TRIES)

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        made: Future[Any] = self._executor.submit(work, *args, **options)
        return made

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait=wait and not cancel_futures)
        self._open.close()


class Ray(Executor):
    """Workers on this machine, or those of the cluster whose head is at `address`."""

    def __init__(self, workers: int, address: str) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        how: dict[str, Any] = {"address": address} if address else {"num_cpus": workers, "include_dashboard": False}
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **how)
        except (OSError, ValueError, RuntimeError) as error:
            raise OSError(f"--runner ray:{address}: no cluster answers there; `ray start --head` starts one") from error
        self._max_workers = max(1, int(ray.cluster_resources().get("CPU", workers)))
        self._ray, self._call = ray, ray.remote(max_retries=TRIES)(_call)

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        made: Future[Any] = self._call.remote(work, args, options).future()
        return made

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._ray.shutdown()


def _call(work: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return work(*args, **options)

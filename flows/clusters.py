"""Dask and Ray as pools: on this machine, or a cluster at an address. A job whose worker was killed is given to another one."""

import logging
import os
import socket
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from typing import Any

ANSWER_S = 10  # seconds in which a cluster has to answer
# Of workers: one thread each, and none of what Dask watches its processes with fifty to a hundred times a second.
SETTINGS = {
    "distributed.nanny.pre-spawn-environ": dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), 1),
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.tick.interval": "1s",
}
TRIES = 3  # of a job whose worker was killed


class Dask(Executor):
    """Workers of one thread each, or those of the scheduler at `address`."""

    def __init__(self, workers: int, address: str) -> None:
        import dask
        from distributed import Client, LocalCluster

        self._open = ExitStack()
        if address:
            _reach("dask", address, "dask scheduler")
            client = Client(address, timeout=ANSWER_S, set_as_default=False)
        else:
            own: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": ":0", "memory_limit": 0}
            own["silence_logs"] = logging.CRITICAL  # a job that fails for good is an error here
            with dask.config.set(SETTINGS):
                client = Client(self._open.enter_context(LocalCluster(**own)), set_as_default=False)
        self._open.enter_context(client)
        self._max_workers = max(1, sum(client.nthreads().values()))
        self._executor = client.get_executor(pure=False)

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        made: Future[Any] = self._executor.submit(work, *args, **options)
        return made

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait=wait and not cancel_futures)
        if wait:
            self._open.close()


class Ray(Executor):
    """Workers on this machine, or those of the cluster whose head is at `address`."""

    def __init__(self, workers: int, address: str) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        if address:
            _reach("ray", address, "ray start --head")
        how: dict[str, Any] = {"address": address} if address else {"num_cpus": workers, "include_dashboard": False}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **how)
        self._max_workers = max(1, int(ray.cluster_resources().get("CPU", workers)))
        self._ray, self._call = ray, ray.remote(max_retries=TRIES)(_call)

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        made, running = Future[Any](), self._call.remote(work, args, options).future()

        def finish(done: Future[Any]) -> None:
            if error := done.exception():
                made.set_exception(getattr(error, "cause", None) or error)  # the job's own, without the worker's traceback
            else:
                made.set_result(done.result())

        running.add_done_callback(finish)
        return made

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if wait or cancel_futures:
            self._ray.shutdown()


def _call(work: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return work(*args, **options)


def _reach(runner: str, address: str, start: str) -> None:
    """Raises OSError where nothing answers at HOST:PORT, which the engines themselves notice after minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), ANSWER_S).close()
    except (OSError, ValueError) as error:
        raise OSError(f"--runner {runner}:{address}: nothing answers there; start it on that machine with `{start}`") from error

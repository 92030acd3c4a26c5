"""What a study's runs cost beside their kernels, and what two workers gain on one: `python -m bench.runners [RUNNER...]`.

CPU seconds are of this process and those that it started, and of N and MORE x N runs, so that what a worker or a tape costs once
falls away; those of kernels are counted where they run. All take turns, since others may use the machine: medians of ratios.

`python -m bench.runners --runs 10000 dask` is the long check: so many runs, of some milliseconds each, on two workers, one of
which is killed after a third and one after two thirds of them, against the same on threads, byte by byte. `--s3` has stores on a
local S3 server, in a process of its own that is not counted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import ExitStack, suppress
from typing import Any
from unittest import mock

import psutil  # type: ignore[import-untyped]

from bench.object_store import s3_server
from tokentape.capture.synthetic import profiles
from tokentape.capture.synthetic.tape import SynthesisSettings, synthesize
from tokentape.flows import grid
from tokentape.flows.study import Study
from tokentape.flows.workers import pool_of
from tokentape.replay import experts
from tokentape.warehouse import models
from tokentape.warehouse.tape import Store

N, MORE, TURNS = 32, 4, 5  # runs of about 0.1 s
FIELDS: dict[str, Any] = {"question": "?", "scopes": ("global",), "hardware": ("phone-lpddr5x-ufs4",)}


def sized(name: str, n: int, first: int) -> Study:
    """`n` replays that no other has, by their capacities of the 1,024 experts."""
    sizes = tuple(f"{100 + 0.01 * (first + i):g} experts" for i in range(n))
    return Study.model_validate(FIELDS | {"name": name, "capacities": sizes, "policies": ({"name": "lru"},)})


def family() -> list[psutil.Process]:
    """This process and its workers."""
    found = [me := psutil.Process()]
    for process in me.children(recursive=True):
        with suppress(psutil.Error):
            found += [process] if "spawn_main" in " ".join(process.cmdline()) else []
    return found


def cpu_s() -> dict[int, float]:
    """CPU seconds by process, of this one and its children."""
    used = {}
    for process in family():
        with suppress(psutil.Error):
            used[process.pid] = sum(process.cpu_times()[:2])
    return used


def timed(work: Callable[[Any], Any], job: Any) -> tuple[Any, float]:
    """What comes of a job, and the CPU seconds of its kernels."""
    took, replay = [0.0], experts.replay

    def measured(*given: Any) -> Any:
        began = time.thread_time()
        made = replay(*given)
        took[0] += time.thread_time() - began
        return made

    with mock.patch.object(experts, "replay", measured):
        return work(job), took[0]


class Timed(Executor):
    """A pool that stays open, and counts what kernels take."""

    def __init__(self, runner: str, workers: int) -> None:
        self.pool, self.kernels_s = pool_of(runner, workers), 0.0

    def submit(self, work: Callable[..., Any], job: Any, /) -> Future[Any]:  # type: ignore[override]
        made = Future[Any]()

        def finish(done: Future[Any]) -> None:
            if error := done.exception():
                made.set_exception(error)
                return
            result, took = done.result()
            self.kernels_s += took
            made.set_result(result)

        self.pool.submit(timed, work, job).add_done_callback(finish)
        return made

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass


def bench(store: Store, runner: str) -> dict[str, Any]:
    """Of one runner: CPU outside the kernels as a share of theirs on one worker, and the wall time of one over that of two."""
    turn, first, took = ((1, N), (2, N), (1, MORE * N), (2, MORE * N)), 0, list[tuple[float, float, float]]()
    for workers, n in turn * TURNS:
        pool, began, used = Timed(runner, workers), time.perf_counter(), cpu_s()
        assert grid.run(sized(runner, n, first), store, runner, workers, pools=lambda *_, pool=pool: pool).n_run == n
        spent = sum(now - used.get(pid, 0.0) for pid, now in cpu_s().items())
        took.append((time.perf_counter() - began, spent - pool.kernels_s, pool.kernels_s))
        pool.pool.shutdown()
        first += n
    kernels_s, shares, ratios = [], [], []
    for i in range(0, len(took), len(turn)):
        one, two = ([b - a for a, b in zip(took[i + at], took[i + at + 2], strict=True)] for at in (0, 1))
        kernels_s.append(one[2] / (MORE - 1) / N)
        shares.append(one[1] / one[2])
        ratios.append(one[0] / two[0])
    return {
        f"{runner}_kernel_s": round(statistics.median(kernels_s), 4),
        f"{runner}_overhead_frac": round(statistics.median(shares), 3),
        f"{runner}_speedup_2": round(statistics.median(ratios), 2),
    }


def check(root: str, runner: str, n: int) -> dict[str, Any]:
    """`n` runs on two workers of the runner, two of them killed on the way, against threads."""
    told: dict[str, Any] = {"runner": runner, "runs": n}
    digests = []
    for name in ("threads", runner):
        store, kills = drawn(f"{root}/{name}", 4, 32), [n // 3, 2 * n // 3] if name == runner else []
        pool, began, used = Timed(name, 2), time.perf_counter(), cpu_s()
        seen = dict(used)

        def progress(done: int, total: int, kills: list[int] = kills, seen: dict[int, float] = seen) -> None:
            if kills and done >= kills[0]:
                seen |= cpu_s()  # of what is killed too
                family()[1].kill()
                kills.pop(0)

        report = grid.run(sized("many", n, 0), store, name, 2, progress, lambda *_, pool=pool: pool)
        spent = sum(now - used.get(pid, 0.0) for pid, now in (seen | cpu_s()).items())
        told[name] = {"run": report.n_run, "wall_s": round(time.perf_counter() - began, 1), "kernels_s": round(pool.kernels_s, 1)}
        told[name] |= {"cpu_s": round(spent, 1), "killed": 2 * (name == runner) - len(kills)}
        pool.pool.shutdown()
        files = [path for path in store.fs.find(store.root) if path.endswith(".parquet")]
        digests.append({p.removeprefix(store.root): hashlib.sha256(store.fs.cat_file(p)).digest() for p in files})
        told[name]["files"] = len(files)
    return told | {"is_same_bytes": digests[0] == digests[1]}


def drawn(uri: str, requests: int = 40, tokens: int = 720) -> Store:
    """A store with a tape of so many requests, each of so many tokens twice; a replay of it takes about 0.1 s unless told."""
    store, model = Store(uri), models.load("OLMoE-1B-7B")
    asked = SynthesisSettings(requests=requests, prompt=tokens, output=tokens, scores=False)
    of = profiles.of_routing("popular", model.name, model.geometry, None, model.config)
    synthesize(model.name, model.geometry, asked, store, drawn=of)
    return store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runners", nargs="*", default=["threads", "processes", "dask"])
    parser.add_argument("--runs", type=int, help="the long check instead, of so many runs")
    parser.add_argument("--s3", action="store_true", help="stores on a local S3 server")
    asked, report = parser.parse_args(), dict[str, Any]()
    with ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory())
        if asked.s3:
            os.environ |= stack.enter_context(s3_server())
            Store(root := "s3://runners").fs.mkdir("runners")
        if asked.runs:
            report = {runner: check(f"{root}/{runner}", runner, asked.runs) for runner in asked.runners}
        else:
            store = drawn(f"{root}/store")
            for runner in asked.runners:
                report |= bench(store, runner)
    print(json.dumps(report))


if __name__ == "__main__":
    main()

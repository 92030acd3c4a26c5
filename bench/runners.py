"""What a study's runs cost beside their kernels, and what two workers gain on one: `python -m bench.runners [RUNNER...]`.

CPU seconds are of this process and its children, and of N and 3 N runs, so that what a worker costs once (imports) falls away.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from typing import Any
from unittest import mock

from tokentape.capture.synthetic import profiles
from tokentape.capture.synthetic.tape import SynthesisSettings, synthesize
from tokentape.flows import grid
from tokentape.flows.study import Study
from tokentape.replay import experts
from tokentape.warehouse import models
from tokentape.warehouse.tape import Store

N, MORE = 40, 3  # runs of about 0.1 s
FIELDS: dict[str, Any] = {"question": "?", "scopes": ("global",), "hardware": ("phone-lpddr5x-ufs4",)}


def sized(name: str, n: int, first: int) -> Study:
    """`n` replays that no other has, by their capacities of the 1,024 experts."""
    sizes = tuple(f"{100 + first + i} experts" for i in range(n))
    return Study.model_validate(FIELDS | {"name": name, "capacities": sizes, "policies": ({"name": "lru"},)})


def cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(of.ru_utime + of.ru_stime for of in used)


def kernels_s(store: Store, name: str, first: int) -> float:
    """CPU seconds of the kernels of N runs, in a thread as a worker's."""
    took, replay = list[float](), experts.replay

    def timed(*given: Any) -> Any:
        began = time.thread_time()
        made = replay(*given)
        took.append(time.thread_time() - began)
        return made

    with mock.patch.object(experts, "replay", timed):
        grid.run(sized(name, N, first), store, "threads", 1)
    return sum(took)


def bench(store: Store, runner: str) -> dict[str, Any]:
    """Of one runner: CPU outside the kernels as a share of theirs, and the wall time of one worker over that of two."""
    first, told = 0, dict[tuple[int, int], tuple[float, float]]()
    for workers, n in ((1, N), (1, MORE * N), (2, N), (2, MORE * N)):
        began, used = time.perf_counter(), cpu_s()
        assert grid.run(sized(runner, n, first), store, runner, workers).n_run == n
        told[workers, n] = time.perf_counter() - began, cpu_s() - used
        first += n
    kernel_s = kernels_s(store, runner, first) / N
    per_run = (told[1, MORE * N][1] - told[1, N][1]) / (MORE - 1) / N
    wall = {workers: told[workers, MORE * N][0] - told[workers, N][0] for workers in (1, 2)}
    return {
        f"{runner}_kernel_s": round(kernel_s, 4),
        f"{runner}_overhead_frac": round(per_run / kernel_s - 1.0, 3),
        f"{runner}_speedup_2": round(wall[1] / wall[2], 2),
    }


def main() -> None:
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        model = models.load("OLMoE-1B-7B")
        asked = SynthesisSettings(requests=40, prompt=256, output=256, scores=False)
        synthesize(
            model.name, model.geometry, asked, store, drawn=profiles.of_routing("popular", model.name, model.geometry, None)
        )
        for runner in sys.argv[1:] or ["threads", "processes", "dask"]:
            report |= bench(store, runner)
    print(json.dumps(report))


if __name__ == "__main__":
    main()

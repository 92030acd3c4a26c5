"""A serving engine under one load over several seeds: metrics with bands, and shares of requests within service levels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tokentape.hw.work import Floats
from tokentape.policies.serving import AnyScheduler, Disaggregated, Scheduler
from tokentape.replay.result import Metric
from tokentape.replay.serving.client import Client
from tokentape.replay.serving.iteration import IterationCosts
from tokentape.replay.serving.memory import BLOCK_TOKENS
from tokentape.replay.serving.metrics import Load, ServiceLevel, load_of, metrics, over_runs, saturation_rate_per_s
from tokentape.replay.serving.run import Limits, ServingRun, serve, serve_disaggregated
from tokentape.replay.serving.workload import Requests
from tokentape.replay.system.experts import held
from tokentape.replay.system.recorded import Recorded

# Compared with another load, seed by seed.
COMPARED = ("ttft_mean_s", "tbt_mean_s", "tbt_p99_s", "e2e_mean_s", "energy_j_per_token", "expert_bytes")
CHANGE = "_change_frac"
# What can be said of two engines together; times between tokens are the decode engine's.
OF_PAIR = ("n_requests", "ttft_mean_s", "ttft_p99_s", "e2e_mean_s", "tbt_mean_s", "tbt_p99_s")


@dataclass(frozen=True, eq=False)
class Engine:
    """What the runs of a load share. tape: whose experts the requests choose, where the costs are of events. outside: why
    results are extrapolated. client: where times are those of one; tokens_of_text: as Model has it, of a client's text."""

    cost: IterationCosts
    limits: Limits
    length_scale: float
    tape: Recorded | None
    outside: tuple[str, ...]
    client: Client | None = None
    tokens_of_text: float = 1.0

    def serve(self, requests: Requests, scheduler: Scheduler, record: bool = False, seed: int = 0) -> ServingRun:
        """One run; with a tape all its experts are held."""
        slots = held(self.tape, requests, self.cost) if self.tape else None
        return serve(requests, scheduler, self.cost, self.limits, record=record, seed=seed, slots=slots, client=self.client)


@dataclass(frozen=True, eq=False)
class Served:
    """A scheduler on an engine, and the requests of each seed."""

    scheduler: AnyScheduler
    engine: Engine
    requests: Callable[[int], Requests]

    def run(self, seed: int, *, record: bool = False) -> ServingRun:
        """One run. Raises ValueError for a scheduler of two engines."""
        if isinstance(self.scheduler, Disaggregated):
            raise ValueError("disaggregated is two engines in series; choose a scheduler of one engine")
        return self.engine.serve(self.requests(seed), self.scheduler, record, seed)

    def measured(self, seed: int, level: ServiceLevel | None) -> tuple[dict[str, Metric], ServingRun | None, Load | None]:
        """Metrics of one run; the run itself where it is of one engine; how loaded that is, or the fuller of two."""
        if isinstance(self.scheduler, Disaggregated):
            sent, engine = self.requests(seed), self.engine
            given = engine.client.handed_over(sent) if engine.client else sent
            pair = serve_disaggregated(given, self.scheduler, engine.cost, engine.cost, engine.limits, seed)
            loads, last = [load_of(run) for run in (pair.prefill, pair.decode) if run], pair.decode or pair.prefill
            both = replace(pair.prefill, requests=sent, finish_s=pair.finish_s, gaps=last.gaps, gap_sums=last.gap_sums)
            told = metrics(both)
            found = {name: told[name] for name in OF_PAIR}
            return found, None, loads[0] and min(filter(None, loads), key=lambda load: load.distance_frac)
        run = self.run(seed)
        return metrics(run, level), run, load_of(run)

    def saturation_per_s(self) -> float | None:
        """Requests per second that leave the engine when all of a run's are there at once; None where that is the load itself."""
        requests = self.requests(0)
        if requests.rate_per_s == float("inf") or isinstance(self.scheduler, Disaggregated):
            return None
        return saturation_rate_per_s(self.engine.serve(requests.at_once(), self.scheduler))


@dataclass(frozen=True, eq=False)
class Measured:
    """Metrics over seeds; outside: why they are extrapolated. grid: share that meets (TTFT limit, TBT limit)."""

    metrics: dict[str, Metric]
    outside: tuple[str, ...]
    ttft_limits_s: Floats = field(default_factory=lambda: np.zeros(0))
    tbt_limits_s: Floats = field(default_factory=lambda: np.zeros(0))
    grid: Floats = field(default_factory=lambda: np.zeros((0, 0)))


def measure(
    of: Served,
    n_seeds: int,
    level: ServiceLevel | None = None,
    against: Served | None = None,
    limits: tuple[Sequence[float], Sequence[float]] = ((), ()),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """Serves every seed. against: the same metrics as changes from another load, on equal seeds. limits: factors of the level at
    which attainment is read. Raises ValueError for a load that cannot be served, and for no seeds."""
    ttft, tbt = (np.array(limits[i]) * (0.0 if level is None else (level.ttft_s, level.tbt_s)[i]) for i in range(2))
    saturation_per_s, limited = of.saturation_per_s(), of.engine.limits
    found, grids, loads = [], [], []
    for seed in range(n_seeds):
        one, run, load = of.measured(seed, level)
        if against:
            other, _, _ = against.measured(seed, level)
            one |= {f"{n}{CHANGE}": Metric(one[n].value / other[n].value - 1.0, "1", denominator="of before") for n in COMPARED}
        if limited.kv_blocks is not None:
            n_blocks = float(limited.kv_blocks * limited.n_engines)
            one |= {"kv_blocks": Metric(n_blocks, "1", denominator=f"of {BLOCK_TOKENS} tokens")}
        if of.engine.cost.held_frac < 1.0:
            one |= {"experts_held_frac": Metric(of.engine.cost.held_frac, "1", denominator="of the routed experts")}
        if run is not None and saturation_per_s:
            leaves = Load(run.requests.rate_per_s, saturation_per_s)
            load = load if leaves.is_saturated else None  # a short run leaves slowly, too, where nothing waits
            of_which = "rate at which requests leave that come at once"
            one["saturation_per_s"] = Metric(leaves.service_per_s, "1/s")
            one["saturation_distance_frac"] = Metric(leaves.distance_frac, "1", denominator=of_which)
        found.append(one)
        loads.append(load)
        if ttft.size and run is not None:
            in_time = (run.ttft_s <= ttft[:, None]).astype(np.float64)
            grids.append(in_time @ (run.largest_gap_s[:, None] <= tbt).astype(np.float64) / len(run.requests))
        progress(seed + 1, n_seeds)
    grid = np.median(grids, axis=0) if grids else np.zeros((0, 0))
    return Measured(over_runs(found), (*of.engine.outside, *_saturated(loads)), ttft[: len(grid)], tbt, grid)


def _saturated(loads: Sequence[Load | None]) -> tuple[str, ...]:
    """The median run's words where most runs are saturated."""
    saturated = sorted((load for load in loads if load is not None and load.is_saturated), key=lambda load: load.distance_frac)
    return (str(saturated[len(saturated) // 2]),) if 2 * len(saturated) > len(loads) else ()

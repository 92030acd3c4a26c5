"""What a serving run is judged by (Layered Prefill section 5): latencies, service levels, fairness, loads, energy, queues; how
much an engine can take: its saturation, and the highest rate that still meets a service level.

TBT is the time between two tokens of a request, pooled over all requests; tokens of one draft-and-verify round share its time
evenly, and the longest wait of a request is for a whole round. E2E runs from arrival to the last token. Over several
seeds a metric is the median with its 5 to 95 % band: near saturation a single run is off by tens of percent.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.work import Floats
from tokentape.replay.result import Metric
from tokentape.replay.serving.run import ServingRun

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class ServiceLevel:
    """A request attains it if its first token comes within ttft_s and none of its gaps is above tbt_s. frac: share that must."""

    ttft_s: float
    tbt_s: float
    frac: float = 0.9

    def __post_init__(self) -> None:
        if not (self.ttft_s > 0 and self.tbt_s > 0 and 0 < self.frac <= 1):
            raise ValueError(f"service level: {self} needs limits above 0 and a share in (0, 1]")


@dataclass(frozen=True)
class Load:
    """arrival_per_s against service_per_s, the rate at which waiting requests were started while any waited."""

    arrival_per_s: float
    service_per_s: float

    @property
    def is_saturated(self) -> bool:
        """More arrive than are served: the queue grows for as long as they do."""
        return self.arrival_per_s > self.service_per_s

    @property
    def distance_frac(self) -> float:
        """How far the rate lies below saturation, as a share of it; negative beyond."""
        return 1.0 - self.arrival_per_s / self.service_per_s

    def __str__(self) -> str:
        """Of one that is saturated."""
        return f"the queue grows without bound: {self.arrival_per_s:.3g} requests/s arrive, {self.service_per_s:.3g} are started"


def load_of(run: ServingRun) -> Load | None:
    """How loaded the engine was; None where all requests arrive at once.

    Requests start in order of arrival, so the times in which any of them waits are read off arrivals and starts.
    """
    queued, started = run.queued_s, np.maximum.accumulate(run.started_s)
    if run.requests.arrival_s[-1] == run.requests.arrival_s[0]:
        return None
    begins = np.maximum(queued, np.append(queued[0], started[:-1]))
    waited_s = float(np.maximum(started - begins, 0.0).sum())
    n_waited = int((run.started_s > queued).sum())
    return Load(run.requests.rate_per_s, n_waited / waited_s if waited_s else float("inf"))


def attained(run: ServingRun, level: ServiceLevel) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(n,) whether a request's first token and its gaps are in time."""
    return run.ttft_s <= level.ttft_s, run.largest_gap_s <= level.tbt_s


def jain(run: ServingRun) -> float:
    """Jain's index of the requests' decode rates, (output - 1) / (finish - first token); 1: all alike. NaN without decodes."""
    output = run.requests.n_output_tokens
    decodes = output > 1
    rates = (output[decodes] - 1) / (run.finish_s - run.first_token_s)[decodes]
    return float(rates.sum() ** 2 / (rates.size * (rates**2).sum())) if rates.size else float("nan")


def queue_length(run: ServingRun, at_s: Floats) -> NDArray[np.int64]:
    """(m,) requests that the engine has and has not started, at these times."""
    arrived = np.searchsorted(run.queued_s, at_s, side="right")
    return np.asarray(arrived - np.searchsorted(np.sort(run.started_s), at_s, side="right"), np.int64)


def token_times(run: ServingRun, request: int) -> Floats:
    """(output,) when the tokens of a request came that kept its KV, from a run that recorded its iterations. Raises ValueError
    where drafts were accepted."""
    if run.n_accepted:
        raise ValueError("drafts were accepted; tokens of a round come together and are not recorded")
    ends = np.asarray(run.iterations["start_s"]) + np.asarray(run.iterations["seconds"])
    first = int(np.searchsorted(ends, run.first_token_s[request] * (1 - 1e-12)))
    return np.asarray(ends[first : first + int(run.requests.n_output_tokens[request])], np.float64)


def metrics(run: ServingRun, level: ServiceLevel | None = None) -> dict[str, Metric]:
    """One run's numbers; those of service levels where one is given.

    energy_j_per_token counts prompt and output tokens, as Layered Prefill does; energy_j_per_output_token output alone.
    """
    n, requests = len(run.requests), run.requests
    n_output = int(requests.n_output_tokens.sum())
    joules = run.joules_of
    energy_j = sum(joules.values())
    found = {
        "n_requests": Metric(float(n), "1"),
        "ttft_mean_s": Metric(float(run.ttft_s.mean()), "s"),
        **_percentiles("ttft", np.percentile(run.ttft_s, PERCENTILES)),
        "tbt_mean_s": Metric(run.gap_mean_s, "s"),
        "tbt_std_s": Metric(run.gap_std_s, "s"),
        **_percentiles("tbt", run.gap_percentiles_s(PERCENTILES)),
        "e2e_mean_s": Metric(float(run.e2e_s.mean()), "s"),
        "jain": Metric(jain(run), "1"),
        "expert_bytes": Metric(run.expert_bytes, "B"),
        "expert_bytes_per_request": Metric(run.expert_bytes / n, "B", denominator="requests"),
        "total_energy_j": Metric(energy_j, "J"),
        **{f"energy_{part}_j": Metric(value, "J") for part, value in joules.items()},
        "energy_j_per_token": Metric(
            energy_j / (n_output + int(requests.n_prompt_tokens.sum())), "J", denominator="prompt and output tokens"
        ),
        "energy_j_per_output_token": Metric(energy_j / n_output, "J", denominator="output tokens"),
        "decode_batch_mean": Metric(run.n_decoded / run.n_iterations, "1", denominator="iterations"),
        "output_tokens_per_s": Metric(n_output / run.wall_s, "1/s"),
        "queue_mean": Metric(float((run.started_s - run.queued_s).sum()) / run.wall_s, "1"),
        "queue_max": Metric(float(queue_length(run, run.queued_s).max()), "1"),
        "busy_frac": Metric(run.busy_s / run.wall_s, "1", denominator="wall time"),
        **{
            f"{part}_frac": Metric(seconds / run.busy_s, "1", denominator="busy time") for part, seconds in run.seconds_of.items()
        },
    }
    if run.cost.speculation and run.n_decoded:
        found["accepted_mean"] = Metric(run.n_accepted / run.n_decoded, "1", denominator="rounds of a request")
    if requests.prefix.any():
        hits = float(run.n_cached_tokens.sum() / requests.n_prompt_tokens.sum())
        found["prefix_hit_frac"] = Metric(hits, "1", denominator="prompt tokens")
    if (load := load_of(run)) is not None:
        found["saturation_distance_frac"] = Metric(load.distance_frac, "1", denominator="saturation rate")
    if level is not None:
        in_time, gaps_in_time = attained(run, level)
        both = in_time & gaps_in_time
        found |= {
            "slo_frac": Metric(float(both.mean()), "1", denominator="requests"),
            "slo_ttft_frac": Metric(float(in_time.mean()), "1", denominator="requests"),
            "slo_tbt_frac": Metric(float(gaps_in_time.mean()), "1", denominator="requests"),
            "goodput_per_s": Metric(float(both.sum()) / run.wall_s, "1/s"),
        }
    return found


def _percentiles(name: str, seconds: Floats) -> dict[str, Metric]:
    return {f"{name}_p{q}_s": Metric(float(value), "s") for q, value in zip(PERCENTILES, seconds, strict=True)}


def over_runs(runs: Sequence[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Median of every metric over the runs, which differ in their seed, that have it; low, high: 5th and 95th percentile.

    Raises ValueError where there are no runs.
    """
    if not runs:
        raise ValueError("no seeds; give at least one")
    found = {}
    for name in dict.fromkeys(name for run in runs for name in run):
        told = [run[name] for run in runs if name in run and math.isfinite(run[name].value)]
        if told:
            low, value, high = np.percentile([metric.value for metric in told], (5, 50, 95))
            found[name] = Metric(float(value), told[0].unit, float(low), float(high), told[0].denominator)
    return found


DOUBLINGS = 40


@dataclass(frozen=True)
class Capacity:
    """rate_per_s: the highest rate found to meet the level; attained_frac: the share of requests that met it there (median);
    first_missed_per_s: the lowest rate found to miss it; infinite where none was."""

    rate_per_s: float
    attained_frac: float
    first_missed_per_s: float


def saturation_rate_per_s(run_at_once: ServingRun) -> float:
    """Requests per second that leave an engine whose requests were all there at the start (Requests.at_once)."""
    return len(run_at_once.requests) / run_at_once.wall_s


def attained_frac(
    serve_at: Callable[[float, int], ServingRun], rate_per_s: float, seeds: Iterable[int], level: ServiceLevel
) -> float:
    """Median over the seeds of the share of requests that meet both halves of a service level."""
    shares = []
    for seed in seeds:
        in_time, gaps_in_time = attained(serve_at(rate_per_s, seed), level)
        shares.append(float((in_time & gaps_in_time).mean()))
    return float(np.median(shares))


def capacity(
    serve_at: Callable[[float, int], ServingRun],
    level: ServiceLevel,
    seeds: Iterable[int],
    precision_frac: float = 0.01,
) -> Capacity:
    """Highest rate at which level.frac of the requests meet the level, by doubling and halving from 1 request/s, and bisection.

    serve_at: a run at a rate and a seed. Takes attainment to fall with the rate, as it does but for noise between seeds. A rate
    of 0 means that even 2^-40 requests/s miss it.
    """
    numbers = tuple(seeds)
    met, best, missed = 0.0, float("nan"), float("inf")

    def tried(rate: float) -> bool:
        """Narrows what is met and missed."""
        nonlocal met, best, missed
        share = attained_frac(serve_at, rate, numbers, level)
        if share >= level.frac:
            met, best = rate, share
        else:
            missed = rate
        return share >= level.frac

    rate, is_met = 1.0, tried(1.0)
    for _ in range(DOUBLINGS):
        rate = rate * 2.0 if is_met else rate / 2.0
        if tried(rate) != is_met:
            break
    while missed - met > precision_frac * met and met > 0.0 and missed < float("inf"):
        tried((met + missed) / 2.0)
    return Capacity(met, best, missed)

"""simulate, capacity: requests through a serving engine, iteration by iteration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tokentape.flows.console import band, note, number, percent, print_metrics, print_table, progress_bar, quantity, say
from tokentape.flows.serving.options import level_of, point_of, serves

if TYPE_CHECKING:
    from tokentape.flows.serving.setup import Point
    from tokentape.replay.serving.measure import Measured
    from tokentape.replay.serving.metrics import ServiceLevel
    from tokentape.warehouse.tape import Store

STUDY = "adhoc"
CONTEXT_TOKENS = 2048  # of the one decode that is told with its band
LEAST_REQUESTS = 20  # of a run at a rate at which ten minutes bring fewer
MOST_REQUESTS = 1_000_000  # of a run; limits that hold there are none


@serves(without="attained")
def simulate(
    ctx: typer.Context, *, slo_ttft: float | None, slo_tbt: float | None, out: Path | None, store: Store, **_: Any
) -> None:
    """Serve requests with a scheduler on a machine, over many seeds: latencies, service levels, expert bytes, energy.

    Medians with their 5 to 95 % band over the seeds: near saturation a single run is off by tens of percent. What lies outside
    the range of the constants is said, and a queue that grows without bound too. A model that does not fit the machine's memory
    is refused; KV gets what weights and activations leave. The rows go to the store as study 'adhoc'.

    tokentape serving simulate --scheduler layered --rate 1.3
    tokentape serving simulate --scheduler chunked --workload sharegpt --rate 4.2 --slo-ttft 5 --slo-tbt 0.125
    tokentape serving simulate --scheduler layered --rate 1.3 --cv 3                      bursts
    tokentape serving simulate --scheduler layered --rate 1.3 --profile layered_prefill   as the paper's server ran
    tokentape serving simulate --scheduler orca --workload requests.csv --rate 2 --arrival trace
    tokentape serving simulate --scheduler chunked --rate 1.3 --verify-nodes 3 --acceptance 0.8 --draft-ms 2
    tokentape serving simulate --engine meta.json --hardware h100 --workload requests.csv --out times.csv
    tokentape serving simulate --scheduler layered --model gpt-oss-20b --param n_max=12 --rate 2.1
    """
    from tokentape.flows.grid import load_trace
    from tokentape.flows.serving.points import request_times, rows_of, served
    from tokentape.flows.serving.setup import COVERAGES, engine_of, paper_coverage
    from tokentape.flows.workers import gone_soon
    from tokentape.hw import serving_fits
    from tokentape.hw.profile import ENDS
    from tokentape.replay.serving.coverage_points import error_sentences
    from tokentape.replay.serving.measure import measure
    from tokentape.warehouse.results import write_together
    from tokentape.warehouse.sql import render

    point = point_of(ctx, default_seeds=40)
    level = level_of(point, slo_ttft, slo_tbt)
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ValueError(f"--out {out}: give a name that ends in .csv or .parquet")
    if out is not None and point.scheduler == "disaggregated":
        raise ValueError(f"--out {out}: disaggregated is two engines in series, and times are told of one; leave it out")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    with gone_soon(), progress_bar(f"simulate {point.scheduler}") as show:
        load = served(store, point)
        measured = measure(load, point.n_seeds, level, progress=show)
    _print(point, measured, level)
    tables = rows_of(STUDY, STUDY, point, measured)
    write_together(store, tables, "serving_points", tables["serving_points"][0]["point_id"])
    if out is not None:
        with gone_soon():
            times = request_times(load, point.n_seeds)
        render(times, out.suffix[1:], out)
        note(f"{out}: {point.n_seeds} seeds")
    if point.coverage not in COVERAGES or point.coverage == "recorded":
        trace = load_trace(store, store.resolve(point.workload if point.coverage == "recorded" else point.coverage))
        paper = paper_coverage(serving_fits.load(point.fit).constants.prefill_correlation)
        say(*error_sentences(trace, paper))
    if not (point.coverage == "recorded" or point.verify_nodes):
        step = [engine_of(store, point, end).cost.decode_step_s(1, CONTEXT_TOKENS) for end in ENDS]
        told = f"{quantity(step[0], 's')} ({band(step[1], step[2], lambda s: quantity(s, 's'))})"
        say(f"one decode at {CONTEXT_TOKENS:,} tokens of context, as `step` has it: {told}")
    for sentence in measured.outside:
        note(f"outside the envelope: {sentence}")


@serves(without="rate requests out")
def capacity(
    ctx: typer.Context, *, slo_ttft: float | None, slo_tbt: float | None, attained: float, store: Store, **_: Any
) -> None:
    """Find the highest rate at which enough requests meet a service level, within 1 %, by doubling and bisection.

    tokentape serving capacity --scheduler chunked
    tokentape serving capacity --scheduler layered --workload sharegpt --slo-ttft 5 --slo-tbt 0.125 --attained 0.95
    """
    from tokentape.flows.serving.points import served
    from tokentape.flows.serving.setup import engine_of
    from tokentape.flows.workers import gone_soon
    from tokentape.replay.serving.metrics import capacity as search
    from tokentape.replay.serving.run import ServingRun
    from tokentape.replay.serving.workload import RUN_S

    point = point_of(ctx, default_seeds=10)
    if point.scheduler == "disaggregated":
        raise ValueError("disaggregated is two engines in series; choose a scheduler of one engine")
    if point.arrival == "at_once":
        which = f"--workload {point.workload}" if ctx.params["arrival"] is None else "--arrival at_once"
        raise ValueError(f"{which} has no rate to search for; choose poisson, gamma or trace")
    level = level_of(point, slo_ttft, slo_tbt)
    if level is None:
        raise ValueError(f"the paper has no limits for {point.model} on {point.workload}; give --slo-ttft and --slo-tbt")
    on, n_served = engine_of(store, point), 0
    with gone_soon(), progress_bar(f"capacity {point.scheduler}") as show:

        def serve_at(rate: float, seed: int) -> ServingRun:
            nonlocal n_served
            n_served += 1
            show(n_served % point.n_seeds, point.n_seeds, f"{rate:.4g} requests/s, {n_served} runs")
            n_requests = max(LEAST_REQUESTS, int(RUN_S * rate))
            if n_requests > MOST_REQUESTS:
                raise ValueError(f"the limits still hold at {rate / 2:g} requests/s, far beyond any engine; give tighter ones")
            chosen = point.model_copy(update={"rate_per_s": rate, "n_requests": n_requests})
            return served(store, chosen, on).run(seed)

        found = search(serve_at, replace(level, frac=attained), range(point.n_seeds))
    columns = ("scheduler", "requests/s that meet both", "of the requests", "requests/s that do not")
    is_met = found.rate_per_s > 0
    row = (number(found.rate_per_s, ".4g"), percent(found.attained_frac), number(found.first_missed_per_s, ".4g"))
    title = (
        f"{level.ttft_s:g} s to the first token, {1e3 * level.tbt_s:g} ms between tokens, for {percent(attained)} of the requests"
    )
    print_table(title, columns, [(point.scheduler, *(row if is_met else ("no rate", "", "")))], numbers=columns[1:])
    for sentence in on.outside:
        note(f"outside the envelope: {sentence}")


def _print(point: Point, measured: Measured, level: ServiceLevel | None) -> None:
    rate = "" if point.rate_per_s is None else f" at {point.rate_per_s:g} requests/s"
    limits = "" if level is None else f"; within limits: {level.ttft_s:g} s, {1e3 * level.tbt_s:g} ms"
    title = (
        f"{point.scheduler}{f' {point.params}' if point.params else ''} on {point.hardware}, {point.model}, "
        f"{point.workload} ({point.arrival_text}){rate}, {point.n_seeds} seed{'s' if point.n_seeds > 1 else ''}{limits}"
    )
    metrics = measured.metrics
    told = metrics if point.n_seeds > 1 else {name: replace(m, low=None, high=None) for name, m in metrics.items()}
    print_metrics(title, told, ("metric", "median", "over seeds", "per"))

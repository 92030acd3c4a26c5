"""simulate, capacity, calibrate serving, import requests: serving engines, iteration by iteration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.options import StoreOption

if TYPE_CHECKING:
    from flows.serving_points import Measured
    from flows.serving_setup import Point
    from replay.serving_metrics import ServiceLevel

STUDY = "adhoc"
SchedulerOption = Annotated[str, typer.Option("--scheduler", help="static, orca, chunked, layered or disaggregated.")]
ParamOption = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        help="A field of the scheduler, NAME=VALUE; repeatable: chunk_tokens=1024; n_max=8, n_lg_rule=fixed, pass_tokens=32768.",
    ),
]
ServedOption = Annotated[str, typer.Option("--model", help="A shipped model (`tokentape models list`) or a config.json.")]
MachineOption = Annotated[str, typer.Option("--hardware", help="A shipped machine or my.toml; all its devices share a layer.")]
FitOption = Annotated[
    str, typer.Option("--fit", help="Constants of the engine: a shipped fit or a file that `calibrate serving` wrote.")
]
WorkloadOption = Annotated[
    str,
    typer.Option(
        "--workload",
        help="sharegpt, arxiv or 30k; a tape (TRACE); requests.csv of arrival_s, n_prompt_tokens, n_output_tokens; prompt-8192.",
    ),
]
ArrivalOption = Annotated[
    str | None,
    typer.Option(
        "--arrival",
        help="poisson; gamma (bursty, see --cv); trace (as recorded, scaled to --rate); at_once. "
        "[default: trace for tapes and files, gamma with --cv, else poisson]",
        show_default=False,
    ),
]
CvOption = Annotated[float, typer.Option("--cv", help="Coefficient of variation of the gaps between arrivals; 1 is Poisson.")]
RequestsOption = Annotated[
    int | None,
    typer.Option("--requests", help="Requests of a run. [default: 600 seconds of them]", show_default=False, min=1),
]
SeedsOption = Annotated[int, typer.Option("--seeds", help="Runs that differ in their seed; bands are over them.", min=1)]
TtftOption = Annotated[
    float | None,
    typer.Option("--slo-ttft", help="Seconds to the first token. [default: the paper's for its models]", show_default=False),
]
TbtOption = Annotated[
    float | None,
    typer.Option("--slo-tbt", help="Seconds of a request's longest gap between tokens.", show_default=False),
]
BlocksOption = Annotated[
    int | None, typer.Option("--kv-blocks", help="KV memory in blocks of 16 tokens. [default: unbounded]", show_default=False)
]
SeqsOption = Annotated[int, typer.Option("--max-seqs", help="Requests that decode or are in prefill together.", min=1)]
CoverageOption = Annotated[
    str,
    typer.Option(
        "--coverage",
        help="Experts that a batch touches: paper_table, independent, full, recorded (exact; the workload is a tape with "
        "routing), or a TRACE whose curves are taken.",
    ),
]
WeightsOption = Annotated[str, typer.Option("--weights", help="Of the experts: bf16, fp16, int8-g32, int4, mxfp4.")]
PrefixOption = Annotated[bool, typer.Option("--prefix-cache", help="Skip prompt prefixes that the trace's blocks repeat.")]


def simulate(
    scheduler: SchedulerOption = "layered",
    rate: Annotated[float | None, typer.Option("--rate", help="Requests per second.", show_default=False)] = None,
    param: ParamOption = None,
    model: ServedOption = "qwen3-30b-a3b",
    hardware: MachineOption = "h100x2",
    workload: WorkloadOption = "arxiv",
    arrival: ArrivalOption = None,
    cv: CvOption = 1.0,
    requests: RequestsOption = None,
    seeds: SeedsOption = 40,
    slo_ttft: TtftOption = None,
    slo_tbt: TbtOption = None,
    kv_blocks: BlocksOption = None,
    max_seqs: SeqsOption = 256,
    coverage: CoverageOption = "paper_table",
    expert_format: WeightsOption = "bf16",
    prefix_cache: PrefixOption = False,
    fit: FitOption = "h100x2",
    store: StoreOption = None,
) -> None:
    """Serve requests with a scheduler on a machine, over many seeds: latencies, service levels, expert bytes, energy.

    Medians with their 5 to 95 % band over the seeds: near saturation a single run is off by tens of percent. What lies outside
    the range of the constants is said, and a queue that grows without bound too. The rows go to the store as study 'adhoc'.

    \b
    Examples:
      tokentape simulate --scheduler layered --rate 1.3
      tokentape simulate --scheduler chunked --param chunk_tokens=1024 --workload sharegpt --rate 4.2 --slo-ttft 5 --slo-tbt 0.125
      tokentape simulate --scheduler layered --rate 1.3 --cv 3                      bursts
      tokentape simulate --scheduler orca --workload requests.csv --rate 2 --arrival trace
      tokentape simulate --scheduler layered --model gpt-oss-20b --param n_max=12 --rate 2.1
    """
    from flows.console import note, progress_bar
    from flows.grid import load_trace
    from flows.serving_points import measure, rows_of
    from flows.serving_setup import COVERAGES
    from warehouse.results import write_rows
    from warehouse.tape import Store

    place = Store(store)
    point = _point(
        scheduler, param, model, hardware, workload, arrival, rate, cv, requests, seeds, kv_blocks, max_seqs, coverage,
        expert_format, prefix_cache, fit,
    )  # fmt: skip
    level = _level(point, slo_ttft, slo_tbt)
    with progress_bar(f"simulate {scheduler}") as show:
        measured = measure(place, point, level, progress=show)
    _print(measured, level)
    for name, rows in rows_of(STUDY, STUDY, measured).items():
        if rows:
            write_rows(place, name, rows)
    if coverage not in COVERAGES or coverage == "recorded":
        trace = load_trace(place, place.resolve(workload if coverage == "recorded" else coverage))
        for sentence in _coverage_errors(trace, fit):
            print(sentence)
    for sentence in measured.outside:
        note(f"outside the envelope: {sentence}")


def capacity(
    scheduler: SchedulerOption = "layered",
    param: ParamOption = None,
    model: ServedOption = "qwen3-30b-a3b",
    hardware: MachineOption = "h100x2",
    workload: WorkloadOption = "arxiv",
    arrival: ArrivalOption = None,
    cv: CvOption = 1.0,
    seeds: SeedsOption = 10,
    slo_ttft: TtftOption = None,
    slo_tbt: TbtOption = None,
    attained: Annotated[float, typer.Option("--attained", help="Share of the requests that must meet both limits.")] = 0.9,
    kv_blocks: BlocksOption = None,
    max_seqs: SeqsOption = 256,
    coverage: CoverageOption = "paper_table",
    expert_format: WeightsOption = "bf16",
    prefix_cache: PrefixOption = False,
    fit: FitOption = "h100x2",
    store: StoreOption = None,
) -> None:
    """Find the highest rate at which enough requests meet a service level, within 1 %, by doubling and bisection.

    \b
    Examples:
      tokentape capacity --scheduler chunked
      tokentape capacity --scheduler layered --workload sharegpt --slo-ttft 5 --slo-tbt 0.125 --attained 0.95
    """
    from dataclasses import replace

    from flows.console import note, percent, progress_bar
    from flows.serving_points import serve_point
    from flows.serving_setup import engine_of
    from replay.serving import ServingRun
    from replay.serving_capacity import capacity as search
    from warehouse.tape import Store

    place = Store(store)
    point = _point(
        scheduler, param, model, hardware, workload, arrival, 1.0, cv, None, seeds, kv_blocks, max_seqs, coverage,
        expert_format, prefix_cache, fit,
    )  # fmt: skip
    if point.arrival == "at_once":
        raise ValueError("--arrival at_once has no rate to search for; choose poisson, gamma or trace")
    level = _level(point, slo_ttft, slo_tbt)
    if level is None:
        raise ValueError(f"the paper has no limits for {model} on {workload}; give --slo-ttft and --slo-tbt")
    engine, n_served = engine_of(place, point), 0
    with progress_bar(f"capacity {scheduler}") as show:

        def serve_at(rate: float, seed: int) -> ServingRun:
            nonlocal n_served
            n_served += 1
            show(n_served % point.n_seeds, point.n_seeds, f"{rate:.4g} requests/s, {n_served} runs")
            return serve_point(place, point.model_copy(update={"rate_per_s": rate}), engine, seed)

        found = search(serve_at, replace(level, frac=attained), range(point.n_seeds))
    limits = f"{level.ttft_s:g} s to the first token, {1e3 * level.tbt_s:g} ms between tokens"
    if found.rate_per_s == 0:
        print(f"{scheduler}: no rate meets {limits} for {percent(attained)} of the requests")
    else:
        print(
            f"{scheduler}: {found.rate_per_s:.4g} requests/s meet {limits} for {percent(found.attained_frac)} of the requests; "
            f"{found.first_missed_per_s:.4g} do not"
        )
    for sentence in engine.outside:
        note(f"outside the envelope: {sentence}")


def calibrate_serving(
    out: Annotated[Path, typer.Option("--out", help="File of the constants; simulate and capacity take it as --fit.")] = Path(
        "serving-h100x2.toml"
    ),
    mode: Annotated[
        str,
        typer.Option("--mode", help="chunked, or long-context: also on the chunked run of 30k prompts, which chunked predicts."),
    ] = "chunked",
    check: Annotated[
        str | None,
        typer.Option("--check", help="Fit nothing: print how these constants do, a shipped fit or a file.", show_default=False),
    ] = None,
) -> None:
    """Fit the serving engine's constants to Layered Prefill's chunked runs and microbenchmarks, and print fact by fact.

    Only claims of role `calibrate` are fitted on; every number of layered prefill is predicted. Minutes on one core.

    \b
    Examples:
      tokentape calibrate serving --check h100x2              how the shipped constants do
      tokentape calibrate serving --out my-fit.toml && tokentape simulate --rate 1.3 --fit my-fit.toml
    """
    from flows.console import note, progress_bar
    from flows.grid import load_hardware
    from flows.serving_fit import MACHINE, MODEL
    from hw import serving_constants
    from replay.serving_facts import MODES
    from replay.serving_fit import calibrate
    from warehouse import models
    from warehouse.load import claims

    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is unknown; choose {' or '.join(MODES)}")
    rows = claims().to_pylist()
    if check is not None:
        found = serving_constants.load(check)
    else:
        n_told = 0
        with progress_bar("calibrate serving") as show:

            def say(line: str) -> None:
                nonlocal n_told
                n_told += 1
                show(n_told, None, line)

            show(0, None, "searching: minutes")
            found = calibrate(rows, models.load(MODEL).geometry, load_hardware(MACHINE), MODEL, mode, say)
        serving_constants.save(found, out)
        note(f"{out}: loss {found.loss:.3g} on {len(found.fitted_on)} claims")
    _print_facts(rows, found, mode)


def import_requests(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A CSV or JSONL, also packed (.gz).", show_default=False)],
    form: Annotated[
        str | None,
        typer.Option("--form", help="azure, mooncake or csv. [default: by the name and the columns of FILE]", show_default=False),
    ] = None,
    arrival: Annotated[str, typer.Option("--arrival", help="Column of a CSV: seconds, or a date and time.")] = "arrival_s",
    prompt: Annotated[str, typer.Option("--prompt", help="Column of a CSV: prompt tokens.")] = "n_prompt_tokens",
    output: Annotated[str, typer.Option("--output", help="Column of a CSV: output tokens.")] = "n_output_tokens",
    store: StoreOption = None,
) -> None:
    """Import when requests came and how long they were: Azure 2023 (CSV), Mooncake (JSONL), or any CSV. Prints the trace id.

    \b
    Examples:
      tokentape import requests AzureLLMInferenceTrace_code.csv
      tokentape import requests log.csv --arrival when --prompt tokens_in --output tokens_out
      tokentape simulate --workload TRACE --scheduler layered --rate 2
    """
    from capture.importers import request_traces
    from flows.commands_capture import report
    from flows.names import unknown
    from warehouse.tape import Store

    place = Store(store)
    name = form or _form(file)
    if name not in ("azure", "mooncake", "csv"):
        raise unknown("form of requests", name, ("azure", "mooncake", "csv"))
    if name == "azure":
        trace_id = request_traces.import_azure(file, place)
    elif name == "mooncake":
        trace_id = request_traces.import_mooncake(file, place)
    else:
        trace_id = request_traces.import_request_csv(file, place, arrival, prompt, output)
    report(place, trace_id)


def _form(file: Path) -> str:
    """Of a file of requests, by its name and its first line."""
    import gzip

    from capture.importers.request_traces import AZURE

    if ".jsonl" in file.suffixes:
        return "mooncake"
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8", errors="replace") as lines:
        header = lines.readline()
    return "azure" if set(AZURE) <= set(header.strip().split(",")) else "csv"


def _point(
    scheduler: str,
    param: list[str] | None,
    model: str,
    hardware: str,
    workload: str,
    arrival: str | None,
    rate: float | None,
    cv: float,
    requests: int | None,
    seeds: int,
    kv_blocks: int | None,
    max_seqs: int,
    coverage: str,
    expert_format: str,
    prefix_cache: bool,
    fit: str,
) -> Point:
    """The point that the options name. Raises ValueError where they do not go together."""
    from flows.own_policy import parse_params
    from flows.serving_setup import ONE_PROMPT, Point, scheduler_of
    from replay.workload import LENGTHS

    params = parse_params(param or [])
    scheduler_of(scheduler, params)
    own = workload not in LENGTHS
    chosen = arrival or ("gamma" if cv != 1.0 else "trace" if own else "poisson")
    if cv != 1.0 and chosen != "gamma":
        raise ValueError(f"--cv {cv:g} goes with --arrival gamma, not with {chosen}")
    is_one_run = workload.startswith(ONE_PROMPT) or (own and chosen in ("trace", "at_once"))
    return Point(
        model=model,
        hardware=hardware,
        fit=fit,
        scheduler=scheduler,
        params=params,
        workload=workload,
        arrival=chosen,
        rate_per_s=None if chosen == "at_once" or workload.startswith(ONE_PROMPT) else rate,
        cv=cv,
        n_requests=requests or (500 if chosen == "at_once" else None),
        n_seeds=1 if is_one_run else seeds,
        kv_blocks=kv_blocks,
        max_seqs=max_seqs,
        coverage=coverage,
        expert_format=expert_format,
        prefix_cache=prefix_cache,
    )


def _level(point: Point, ttft_s: float | None, tbt_s: float | None) -> ServiceLevel | None:
    """The limits given, or the paper's for its models and data sets. Raises ValueError for one limit without the other."""
    from flows.systems.layered_prefill.settings import settings
    from replay.serving_metrics import ServiceLevel

    if ttft_s is None and tbt_s is None:
        return settings().level(point)
    if ttft_s is None or tbt_s is None:
        raise ValueError("--slo-ttft and --slo-tbt go together; a request must meet both")
    return ServiceLevel(ttft_s, tbt_s)


def _print(measured: Measured, level: ServiceLevel | None) -> None:
    from flows.console import percent, print_table, quantity

    point = measured.point
    rows = []
    for name, metric in measured.metrics.items():
        shown = percent if name.endswith("_frac") else lambda value, unit=metric.unit: quantity(value, unit)
        ends = (metric.low, metric.high)
        band = f"{shown(ends[0])} to {shown(ends[1])}" if point.n_seeds > 1 and None not in ends else ""
        rows.append((name, shown(metric.value), band, metric.denominator or ""))
    rate = "" if point.rate_per_s is None else f" at {point.rate_per_s:g} requests/s"
    limits = "" if level is None else f"; within limits: {level.ttft_s:g} s, {1e3 * level.tbt_s:g} ms"
    title = (
        f"{point.scheduler} {point.params or ''} on {point.hardware}, {point.model}, {point.workload} ({point.arrival_text}){rate}, "
        f"{point.n_seeds} seed{'s' if point.n_seeds > 1 else ''}{limits}"
    )
    print_table(title, ("metric", "median", "over seeds", "per"), rows, numbers=("median",))


def _coverage_errors(trace: Any, fit: str) -> list[str]:
    from flows.coverage_errors import sentences
    from hw import serving_constants
    from replay.serving_coverage import published_coverage
    from warehouse.load import claims

    correlation = serving_constants.load(fit).constants.prefill_correlation
    return sentences(trace, published_coverage(claims().to_pylist(), correlation))


def _print_facts(rows: list[dict[str, Any]], found: Any, mode: str) -> None:
    from flows.console import print_table
    from flows.grid import load_hardware
    from replay.serving_cost import cost_tables
    from replay.serving_coverage import published_coverage
    from replay.serving_facts import facts, simulated
    from warehouse import models

    coverage = published_coverage(rows, found.constants.prefill_correlation)
    cost = cost_tables(models.load(found.model).geometry, load_hardware(found.machine), found.constants, coverage)
    made = simulated(cost, found.length_scale, range(40), mode)
    shown = [
        (" ".join(fact.key), f"{fact.target:.4g}", f"{made[fact.key]:.4g}", f"{100 * (made[fact.key] / fact.target - 1):+.1f} %")
        for fact in facts(rows, mode)
    ]
    title = f"{found.model} on {found.machine}: facts that the constants are fitted on, in SI units"
    print_table(title, ("fact", "published", "here", "error"), shown, numbers=("published", "here", "error"))

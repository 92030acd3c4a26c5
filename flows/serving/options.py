"""Options of the commands that serve requests, and the point that they name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from tokentape.flows.serving.setup import Point
    from tokentape.replay.serving.metrics import ServiceLevel

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
    str,
    typer.Option(
        "--fit",
        help="Of the paper's server: a shipped fit or a file that `calibrate serving` wrote. Its numbers are those of "
        "--profile layered_prefill; the scale of arXiv prompts and what prefill tokens touch are always the fit's.",
    ),
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
SeedsOption = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        help="Runs that differ in their seed; bands are over them. [default: 40; of a capacity 10]",
        show_default=False,
        min=1,
    ),
]
TtftOption = Annotated[
    float | None,
    typer.Option("--slo-ttft", help="Seconds to the first token. [default: the paper's for its models]", show_default=False),
]
TbtOption = Annotated[
    float | None,
    typer.Option("--slo-tbt", help="Seconds of a request's longest gap between tokens.", show_default=False),
]
BlocksOption = Annotated[
    str | None,
    typer.Option(
        "--kv-blocks",
        help="KV memory in blocks of 16 tokens, or unbounded. [default: what the machine's memory leaves beside the model]",
        show_default=False,
    ),
]
MemoryOption = Annotated[
    float | None,
    typer.Option("--memory-frac", help="Share of the machine's memory that the engine takes. [default: 0.9]", show_default=False),
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
WeightsOption = Annotated[str, typer.Option("--weights", help="Of the experts: bf16, fp16, fp8, int8-g32, int4, mxfp4.")]
TimesOption = Annotated[
    str,
    typer.Option(
        "--expert-times", help="With --profile layered_prefill: fitted, or measured, timed kernels of the machine's GPU."
    ),
]
NodesOption = Annotated[
    int,
    typer.Option("--verify-nodes", help="Speculative decoding: drafts that each request has verified per iteration.", min=0),
]
AcceptanceOption = Annotated[
    str | None,
    typer.Option(
        "--acceptance",
        help="Chance that a draft is accepted once those before it are: 0.8, by position 0.8,0.7, or a TRACE with rounds.",
        show_default=False,
    ),
]
DraftOption = Annotated[float, typer.Option("--draft-ms", help="Milliseconds in which a round's drafts are made.", min=0)]
EngineOption = Annotated[
    Path | None,
    typer.Option(
        "--engine",
        help="Settings of a vLLM engine (meta.json: vllm_version, engine_kwargs) in place of scheduler, limits and formats.",
        show_default=False,
    ),
]
OwnFitsOption = Annotated[
    Path | None,
    typer.Option(
        "--fits",
        help="Folder of constants of `calibrate gpu`, or of tables by model (meta.yaml), in place of shipped ones.",
        show_default=False,
    ),
]
TimesOutOption = Annotated[
    Path | None,
    typer.Option("--out", help="Write when each request of every seed began and ended: .csv or .parquet.", show_default=False),
]
PrefixOption = Annotated[bool, typer.Option("--prefix-cache", help="Skip prompt prefixes that the trace's blocks repeat.")]


# Options that an engine's own settings decide.
_OF_ENGINE: dict[str, str | None] = {
    **dict.fromkeys(("scheduler", "param", "coverage", "profile"), None),
    "kv_blocks": "--kv-blocks",
    "memory_frac": "--memory-frac",
    "max_seqs": "--max-seqs",
    "expert_format": "--weights",
    "expert_times": "--expert-times",
    "verify_nodes": "--verify-nodes",
}


def _is_given(ctx: typer.Context, name: str) -> bool:
    """A person typed the option; of click's enumeration by name, since typer may bring a copy of it."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _of_engine(ctx: typer.Context, path: Path, model: str) -> dict[str, Any]:
    """Fields of the point that an engine's meta.json says. Raises ValueError for an option that it decides."""
    from dataclasses import asdict

    from tokentape.replay.serving.engine_logs import engine_of
    from tokentape.warehouse import models

    given = [name for name in _OF_ENGINE if name in ctx.params and _is_given(ctx, name)]
    if given:
        option = _OF_ENGINE[given[0]] or f"--{given[0]}"
        raise ValueError(f"{option} has no effect with --engine, whose settings decide it; leave one of them out")
    engine = engine_of(path)
    return {
        "engine": asdict(engine),
        "model": model if _is_given(ctx, "model") else models.like(engine.model),
        "scheduler": "chunked",
        "params": {"chunk_tokens": engine.budget_tokens},
        "coverage": "independent",
        "kv_blocks": engine.kv_blocks,
        "memory_frac": engine.memory_frac,
        "max_seqs": engine.max_seqs,
        "expert_format": engine.weight_format,
    }


def point_of(ctx: typer.Context, default_seeds: int) -> Point:
    """The point that the options name. Raises ValueError where they do not go together, or one would have no effect."""
    from tokentape.flows.serving.setup import ONE_PROMPT, Point
    from tokentape.hw.profile import PHYSICAL
    from tokentape.policies.resolve import parse, resolve
    from tokentape.replay.serving.memory import MEMORY_FRAC
    from tokentape.replay.serving.workload import LENGTHS

    of = SimpleNamespace(**{"rate": None, "requests": None} | ctx.params)
    workload, rate, kv_blocks, memory_frac = of.workload, of.rate, of.kv_blocks, of.memory_frac
    params: dict[str, int | float | str] = {**parse(of.param)}
    resolve("schedule", of.scheduler, params)
    is_prompt = workload.startswith(ONE_PROMPT)
    own = workload not in LENGTHS and not is_prompt
    chosen = of.arrival or ("at_once" if is_prompt else "gamma" if of.cv != 1.0 else "trace" if own else "poisson")
    if of.cv != 1.0 and chosen != "gamma":
        raise ValueError(f"--cv {of.cv:g} goes with --arrival gamma, not with {chosen}")
    is_one_run = is_prompt or (own and chosen in ("trace", "at_once"))
    said = f"--workload {workload}" if is_prompt else f"--arrival {chosen}"
    as_recorded = f"{workload} is served as it is; --arrival poisson with --rate draws from it"
    without = {  # option: whether it was given and would be ignored, and why
        "--arrival": (is_prompt and chosen != "at_once", "one prompt comes alone"),
        "--rate": (chosen == "at_once" and rate is not None, "all requests come at once"),
        "--requests": (is_one_run and of.requests is not None, "it is one prompt" if is_prompt else as_recorded),
        "--seeds": (is_one_run and of.seeds is not None, "nothing is drawn" if is_prompt else as_recorded),
        "--verify-nodes": (is_prompt and of.verify_nodes > 0, "it asks for one token, and nothing decodes"),
        "--prefix-cache": (of.prefix_cache and (not own or workload.endswith(".csv")), "only a tape names prefix blocks"),
    }
    for option, (is_ignored, why) in without.items():
        if is_ignored:
            raise ValueError(f"{option} has no effect with {said}: {why}")
    if kv_blocks is not None and memory_frac is not None:
        raise ValueError("--memory-frac has no effect with --kv-blocks, which says how much KV there is; give one of them")
    made = Point(
        model=of.model,
        hardware=of.hardware,
        profile=of.profile or PHYSICAL,
        fit=of.fit,
        scheduler=of.scheduler,
        params=params,
        workload=workload,
        arrival=chosen,
        rate_per_s=rate,
        cv=of.cv,
        n_requests=of.requests or (500 if chosen == "at_once" and not is_one_run else None),
        n_seeds=1 if is_one_run else of.seeds or default_seeds,
        kv_blocks=_blocks(kv_blocks),
        memory_frac=MEMORY_FRAC if memory_frac is None else memory_frac,
        max_seqs=of.max_seqs,
        coverage=of.coverage,
        expert_format=of.expert_format,
        expert_times=of.expert_times,
        prefix_cache=of.prefix_cache,
        verify_nodes=of.verify_nodes,
        acceptance=of.acceptance,
        draft_s=of.draft_ms / 1e3,
        fits=None if of.fits is None else str(of.fits),
    )
    return made if of.engine is None else made.model_copy(update=_of_engine(ctx, of.engine, of.model))


def _blocks(text: str | None) -> int | Literal["unbounded"] | None:
    """KV blocks as a person writes them. Raises ValueError for no whole number of at least 1."""
    if text is None or text == "unbounded":
        return text  # type: ignore[return-value]
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"--kv-blocks {text}: kv_blocks must be at least 1, in whole blocks of 16 tokens, or unbounded")
    return int(text)


def level_of(point: Point, ttft_s: float | None, tbt_s: float | None) -> ServiceLevel | None:
    """The limits given, or the paper's for its models and data sets. Raises ValueError for one limit without the other."""
    from tokentape.flows.systems.layered_prefill.study import Settings
    from tokentape.replay.serving.metrics import ServiceLevel

    if point.scheduler == "disaggregated":
        if ttft_s is not None or tbt_s is not None:
            raise ValueError("--slo-ttft and --slo-tbt have no effect on disaggregated: service levels are told of one engine")
        return None
    if ttft_s is None and tbt_s is None:
        return Settings.shipped().level(point)
    if ttft_s is None or tbt_s is None:
        raise ValueError("--slo-ttft and --slo-tbt go together; a request must meet both")
    return ServiceLevel(ttft_s, tbt_s)

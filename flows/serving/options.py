"""Options of the commands that serve requests, and the point that they name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tokentape.flows.options import ProfileOption, StoreOption, option

if TYPE_CHECKING:
    from tokentape.flows.serving.setup import Point
    from tokentape.replay.serving.metrics import ServiceLevel


def _of(kind: Any, help: str, default: Any = None, *names: str, **more: Any) -> tuple[Any, Any]:
    return Annotated[kind, option(help, *names, **more)], default


# Of both commands and of one, in the order of their help: what it is and its default, by parameter.
OPTIONS: dict[str, tuple[Any, Any]] = {
    "scheduler": _of(str, "static, orca, chunked, layered; disaggregated: two engines, each on such a machine.", "layered"),
    "rate": _of(float | None, "Requests per second."),
    "param": _of(
        list[str] | None,
        "A field of the scheduler, NAME=VALUE; repeatable: chunk_tokens=1024; n_max=8, n_lg_rule=fixed, pass_tokens=32768.",
    ),
    "model": _of(str, "A shipped model (`tokentape models list`) or a config.json.", "qwen3-30b-a3b"),
    "hardware": _of(str, "A shipped machine or my.toml; all its devices share a layer.", "h100x2"),
    "workload": _of(
        str,
        "sharegpt, arxiv or 30k; a tape (TRACE); requests.csv of arrival_s, n_prompt_tokens, n_output_tokens; prompt-8192.",
        "arxiv",
    ),
    "arrival": _of(
        str | None,
        "poisson; gamma (bursty, see --cv); trace (as recorded, scaled to --rate); at_once. "
        "[default: trace for tapes and files, gamma with --cv, else poisson]",
    ),
    "cv": _of(float, "Coefficient of variation of the gaps between arrivals; 1 is Poisson.", 1.0),
    "client": _of(
        bool,
        "Times of a benchmark client over HTTP: its text is tokenised first, and sharegpt, arxiv and 30k come when it sends.",
        False,
        "--client",
    ),
    "requests": _of(int | None, "Requests of a run. [default: 600 seconds of them]", min=1),
    "seeds": _of(int | None, "Runs that differ in their seed; bands are over them. [default: 40; of a capacity 10]", min=1),
    "slo_ttft": _of(float | None, "Seconds to the first token. [default: the paper's for its models]"),
    "slo_tbt": _of(float | None, "Seconds of a request's longest gap between tokens."),
    "attained": _of(float, "Share of the requests that must meet both limits.", 0.9),
    "kv_blocks": _of(
        str | None,
        "KV memory in blocks of 16 tokens, or unbounded. [default: what the machine's memory leaves beside the model]",
    ),
    "memory_frac": _of(float | None, "Share of the machine's memory that the engine takes. [default: 0.9]"),
    "max_seqs": _of(int, "Requests that decode or are in prefill together, on all replicas.", 256, min=1),
    "coverage": _of(
        str,
        "Experts that a batch touches: paper_table, independent, full, recorded (exact; the workload is a tape with routing), "
        "or a TRACE whose curves are taken.",
        "paper_table",
    ),
    "expert_placement": _of(
        str | None,
        "Devices hold whole experts: linear, round_robin, or a map of `export eplb`. [default: each a part of every expert]",
    ),
    "expert_format": _of(str, "Of the experts: bf16, fp16, fp8, int8-g32, int4, mxfp4.", "bf16", "--weights"),
    "expert_times": _of(
        str, "With --profile layered_prefill: fitted, or measured, timed kernels of the machine's GPU.", "fitted"
    ),
    "prefix_cache": _of(bool, "Skip prompt prefixes that the trace's blocks repeat.", False, "--prefix-cache"),
    "verify_nodes": _of(int, "Speculative decoding: drafts that each request has verified per iteration.", 0, min=0),
    "acceptance": _of(
        str | None,
        "Chance that a draft is accepted once those before it are: 0.8, by position 0.8,0.7, or a TRACE with rounds.",
    ),
    "draft_ms": _of(float, "Milliseconds in which a round's drafts are made.", 0.0, min=0),
    "profile": (ProfileOption, None),
    "fit": _of(
        str,
        "Of the paper's server: a shipped fit or a file that `calibrate serving` wrote. Its numbers are those of "
        "--profile layered_prefill; the scale of arXiv prompts and what prefill tokens touch are always the fit's.",
        "h100x2",
    ),
    "engine": _of(
        Path | None,
        "Settings of a vLLM engine (meta.json: vllm_version, engine_kwargs) in place of scheduler, limits and formats.",
    ),
    "fits": _of(
        Path | None,
        "Folder of constants of `calibrate gpu`, or of tables by model (meta.yaml), in place of shipped ones.",
    ),
    "out": _of(Path | None, "Write when each request of every seed began and ended: .csv or .parquet."),
    "store": (StoreOption, None),
}


def serves(without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command, which takes what they hold by keyword, all OPTIONS but those named `without`."""

    def given(command: Callable[..., None]) -> Callable[..., None]:
        kinds = {name: kind for name, (kind, _) in OPTIONS.items() if name not in without.split()}
        keyword, first = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        made = [inspect.Parameter(name, keyword, default=OPTIONS[name][1], annotation=kind) for name, kind in kinds.items()]
        ctx = inspect.Parameter("ctx", first, annotation=typer.Context)
        command.__signature__ = inspect.Signature([ctx, *made])  # type: ignore[attr-defined]  # which typer reads
        command.__annotations__ = {"ctx": typer.Context, **kinds}
        return command

    return given


# Options that an engine's own settings decide.
_OF_ENGINE = (
    *("scheduler", "param", "coverage", "profile", "kv_blocks", "memory_frac", "max_seqs", "expert_format", "expert_times"),
    *("verify_nodes", "acceptance", "draft_ms", "expert_placement", "fit"),
)


def _is_given(ctx: typer.Context, name: str) -> bool:
    """A person typed the option; of click's enumeration by name, since typer may bring a copy of it."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _of_engine(ctx: typer.Context, path: Path, model: str, hardware: str) -> dict[str, Any]:
    """Fields of the point that an engine's meta.json says. Raises ValueError for an option that it decides."""
    from dataclasses import asdict

    from tokentape.flows.serving.held import machine_of
    from tokentape.replay.serving.engine_logs import engine_of
    from tokentape.warehouse import models

    flags = {parameter.name: parameter.opts[0] for parameter in ctx.command.params}
    given = next((name for name in _OF_ENGINE if _is_given(ctx, name)), None)
    if given:
        raise ValueError(f"{flags[given]} has no effect with --engine, whose settings decide it; leave one of them out")
    engine = engine_of(path)
    return {
        "engine": asdict(engine),
        "hardware": machine_of(engine, hardware),
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
    is_one_run = is_prompt or (own and chosen in ("trace", "at_once"))
    said = f"--workload {workload}" if is_prompt else f"--arrival {chosen}"
    as_recorded = f"{workload} is served as it is; --arrival poisson with --rate draws from it"
    without = {  # option: whether it was given and would be ignored, and why
        "--requests": (is_one_run and of.requests is not None, "it is one prompt" if is_prompt else as_recorded),
        "--seeds": (is_one_run and of.seeds is not None, "nothing is drawn" if is_prompt else as_recorded),
        "--client": (is_prompt and of.client, "one prompt is timed in the engine"),
        "--verify-nodes": (is_prompt and of.verify_nodes > 0, "it asks for one token, and nothing decodes"),
    }
    for flag, (is_ignored, why) in without.items():
        if is_ignored:
            raise ValueError(f"{flag} has no effect with {said}: {why}")
    if kv_blocks is not None and memory_frac is not None:
        raise ValueError("--memory-frac has no effect with --kv-blocks, which says how much KV there is; give one of them")
    given = {name: value for name, value in vars(of).items() if name in Point.model_fields}
    given |= {
        "params": params,
        "arrival": chosen,
        "rate_per_s": rate,
        "n_requests": of.requests or (500 if chosen == "at_once" and not is_one_run else None),
        "n_seeds": 1 if is_one_run else of.seeds or default_seeds,
        "kv_blocks": _blocks(kv_blocks),
        "memory_frac": MEMORY_FRAC if memory_frac is None else memory_frac,
        "draft_s": of.draft_ms / 1e3,
        "fits": None if of.fits is None else str(of.fits),
    }
    made = Point(**given | {"engine": None})
    return made if of.engine is None else made.model_copy(update=_of_engine(ctx, of.engine, of.model, of.hardware))


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

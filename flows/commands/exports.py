"""export: a tape's decisions and traces as other programs read them. What a file holds is said in replay/exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tokentape.flows.console import note, number, percent, print_table, quantity
from tokentape.flows.options import StoreOption, TraceArgument, argument, option
from tokentape.policies.names import refuse_unknown

if TYPE_CHECKING:
    from tokentape.replay.trace import Trace
    from tokentape.warehouse.tape import Store

OutFile = Annotated[Path, option("File to write.", "--out", metavar="FILE")]
PhaseOption = Annotated[str, option("Count all, prefill or decode.")]
FormatOption = Annotated[str, option("Bytes of an expert: recorded, bf16, fp8, int8-g32, mxfp4, int4; auto.", "--expert-format")]


def oracle(
    trace: TraceArgument,
    out: OutFile,
    layer: Annotated[int | None, option("This layer's lookups alone: of one cache per layer.")] = None,
    prefill: Annotated[str, option("layer-major (each expert once per layer of a prompt) or token-major.")] = "layer-major",
    expert_format: FormatOption = "auto",
    store: StoreOption = None,
) -> None:
    """Write a tape's expert lookups as libCacheSim's oracleGeneral, in the order that a replay looks them up.

    tokentape export oracle TRACE --out trace.oracleGeneral.bin
    """
    from tokentape.replay.semantics import Semantics

    semantics = Semantics("global", lookup="serial", prefill=prefill)
    read = _trace(store, trace)
    from tokentape.replay.exports.oracle import of_lookups
    from tokentape.replay.stream import stream

    records = of_lookups(read, stream(read, semantics), layer, _sizes(store, read, expert_format))
    _write(out, records.tobytes(), f"{len(records):,} lookups")


def kt(
    trace: TraceArgument,
    out: OutFile,
    capacity: Annotated[str, option("Experts on the GPU: '384 experts', 25% or 12GB of all.")],
    scope: Annotated[str, option("per-layer (as many in each), or global: wherever they count most.")] = "per-layer",
    phase: PhaseOption = "all",
    expert_format: FormatOption = "auto",
    store: StoreOption = None,
) -> None:
    """Write the hottest experts as KTransformers takes them, in a torch file: counts for --init-expert-location, masks by layer.

    tokentape export kt TRACE --capacity '384 experts' --out hot.pt
    """
    refuse_unknown("scope", scope, ("per-layer", "global"))
    read = _trace(store, trace)
    from tokentape.capture.expert_masks import torch_file
    from tokentape.replay.exports.loads import hottest, loads

    counts, sizes = loads(read, phase), _sizes(store, read, expert_format)
    places = int((_room(read, capacity, sizes) + 0.5) // (sum(sizes) / len(sizes)))  # of mean size, as bytes_of takes them
    masks = hottest(counts, places, scope)
    rows = [
        ("experts on the GPU", number(int(masks.sum()), ",")),
        *((f"lookups that find them, {of}", percent(_share(read, masks, of))) for of in ("prefill", "decode")),
    ]
    print_table(f"hottest experts of {read.trace_id}, {scope}, by {phase}", ("", "value"), rows, numbers=("value",))
    _write(out, torch_file(counts, masks, read.geometry), f"{int(masks.sum()):,} experts")


def ot(
    trace: TraceArgument,
    capacity: Annotated[str, option("Room for experts on the GPU: 12GB, 25% of all.")],
    device: Annotated[str, option("Name of the GPU's buffer: CUDA0, Vulkan0, Metal.")] = "CUDA0",
    phase: PhaseOption = "decode",
    expert_format: FormatOption = "auto",
    store: StoreOption = None,
) -> None:
    """Print llama.cpp's -ot arguments: whole layers of experts on the GPU, those first of which a pass reads most.

    A token reads as many experts in every layer: layers differ where passes hold several tokens, and in size.

    tokentape export ot TRACE --capacity 12GB
    """
    read = _trace(store, trace)
    from tokentape.replay.exports.llama import experts_read, layers_within, override_tensors

    sizes = _sizes(store, read, expert_format)
    room = _room(read, capacity, sizes)
    found = experts_read(read, phase)
    layers = layers_within(found, sizes, read.geometry.n_experts, room)
    held = sum(sizes[place] for place in layers) * read.geometry.n_experts
    share = sum(found[place] * sizes[place] for place in layers) / sum(found * sizes)
    note(f"{len(layers)} layers of experts, {quantity(held, 'B')}: {percent(share)} of what a pass reads in {phase}")
    print(override_tensors([read.geometry.moe_layers[place] for place in layers], device))


def eplb(
    trace: TraceArgument,
    out: OutFile,
    ranks: Annotated[int, option("Ranks that share the experts.", min=1)],
    redundant: Annotated[int, option("Slots beyond one per expert: replicas of the heaviest.", min=0)] = 0,
    form: Annotated[str, option("sglang (--init-expert-location), vllm-ascend (expert_map_path) or vllm.")] = "sglang",
    phase: PhaseOption = "all",
    store: StoreOption = None,
) -> None:
    """Write which expert lies in which slot of which rank (EPLB), and show how even the ranks' loads are over the tape.

    Balance is the mean load over the largest: of the whole tape, and of single passes, in which ranks wait for each other.

    tokentape export eplb TRACE --ranks 8 --redundant 16 --out eplb.json
    """
    from tokentape.replay.exports import eplb as maps

    refuse_unknown("form of maps", form, maps.FORMS)
    read = _trace(store, trace)
    from tokentape.replay.exports.loads import loads

    counts = loads(read, phase)
    mapped = maps.physical_map(counts, ranks, redundant)
    shown: dict[str, Any] = {"as numbered": maps.as_numbered(counts)} if counts.shape[1] % ranks == 0 else {}
    shown |= {"by load": maps.physical_map(counts, ranks, 0)} if redundant and counts.shape[1] % ranks == 0 else {}
    shown[f"by load, {redundant} replicas" if redundant else "by load"] = mapped
    rows = [(name, *map(percent, maps.balance(read, of, ranks, phase))) for name, of in shown.items()]
    title = f"{ranks} ranks, {phase} of {read.trace_id}: mean load over the largest"
    print_table(title, ("experts", "whole tape", "pass by pass"), rows, numbers=("whole tape", "pass by pass"))
    content = maps.content(form, mapped, ranks, read.geometry, store.open(trace).manifest.model_id)
    _write(out, json.dumps(content).encode(), f"{mapped.shape[1]} slots in each of {len(mapped)} layers")


def moe_trace(trace: TraceArgument, out: OutFile, store: StoreOption = None) -> None:
    """Write a tape's routing as llama.cpp's llama-moe-trace does (pos,layer,id0,...): a profile for its --moe-cache-profile.

    tokentape export moe-trace TRACE --out profile.csv
    """
    read, tape = _trace(store, trace), store.open(trace)
    from tokentape.replay.exports.llama import trace_csv

    prompts = dict(tape.read("requests").select("request_id", "n_prompt_tokens").iter_rows())
    _write(out, trace_csv(read, prompts).encode(), f"{read.row_pass.size:,} rows")


def chrome(
    result: Annotated[str, argument("RESULT", "Id of a replay or a system's run, or the start of one.")],
    out: OutFile,
    which: Annotated[str, option("The slowest or median decode pass, a pass number of the tape, or all.", "--pass")] = "all",
    store: StoreOption = None,
) -> None:
    """Write when each resource is busy in a pass of a replay, or all its passes, or a system's iterations, for Perfetto.

    tokentape export chrome 3f2a91 --out passes.json
    tokentape export chrome 3f2a91 --pass slowest --out step.json
    """
    import polars as pl

    from tokentape.flows import steps
    from tokentape.flows.grid import resolve_run
    from tokentape.replay.exports.chrome import chrome_trace
    from tokentape.warehouse.results import batches, measured_of, newest, stored

    if which == "all":
        run = resolve_run(store, result, "replays", "system_runs")
        of_system = pl.when(pl.col("n_prefill_tokens") > 0).then(pl.lit("with prompts")).otherwise(pl.lit("decode"))
        mine = stored(store, "runs", batches(store)).filter(pl.col("run_id") == run)
        told = measured_of(store, "steps", newest(mine)).drop("run_id").with_columns(kind=pl.coalesce("kind", of_system))
        if told.is_empty():
            raise ValueError(f"result {run} has no passes on a clock; replay it again with --hardware")
        rows = told.select(of.name for of in told if of.null_count() < of.len()).rename({"step_s": "seconds"})
        content = chrome_trace(f"passes of {run}", rows, "pass_id", "kind")
    else:
        _, title, rows = steps.of_replay(store, result, which)
        content = chrome_trace(title, rows, "operation", "resource")
    _write(out, json.dumps(content).encode(), f"{len(rows):,} events")


def requests(
    trace: TraceArgument,
    out: OutFile,
    form: Annotated[str, option("llmservingsim or mooncake (also aiperf and Dynamo).")] = "llmservingsim",
    store: StoreOption = None,
) -> None:
    """Write a tape's requests, when they came and how long they were, as JSON lines for a simulator or a load generator.

    tokentape export requests TRACE --form mooncake --out requests.jsonl
    """
    import polars as pl

    from tokentape.replay.exports.arrivals import FORMS, lines

    refuse_unknown("form of requests", form, FORMS)
    tape = store.open(trace)
    asked, known = tape.read("requests"), dict[int, list[int]]()
    if form == "llmservingsim" and tape.has("tokens"):
        tokens = tape.read("tokens").filter(pl.col("phase") == "prefill").sort("request_id", "position")
        known = dict(tokens.group_by("request_id").agg("token_id").iter_rows())
    lengths = asked.select("request_id", "n_prompt_tokens").iter_rows()
    prompts = {of: known[of] for of, n in lengths if n and len(known.get(of, ())) == n and None not in known[of]}
    text = lines(form, asked, prompts, tape.manifest.settings.get("prefix_block_tokens"))
    _write(out, text.encode(), f"{len(asked):,} requests")


def aiconfigurator(
    trace: TraceArgument,
    out: OutFile,
    system: Annotated[str, option("Its name of the machine: h100_sxm, h200_sxm, b200_sxm, l40s, ...")],
    gpus: Annotated[int, option("GPUs to configure.", min=1)],
    model: Annotated[str | None, option("Hub id or folder of the model. [default: the tape's]", "--model")] = None,
    store: StoreOption = None,
) -> None:
    """Write a tape's mean request, its reused prefix and its drafts as an experiment of NVIDIA's AIConfigurator.

    tokentape export aiconfigurator TRACE --system h200_sxm --gpus 8 --out exp.yaml
    """
    from tokentape.replay.exports.aiconfigurator import experiment

    tape = store.open(trace)
    if model is None and tape.manifest.model_id == "unknown":
        raise ValueError(f"tape {tape.trace_id} does not say of which model it is; give --model")
    rounds = tape.read("rounds") if tape.has("rounds") else None
    told = (tape.read("requests"), tape.manifest.settings)
    content = experiment(*told, rounds, model or tape.manifest.model_id, system, gpus)
    _write(out, json.dumps(content, indent=1).encode(), f"isl {content['tape']['isl']}, osl {content['tape']['osl']}")


def _trace(store: Store, trace: str) -> Trace:
    from tokentape.flows.grid import load_trace  # kernels

    return load_trace(store, store.resolve(trace))


def _sizes(store: Store, read: Trace, expert_format: str) -> tuple[int, ...]:
    """Bytes of an expert in each MoE layer; 1 where the tape knows neither widths nor sizes and none is asked for."""
    from tokentape.flows.grid import format_of

    geometry = read.geometry
    if expert_format == "auto" and not geometry.expert_params and not geometry.recorded_expert_bytes:
        return (1,) * len(geometry.moe_layers)
    return geometry.expert_bytes(format_of(store, read.trace_id, expert_format))


def _room(read: Trace, capacity: str, sizes: tuple[int, ...]) -> int:
    """Bytes of a capacity."""
    from tokentape.replay.capacity import bytes_of

    if max(sizes) == 1 and capacity.strip().lower().endswith("b"):
        raise ValueError(f"--capacity {capacity!r}: tape {read.trace_id} knows no size of an expert; give experts or a share")
    n_experts = read.geometry.n_experts
    return bytes_of(capacity, sum(sizes) * n_experts, n_experts * len(sizes))


def _share(read: Trace, masks: Any, phase: str) -> float | None:
    """Of the phase's choices, those of these experts; None where the tape has none."""
    from tokentape.replay.exports.loads import loads

    try:
        counts = loads(read, phase)
    except ValueError:
        return None
    return float(counts[masks].sum() / counts.sum())


def _write(out: Path, content: bytes, what: str) -> None:
    from tokentape.warehouse.atomic_files import replace

    replace(out, content)
    note(f"{out}: {what}")

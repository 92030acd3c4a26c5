"""capture, import, evaluate, train-embedded: what makes tapes and models. Settings and their checks are capture/'s own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.options import StoreOption

ParamOption = Annotated[
    list[str] | None,
    typer.Option("--param", help="Of the policy: router=cache_prior, router.strength=0.2, precision=dbsc, pair=MAT42, ..."),
]
CacheOption = Annotated[str, typer.Option("--cache", help="Each request's cache, as a share of the experts' bytes.")]
SchemeOption = Annotated[
    str, typer.Option("--scheme", help="How low-bit weights follow from high-bit ones; none: weights as loaded.")
]
ModelOption = Annotated[
    str, typer.Option("--model", help="embedded, a hub id (owner/name) or a local directory in Hugging Face format.")
]
DatasetOption = Annotated[
    str,
    typer.Option(
        "--dataset", help="code, docs, math, recall (made on this machine), a hub id, or a .jsonl, .txt or .parquet file."
    ),
]
TablesOption = Annotated[
    str,
    typer.Option(
        "--tables", help="Comma-separated: requests, tokens, passes, routing, scores, attention; dense models: no routing."
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="auto (the checkpoint's), float32, bfloat16, float16.")]


def capture(
    model: ModelOption,
    dataset: DatasetOption,
    tables: TablesOption = "requests,tokens,routing,scores",
    max_requests: Annotated[int, typer.Option(help="Prompts to run.")] = 32,
    max_prompt_tokens: Annotated[int, typer.Option(help="Longer prompts are cut.")] = 256,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens after each prompt; 0 records prefill only.")] = 128,
    batch_size: Annotated[int, typer.Option(help="Requests per forward pass.")] = 1,
    teacher_forced: Annotated[
        bool, typer.Option("--teacher-forced", help="Feed the data set's own continuation, generate nothing.")
    ] = False,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample among so many tokens; 0 is all.")] = 0,
    chat_template: Annotated[bool, typer.Option("--chat-template", help="Wrap prompts in the model's chat template.")] = False,
    attention: Annotated[str, typer.Option(help="What to keep of attention rows: full, top:M or block:N.")] = "full",
    split: Annotated[
        str | None, typer.Option(help="Split of a hub data set. [default: test, else the first]", show_default=False)
    ] = None,
    subset: Annotated[str | None, typer.Option(help="Configuration of a hub data set.")] = None,
    field: Annotated[
        str | None, typer.Option(help="Field that holds the prompt. [default: prompt, text or question]", show_default=False)
    ] = None,
    device: DeviceOption = "auto",
    device_map: Annotated[
        str | None, typer.Option(help="Device map for transformers, such as auto; instead of --device.")
    ] = None,
    dtype: DtypeOption = "auto",
    seed: Annotated[int, typer.Option(help="For sampling.")] = 0,
    store: StoreOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a capture of the same settings that was stopped.")] = False,
) -> None:
    """Run a model over a data set and record what it did as a tape. Prints the trace id.

    Equal settings find the finished tape. A capture that was stopped, however hard, ends with the same tape under --resume.

    \b
    Examples:
      tokentape capture --model embedded --dataset math
      tokentape capture --model Qwen/Qwen3-30B-A3B --dataset prompts.jsonl --device-map auto --max-requests 100
      tokentape capture --model ./my-llama --dataset my.txt --tables requests,tokens,attention --attention top:64
    """
    from capture.run import CaptureSettings, estimate
    from capture.run import capture as record
    from flows.console import capture_bar, mebibytes, note
    from warehouse.tape import Store

    settings = CaptureSettings(
        model=model,
        dataset=dataset,
        tables=tuple(name.strip() for name in tables.split(",") if name.strip()),
        max_requests=max_requests,
        max_prompt_tokens=max_prompt_tokens,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        device=device,
        device_map=device_map,
        dtype=dtype,
        seed=seed,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        teacher_forced=teacher_forced,
        chat_template=chat_template,
        attention=attention,
        split=split,
        subset=subset,
        field=field,
    )
    place = Store(store)
    expected = estimate(settings, place)
    free = "" if expected.free_bytes is None else f", {mebibytes(expected.free_bytes)} MiB free in {place.uri}"
    note(
        f"{expected.n_requests} requests, up to {expected.n_tokens:,} tokens, at most {mebibytes(expected.total_bytes)} MiB{free}"
    )
    with capture_bar(dataset) as show:
        trace_id = record(settings, place, resume, show)
    print(trace_id)


def import_bigmoe(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A `route_trace v1` CSV of BigMoeOnEdge.", show_default=False)],
    store: StoreOption = None,
) -> None:
    """Import a BigMoeOnEdge route trace, its measured residency included. Prints the trace id; then try `tokentape verify`."""
    from capture.importers.bigmoe import import_bigmoe as convert
    from warehouse.tape import Store

    _report(Store(store), convert(file, Store(store)))


def import_vllm(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.npz", help="Arrays prompt_routed_experts and routed_experts.", show_default=False)
    ],
    config: Annotated[Path, typer.Option("--config", help="The model's config.json: the trace does not say what the model is.")],
    store: StoreOption = None,
) -> None:
    """Import routed experts recorded by vLLM. Prints the trace id."""
    from capture.importers.vllm import import_vllm as convert
    from warehouse.tape import Store

    _report(Store(store), convert(file, config, Store(store)))


def _report(store: Any, trace_id: str) -> None:
    """The trace id on stdout, what looks wrong about the trace on stderr."""
    from flows.console import note

    for name, detail in store.open(trace_id).manifest.flags.items():
        note(f"check {name}: {detail}")
    print(trace_id)


def evaluate(
    model: ModelOption,
    datasets: Annotated[
        str, typer.Option("--datasets", help="Comma-separated, as --dataset of capture.")
    ] = "code,docs,math,recall",
    max_items: Annotated[
        int | None, typer.Option(help="Items per data set. [default: as the model card]", show_default=False)
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", help="slicemoe: run it inside the model. [default: the model as it is]", show_default=False),
    ] = None,
    param: ParamOption = None,
    cache: CacheOption = "37.5%",
    scheme: SchemeOption = "amat",
    seeds: Annotated[
        int, typer.Option("--seeds", help="Of a policy: how many seeds, each on text or items of its own.", min=1)
    ] = 1,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    store: StoreOption = None,
) -> None:
    """Measure a model, or a policy inside it. Writes table `quality`.

    Without a policy: bits per byte on text, exact match where the data set has answers. With one: perplexity, KL and acceptance
    against the unmodified model and the miss rate that was really had, or exact match.

    \b
    Examples:
      tokentape evaluate --model embedded
      tokentape evaluate --datasets code --policy slicemoe --param pair=MAT42 --param router=cache_prior --cache 50%
    """
    from flows.console import print_table, progress_bar
    from warehouse.results import write_rows
    from warehouse.tape import Store

    names = [name.strip() for name in datasets.split(",") if name.strip()]
    with progress_bar("evaluate") as show:
        if policy is None:
            from capture.evaluate import evaluate as measure

            rows = measure(model, names, max_items, device, dtype, show)
        else:
            chosen = _policy_run(policy, param or [], cache, scheme, max_items)
            rows = _measure_policy(model, names, chosen, seeds, device, dtype, show)
    write_rows(Store(store), "quality", rows)
    columns = ("dataset", "seed", *(c for c in MEASURED if any(row[c] is not None for row in rows)), "n_items", "n_tokens")
    print_table(model, columns, [[_short(row[c]) for c in columns] for row in rows], numbers=columns[1:])


def fidelity(
    model: ModelOption,
    datasets: Annotated[str, typer.Option("--datasets", help="Comma-separated texts, as --dataset of capture.")] = "code",
    max_items: Annotated[int | None, typer.Option(help="Windows of text per seed. [default: 16]", show_default=False)] = None,
    param: ParamOption = None,
    cache: CacheOption = "37.5%",
    scheme: SchemeOption = "amat",
    seeds: Annotated[int, typer.Option("--seeds", help="Each has windows of its own.", min=1)] = 4,
    hardware: Annotated[
        str, typer.Option("--hardware", help="A shipped machine or my.toml, for time and energy.")
    ] = "slicemoe-xpu",
    store: StoreOption = None,
) -> None:
    """Compare open-loop replay with the closed loop: the same policy on the same text, replayed and inside the model.

    A policy that reroutes changes what the model does next, and a replay of recorded scores cannot know that. Prints misses,
    bytes, time and energy per decoded token both ways, mean and range over seeds, and writes table `fidelity`.

    \b
    Example:
      tokentape fidelity --model embedded --param router=cache_prior --param precision=high-bit --cache 50%
    """
    from flows.console import print_table, progress_bar, quantity
    from flows.fidelity import UNITS, compare
    from flows.grid import load_hardware
    from flows.sliced_policy import NAME
    from warehouse.results import write_rows
    from warehouse.tape import Store

    run = _policy_run(NAME, param or [], cache, scheme, max_items)
    names = [name.strip() for name in datasets.split(",") if name.strip()]
    with progress_bar("fidelity") as show:
        rows = compare(model, names, run, seeds, load_hardware(hardware), show)
    write_rows(Store(store), "fidelity", rows)
    shown = []
    for name, unit in UNITS.items():
        pairs = [(row["open_loop"], row["closed_loop"]) for row in rows if row["metric"] == name]
        gaps = [100 * (opened / closed - 1) if closed else 0.0 for opened, closed in pairs]
        means = [sum(side) / len(pairs) for side in zip(*pairs, strict=True)]
        shown.append(
            (
                name,
                *(quantity(mean, unit) for mean in means),
                f"{sum(gaps) / len(gaps):+.2f} %",
                f"{min(gaps):+.2f} to {max(gaps):+.2f} %",
            )
        )
    columns = ("per decoded token", "open loop", "closed loop", "open / closed - 1", "over seeds")
    print_table(f"{model}: {run.parameters}", columns, shown, numbers=columns[1:])


def _policy_run(policy: str, param: list[str], cache: str, scheme: str, max_items: int | None) -> Any:
    """How the policy is tried, from what was typed. Raises ValueError naming what is wrong."""
    from capture.evaluate_policy import DEFAULT_WINDOWS
    from flows import sliced_policy
    from flows.names import unknown
    from flows.own_policy import parse_params

    if policy != sliced_policy.NAME:
        raise unknown("policy inside a model", policy, (sliced_policy.NAME,))
    share = cache.removesuffix("%")
    if share == cache or not share.replace(".", "", 1).isdigit():
        raise ValueError(f"--cache {cache!r} is not a share of the experts' bytes; write 37.5%")
    return sliced_policy.inside_model(parse_params(param), float(share) / 100, scheme, n_items=max_items or DEFAULT_WINDOWS)


def _measure_policy(
    model: str, names: list[str], run: Any, seeds: int, device: str, dtype: str, show: Any
) -> list[dict[str, Any]]:
    from capture import models
    from capture.evaluate_policy import evaluate_policy

    loaded = models.load(models.find(model), device, dtype)
    return [evaluate_policy(loaded, name, run, seed, show)[0] for name in names for seed in range(seeds)]


MEASURED = ("bits_per_byte", "perplexity", "kl", "acceptance", "accuracy", "miss_frac", "flash_bytes_per_token")


def _short(value: object) -> object:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else value


def train_embedded(
    out: Annotated[Path, typer.Option("--out", help="Folder of the checkpoint and then of the model.")],
    tokens: Annotated[int, typer.Option(help="Length of the schedule in tokens; decides the weights.")] = 28_000_000,
    minutes: Annotated[float | None, typer.Option(help="Pause after so long; the same command goes on.")] = None,
    seed: Annotated[int | None, typer.Option(help="[default: the shipped model's]", show_default=False)] = None,
) -> None:
    """Train the embedded model again, on one core; about two hours for the default.

    The same command goes on after a pause or a kill, and ends with the same bits on the same machine and versions.
    """
    from capture.embedded.card import write_card
    from capture.embedded.recipe import Recipe
    from capture.embedded.train import train
    from flows.console import note

    recipe = Recipe(tokens=tokens) if seed is None else Recipe(tokens=tokens, seed=seed)

    def line(row: dict[str, Any]) -> None:
        note(
            f"step {row['step']}/{recipe.n_steps}, {row['tokens'] / 1e6:.1f} M tokens, nats/token: text {row['text_nats']}, math "
            f"{row['math_nats']}, recall {row['recall_nats']} (level {row['recall_level']}), {row['tokens_per_s']} tokens/s"
        )

    log = train(out, recipe, minutes, line)
    if log is None:
        note(f"paused; the same command goes on from {out}")
        return
    note("trained; measuring it on the held-out data sets")
    write_card(out, recipe, log)
    print(out)

"""capture, record, models train: tapes of a model that runs here or of a server, and models. Settings and their checks are
capture/'s own."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tokentape.flows.commands import imports
from tokentape.flows.console import mebibytes, note, progress_bar
from tokentape.flows.options import DeviceOption, DtypeOption, ModelOption, StoreOption, argument, asked, option

DatasetOption = Annotated[
    str,
    option(
        "code, docs, math, recall (made on this machine), a hub id, or a .jsonl, .txt or .parquet file; a+b: by turns.",
        "--dataset",
    ),
]
TablesOption = Annotated[
    str,
    option(
        "Comma-separated: requests, tokens, passes, routing, scores, attention; dense models: no routing. With --draft also "
        "acceptance and rounds, and routing, scores and attention of all nodes. Or losses alone: experts at 1 to 4 bits, "
        "calibrated on the prompts.",
        "--tables",
    ),
]
SplitOption = Annotated[str | None, option("Split of a hub data set. [default: test, else the first]")]
SubsetOption = Annotated[str | None, option("Configuration of a hub data set.")]
FieldOption = Annotated[str | None, option("Field that holds the prompt. [default: prompt, text or question]")]


def capture(
    ctx: typer.Context,
    model: ModelOption,
    dataset: DatasetOption,
    tables: TablesOption = "requests,tokens,routing,scores",
    max_requests: Annotated[int, option("Prompts to run.", min=1)] = 32,
    max_prompt_tokens: Annotated[int, option("Longer prompts are cut.")] = 256,
    max_new_tokens: Annotated[int, option("Tokens after each prompt; 0 records prefill only.")] = 128,
    batch_size: Annotated[int, option("Requests per forward pass; with --draft, requests that share a pool.")] = 1,
    teacher_forced: Annotated[
        bool, option("Feed the data set's own continuation, generate nothing.", "--teacher-forced")
    ] = False,
    temperature: Annotated[float, option("0 is greedy.")] = 0.0,
    top_p: Annotated[float, option("Nucleus sampling.")] = 1.0,
    top_k: Annotated[int, option("Sample among so many tokens; 0 is all.")] = 0,
    chat_template: Annotated[bool, option("Wrap prompts in the model's chat template.", "--chat-template")] = False,
    attention: Annotated[str, option("What to keep of attention rows: full, top:M or block:N.")] = "full",
    attention_rows: Annotated[
        int, option("Also keep the rows of each prompt's last N queries one by one: tova and snapkv then replay exactly.")
    ] = 0,
    query_heads: Annotated[
        bool, option("Also keep a prompt's attention sums of every query head, not of KV heads alone.", "--query-heads")
    ] = False,
    key_pages: Annotated[
        int, option("Also keep minima and maxima of keys by page of N tokens, and decoded queries: quest then replays.")
    ] = 0,
    compact_scores: Annotated[
        bool, option("Round scores to 11 bits, but where a decision would change (docs/tape.md).", "--compact-scores")
    ] = False,
    split: SplitOption = None,
    subset: SubsetOption = None,
    field: FieldOption = None,
    device: DeviceOption = "auto",
    device_map: Annotated[str | None, option("Device map for transformers, such as auto; instead of --device.")] = None,
    dtype: DtypeOption = "auto",
    quantization: Annotated[
        str | None, option("int8, int4, fp8: linear layers at load (torchao; not stacked experts); none: unpack FP8, MXFP4.")
    ] = None,
    seed: Annotated[int, option("For sampling, a random pool, and which tokens calibrate losses.")] = 0,
    draft: Annotated[
        str | None,
        option(
            "Draft and verify: elastic (the model at few bits among a pool of experts), quant (a low-bit copy), eagle (the "
            "embedded model's head), model:ID (a small model), ngram (prompt lookup). The output stays the model's own. "
            "[default: decode token by token]"
        ),
    ] = None,
    draft_depth: Annotated[int, option("Levels of a draft.")] = 4,
    draft_width: Annotated[int, option("Nodes per level; 1 is a chain.")] = 1,
    verify_nodes: Annotated[int | None, option("Most nodes verified in a round. [default: all]")] = None,
    pool: Annotated[str, option("elastic: hotness, lru, static, random, oracle (a bound).")] = "hotness",
    pool_frac: Annotated[float, option("elastic: share of a layer's experts in the pool.")] = 0.5,
    draft_bits: Annotated[int, option("elastic, quant: bits of 8 that the drafter reads; 0: weights as loaded.")] = 4,
    draft_scheme: Annotated[
        str | None, option("How low bits follow from 8 (docs/quantise.md). [default: elastic lsb_aug, quant base_sym]")
    ] = None,
    draft_static: Annotated[str, option("Attention, shared parts and head: slices (draft bits too) or full.")] = "slices",
    store: StoreOption = None,
    resume: Annotated[bool, option("Go on with a capture of the same settings that was stopped.", "--resume")] = False,
) -> None:
    """Run a model over a data set and record what it did as a tape. Prints the trace id.

    Equal settings find the finished tape. A capture that was stopped, however hard, ends with the same tape under --resume.
    With --draft the requests of a batch go round by round together and share the drafter's pool; docs/speculation.md.

    tokentape capture --model embedded --dataset math
    tokentape capture --model Qwen/Qwen3-30B-A3B --dataset prompts.jsonl --device-map auto --max-requests 100
    tokentape capture --model ./my-llama --dataset my.txt --tables requests,tokens,attention --attention top:64
    tokentape capture --model embedded --dataset math --tables tokens,routing,scores,acceptance,rounds --draft elastic
    tokentape capture --model Qwen/Qwen3-30B-A3B --dataset prompts.jsonl --draft model:Qwen/Qwen3-0.6B --draft-width 4
    tokentape capture --model embedded --dataset docs --tables losses --max-requests 128
    """
    from tokentape.capture.run import CaptureSettings, estimate
    from tokentape.capture.run import capture as record
    from tokentape.capture.speculation.settings import DraftSettings

    speculation = None
    if draft is not None:
        knobs = (draft_depth, draft_width, verify_nodes, pool, pool_frac, draft_bits, draft_scheme, draft_static)
        speculation = DraftSettings(draft, *knobs)
    named = tuple(name.strip() for name in tables.split(",") if name.strip())
    settings = asked(CaptureSettings, ctx, tables=named, speculation=speculation)
    expected = estimate(settings, store)
    free = "" if expected.free_bytes is None else f", {mebibytes(expected.free_bytes)} MiB free in {store.uri}"
    table, size = expected.largest
    disk = f"{mebibytes(expected.total_bytes)} MiB, of it {mebibytes(size)} in {table}"
    note(f"{expected.n_requests} requests, up to {expected.n_tokens:,} tokens, at most {disk}{free}")
    note("memory of a batch: " + ", ".join(f"{what} {mebibytes(n)} MiB" for what, n in expected.memory_bytes.items()))
    with progress_bar(f"capture {dataset}") as show:
        trace_id = record(settings, store, resume, show)
    print(trace_id)


def record(
    url: Annotated[str, argument("URL", "A running server, such as http://localhost:8000.")],
    model: imports.ModelOption,
    dataset: DatasetOption,
    engine: Annotated[str, option("What the server is: vllm or sglang.", "--from")] = "vllm",
    max_requests: Annotated[int, option("Prompts to send.", min=1)] = 32,
    max_new_tokens: Annotated[int, option("Tokens after each prompt.", min=1)] = 128,
    temperature: Annotated[float, option("0 is greedy.")] = 0.0,
    seed: Annotated[int, option("For sampling.")] = 0,
    concurrency: Annotated[int, option("Requests that the server has at once.", min=1)] = 8,
    split: SplitOption = None,
    subset: SubsetOption = None,
    field: FieldOption = None,
    out: Annotated[Path, option("Folder of the responses, which stay.")] = Path(),
    store: StoreOption = None,
) -> None:
    """Send prompts to a running vLLM or SGLang server and record what its routers chose as a tape. Prints the trace id.

    The server must return routed experts (--enable-return-routed-experts). Where vLLM also returns what it accepted of its drafts
    (--per-request-spec-decode-metrics), that is a second tape. Stop it at any time; the same command goes on.

    tokentape record http://localhost:8000 --model qwen3-30b-a3b --dataset prompts.jsonl --max-requests 200
    tokentape record --from sglang http://localhost:30000 --model config.json --dataset math
    """
    from tokentape.capture.datasets import items
    from tokentape.capture.importers import sglang, vllm
    from tokentape.capture.importers.acceptance import import_acceptance
    from tokentape.capture.served import TOLD
    from tokentape.capture.served import record as responses_of
    from tokentape.flows.workers import gone_soon
    from tokentape.warehouse.models import config_path

    config = config_path(model)
    found = items(dataset, max_requests, split, field, subset)
    if chats := [item.name for item in found if item.turns]:
        remedy = "send it yourself, and give what is answered to `tokentape import`"
        raise ValueError(f"{chats[0]} is a chat, of which the server would see the words alone; {remedy}")
    prompts = [item.prompt for item in found]
    sampling = {"max_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    with gone_soon(), progress_bar(f"record from {url}") as advance:
        path = responses_of(url, engine, prompts, sampling, out, concurrency, advance)
    note(f"responses in {path}")
    held = path.read_bytes()
    routed, drafted = (told.search(held) for told in TOLD)
    if routed:
        convert = vllm.import_vllm if engine == "vllm" else sglang.import_sglang
        imports.report(store, convert, [path], config, store)
    if drafted:
        imports.report(store, import_acceptance, path, store)


def train_embedded(
    out: Annotated[Path, option("Folder of the checkpoint and then of the model.")],
    tokens: Annotated[int, option("Length of the schedule in tokens; decides the weights.")] = 28_000_000,
    minutes: Annotated[float | None, option("Pause after so long; the same command goes on.")] = None,
    seed: Annotated[int | None, option("[default: the shipped model's]")] = None,
) -> None:
    """Train the embedded model again, on one core; about two hours for the default.

    The same command goes on after a pause or a kill, and ends with the same bits on the same machine and versions.
    """
    from tokentape.capture.embedded.card import write_card
    from tokentape.capture.embedded.recipe import Recipe
    from tokentape.capture.embedded.train import train

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

"""import: traces of other engines become tapes. Formats and their checks are capture/importers' own."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from tokentape.flows.options import StoreOption, argument, option
from tokentape.policies.names import refuse_unknown

MaxBytesOption = Annotated[int, option("Most bytes that FILE may hold once unpacked, or make as rows. [default: 2 GiB]", min=1)]
TWO_GIB = 2 << 30
ModelOption = Annotated[str, option("The model: a shipped one by name, or its config.json.", "--model", metavar="NAME|JSON")]


def import_bigmoe(
    file: Annotated[Path, argument("FILE", "A `route_trace v1` CSV of BigMoeOnEdge.")],
    model: Annotated[
        str | None, option("Widths and heads, which the trace lacks: a shipped model or its config.json.", metavar="NAME|JSON")
    ] = None,
    max_bytes: MaxBytesOption = TWO_GIB,
    store: StoreOption = None,
) -> str:
    """Import a BigMoeOnEdge route trace, its measured residency included. Prints the trace id; then try `tokentape verify`.

    \b
    Examples:
      tokentape import bigmoe qwen.route.csv --model qwen3-30b-a3b
    """
    from tokentape.capture.importers.bigmoe import import_bigmoe as convert
    from tokentape.warehouse.models import config_path

    return report(store, convert, file, store, max_bytes, None if model is None else config_path(model))


def import_vllm(
    files: Annotated[
        list[Path],
        argument(
            "FILE...",
            "Responses of the server (JSON lines), or .npz with routed_experts and prompt_token_ids, token_ids or "
            "prompt_routed_experts.",
        ),
    ],
    model: ModelOption,
    max_bytes: MaxBytesOption = TWO_GIB,
    store: StoreOption = None,
) -> str:
    """Import routed experts recorded by vLLM (--enable-return-routed-experts), all requests as one tape. Prints the trace id.

    tokentape import vllm responses.jsonl --model qwen3-30b-a3b
    tokentape import vllm request-*.npz --model config.json
    """
    from tokentape.capture.importers.vllm import import_vllm as convert
    from tokentape.warehouse.models import config_path

    return report(store, convert, files, config_path(model), store, max_bytes)


def import_sglang(
    files: Annotated[
        list[Path],
        argument(
            "FILE...", "Responses of the server (JSON lines), or dumps of the expert distribution recorder in per_token mode."
        ),
    ],
    model: ModelOption,
    max_bytes: MaxBytesOption = TWO_GIB,
    store: StoreOption = None,
) -> str:
    """Import routed experts recorded by SGLang: of responses (--enable-return-routed-experts), or of its recorder's .pt files.

    All requests are one tape. Of ranks that saw the same tokens (tensor parallel) give one file. Prints the trace id.

    tokentape import sglang responses.jsonl --model qwen3-30b-a3b
    tokentape import sglang expert_distribution_recorder_1758079621.5_0.pt --model config.json
    """
    from tokentape.capture.importers.sglang import import_sglang as convert
    from tokentape.warehouse.models import config_path

    return report(store, convert, files, config_path(model), store, max_bytes)


def import_routing(
    files: Annotated[list[Path], argument("FILE...", "CSV, JSON lines or Parquet, also packed (.gz).")],
    preset: Annotated[
        str | None,
        option(
            "A published format: moe-trace, moe-trace-positions, moe-trace-ranks (llama.cpp), moe-cache-lab, megatron, "
            "flame-moe, expert-selection-trace, moe-beyond or vllm-log. Other options stand in place of its own."
        ),
    ] = None,
    layer: Annotated[str | None, option("Column: absolute layer. [default: layer]")] = None,
    experts: Annotated[str | None, option("Column: list of expert ids, or one id per row. [default: expert_ids]")] = None,
    phase: Annotated[
        str | None,
        option(
            "Column: prefill or decode (prompt, generation, 0, 1); or one of the two words for all rows; or widths: a pass of "
            "one token decodes, with --order executed. [default: phase]"
        ),
    ] = None,
    request: Annotated[
        str | None, option("Column: name of the request. [default: request_id; without it all rows are one]")
    ] = None,
    position: Annotated[
        str | None,
        option("Column: token's position, from 0. [default: position; without it rows of a request and layer are counted]"),
    ] = None,
    weights: Annotated[str | None, option("Column: gate weights, as experts. [default: gate_weights; without it null]")] = None,
    top_k: Annotated[
        int | None, option("Experts per token, with one id per row and no position. [default: the model's]", min=1)
    ] = None,
    where: Annotated[str | None, option("Only rows with it, such as type=route.", metavar="COLUMN=VALUE")] = None,
    many: Annotated[
        str | None,
        option(
            "What each file is: parts (of one table, in the order given), requests (one each) or layers (one each). "
            "[default: parts]",
            "--files",
        ),
    ] = None,
    order: Annotated[
        str | None,
        option(
            "What the order of rows means: requests (nothing: one after another, a prefill as one pass layer by layer, then "
            "token by token) or executed (as the engine ran them). [default: requests]"
        ),
    ] = None,
    form: Annotated[str | None, option("csv, jsonl, parquet, or steps (a JSON list of passes). [default: by the name]")] = None,
    model: Annotated[
        str | None, option("A shipped model by name, or its config.json; or give --n-experts.", metavar="NAME|JSON")
    ] = None,
    n_experts: Annotated[int | None, option("Experts per layer of a model without a config.", min=1)] = None,
    expert_bytes: Annotated[int | None, option("With --n-experts: bytes of one expert, for replays.", min=1)] = None,
    max_bytes: MaxBytesOption = TWO_GIB,
    store: StoreOption = None,
) -> str:
    """Import any table of routing, by the names of its columns or as a preset reads it. Prints the trace id; the manifest states
    what was read how.

    tokentape import routing moe_trace.csv --preset moe-trace --model qwen3-30b-a3b
    tokentape import routing layer-*.parquet --preset flame-moe --n-experts 64
    tokentape import routing log.jsonl --where type=route --request req_id --position token_idx --experts topk_ids \\
        --weights topk_weights --phase decode --model config.json
    """
    from tokentape.capture.importers.routing_columns import USUAL, Layout
    from tokentape.capture.importers.routing_table import import_routing as convert
    from tokentape.warehouse.models import config_path

    column, equals, value = (where or "").partition("=")
    if where is not None and not (column and equals):
        raise ValueError(f"--where {where!r}: give COLUMN=VALUE")
    layout = Layout.of(
        preset,
        dict(zip(USUAL, (request, position, layer, experts, weights, phase), strict=True)),
        form=form,
        files=many,
        order=order,
        top_k=top_k,
        where=(column, value) if where is not None else None,
    )
    config = None if model is None else config_path(model)
    return report(store, convert, files, store, layout, config, n_experts, expert_bytes, max_bytes)


def import_acceptance(
    file: Annotated[Path, argument("FILE", "Responses of vLLM's server: JSON or JSON lines.")],
    max_bytes: MaxBytesOption = TWO_GIB,
    store: StoreOption = None,
) -> str:
    """Import how many drafted tokens vLLM accepted per request and step (--per-request-spec-decode-metrics). Prints the trace id.

    Any drafter's: n-gram, EAGLE, MTP or a model. `detailed` keeps the steps in order. Then try `tokentape decide draft`.

    tokentape import acceptance responses.jsonl
    """
    from tokentape.capture.importers.acceptance import import_acceptance as convert

    return report(store, convert, file, store, max_bytes)


def import_requests(
    files: Annotated[list[Path], argument("FILE...", "CSV or JSONL, also packed (.gz); several are one trace.")],
    form: Annotated[
        str | None,
        option(
            "azure, burstgpt, servegen, bailian, mooncake, servegen-offline, llmservingsim, vllm or csv. [default: by the name "
            "and the columns of FILE]"
        ),
    ] = None,
    arrival: Annotated[str | None, option("Column of a CSV: seconds, or a date and time. [default: arrival_s]")] = None,
    prompt: Annotated[str | None, option("Column of a CSV: prompt tokens. [default: n_prompt_tokens]")] = None,
    output: Annotated[str | None, option("Column of a CSV: output tokens. [default: n_output_tokens]")] = None,
    max_bytes: MaxBytesOption = TWO_GIB,
    store: StoreOption = None,
) -> str:
    """Import when requests came and how long they were: traces of Azure, BurstGPT, ServeGen, Bailian, Mooncake, LLMServingSim,
    the request log of a vLLM engine, or any CSV. Prints the trace id.

    tokentape import requests AzureLLMInferenceTrace_code.csv
    tokentape import requests BurstGPT_1.csv BurstGPT_2.csv
    tokentape import requests log.csv --arrival when --prompt tokens_in --output tokens_out
    tokentape serving simulate --workload TRACE --scheduler layered --rate 2
    """
    from tokentape.capture.importers.request_traces import FORMS, Form
    from tokentape.capture.importers.request_traces import import_requests as convert
    from tokentape.flows.console import note, quantity

    usual = "mooncake" if _is_json(files[0]) else "csv"
    name = form or ("csv" if any((arrival, prompt, output)) else published_form(files[0]) or usual)
    refuse_unknown("form of requests", name, (*FORMS, "csv"))
    told = Form((arrival or "arrival_s", prompt or "n_prompt_tokens", output or "n_output_tokens")) if name == "csv" else name
    trace_id = report(store, convert, files, store, told, "", max_bytes)
    came = store.open(trace_id).read("requests")["arrival_s"]
    note(f"{len(came):,} requests, the last {quantity(came.max(), 's')} after the first")
    return trace_id


def import_chats(
    dataset: Annotated[str, argument("DATASET", "A hub id (owner/name), or a .jsonl or .parquet file, of chats.")],
    model: Annotated[str, option("Whose tokens are counted: embedded, a hub id or a local directory.")],
    max_chats: Annotated[int, option("Chats, from the first.")] = 1000,
    split: Annotated[str | None, option("Of a hub data set. [default: test, else the first]")] = None,
    subset: Annotated[str | None, option("Of a hub data set.")] = None,
    store: StoreOption = None,
) -> str:
    """Import chats as requests, one per answer: WildChat, LMSYS-Chat-1M, ShareGPT or a file of messages. Prints the trace id.

    tokentape import chats allenai/WildChat-1M --model Qwen/Qwen3-30B-A3B
    tokentape import chats ShareGPT_V3.jsonl --model embedded
    """
    from tokentape.capture import models
    from tokentape.capture.importers.chats import import_chats as convert

    if max_chats < 1:
        raise ValueError(f"--max-chats {max_chats} must be 1 or more")
    source = models.find(model)
    return report(store, convert, dataset, store, models.load_tokenizer(source), source.model_id, max_chats, split, subset)


def published_form(file: Path) -> str | None:
    """Of a file of requests, by its name and its first line; none where it is of no published one."""
    import gzip
    import json
    import zlib

    from tokentape.capture.importers.request_traces import FORMS

    opener, is_json = gzip.open if file.suffix == ".gz" else open, _is_json(file)
    try:
        with opener(file, "rt", encoding="utf-8-sig", errors="replace") as lines:
            header = lines.readline(1 << 20)
        names = set(json.loads(header) if is_json else header.strip().replace('"', "").split(","))
    except (EOFError, gzip.BadGzipFile, zlib.error, ValueError, TypeError, RecursionError):  # the importer says what is wrong
        names = set()
    return next((name for name, form in FORMS.items() if form.is_of(names) and (form.form == "jsonl") == is_json), None)


def _is_json(file: Path) -> bool:
    """By its name: log.json, log.jsonl.gz, and not log.json.csv."""
    return ".json" in file.name and ".csv" not in file.suffixes


def importer_of(file: Path) -> str:
    """Which of these commands reads a file without more words. Raises BadImport where none does, OSError."""
    from tokentape.capture.importers.bigmoe import FORMAT
    from tokentape.capture.importers.limits import BadImport, read

    raw = read(file, TWO_GIB)
    if raw[:99].decode("utf-8-sig", "replace").startswith(FORMAT):
        return "bigmoe"
    if b'"speculative_decoding"' in raw and b'"routed_experts"' not in raw:
        return "acceptance"
    if published_form(file):
        return "requests"
    raise BadImport(
        f"{file}: no known format, or one that does not say its model; give --from 'vllm --model NAME', say, or move it"
    )


def report(store: Any, convert: Callable[..., str], *given: Any) -> str:
    """Imports; the trace id, on stdout too; how long it takes, and what looks wrong about the trace, on stderr."""
    from tokentape.flows.console import note, progress_bar

    with progress_bar(convert.__name__.replace("_", " ")):
        trace_id = convert(*given)
    note(*(f"check {name}: {detail}" for name, detail in store.open(trace_id).manifest.flags.items()))
    print(trace_id)
    return trace_id

"""What a capture will do, worked out before any weight is loaded: its prompts, its name, its size on disk.

The trace id is a slug of model and data set plus a hash of the settings, the model's files, the prompts, the type of the device
and the dtype that `auto` came to, and the versions of torch, transformers and tokentape. So equal captures get equal names; a
changed file, another device or another version gets a new one, and a resumed tape is never a mix of two.
"""

import hashlib
import json
import re
import shutil
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from tokentape.capture import datasets, models, quantised
from tokentape.capture.checkpoint import FLOATS, stored_tensors
from tokentape.capture.embedded.texts import Item
from tokentape.capture.live.loop import Request, Sampling
from tokentape.capture.losses.experts import METHODS
from tokentape.capture.shard import AttentionKeep
from tokentape.capture.speculation.eagle import manifest_for
from tokentape.capture.speculation.settings import DraftSettings
from tokentape.policies.names import unknown
from tokentape.policies.replicas import WIDTHS
from tokentape.policies.speculation.tree import Shape
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.model_config import from_config
from tokentape.warehouse.tape import Store

TABLES = ("requests", "tokens", "passes", "routing", "scores", "attention")
SPECULATIVE = ("acceptance", "rounds")  # with a drafter, always; and for `routing` and `scores` the same of all nodes
OF_NODES = {"routing": "node_routing", "scores": "node_scores"}
OF_LOSSES = ("requests", "losses")  # of a tape of its own: it is about weights, its requests are the calibration text
ALWAYS = ("requests", "passes")  # `requests` marks a shard complete, `passes` carries the pass ids on
DEFAULT_TABLES = ("requests", "tokens", "passes", "routing", "scores")
# Named by a tape only where they are given:
ASKED = ("quantization", "speculation", "attention_rows", "query_heads", "key_pages", "compact_scores")
SHARD_BYTES, SHARD_REQUESTS = 256 << 20, 16


@dataclass(frozen=True)
class CaptureSettings:
    """Everything that decides a tape. Lengths in tokens; the defaults suit the embedded model's context of 512."""

    model: str
    dataset: str
    tables: tuple[str, ...] = DEFAULT_TABLES
    max_requests: int = 32
    max_prompt_tokens: int = 256
    max_new_tokens: int = 128
    batch_size: int = 1
    device: str = "auto"
    device_map: str | None = None
    dtype: str = "auto"
    quantization: str | None = None
    seed: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    teacher_forced: bool = False
    chat_template: bool = False
    attention: str = "full"
    attention_rows: int = 0
    query_heads: bool = False
    key_pages: int = 0
    compact_scores: bool = False
    split: str | None = None
    subset: str | None = None
    field: str | None = None
    speculation: DraftSettings | None = None  # None: ordinary decoding; batch_size requests then share the drafter's pool

    def __post_init__(self) -> None:
        known = (*TABLES, *SPECULATIVE, *OF_NODES.values(), "losses")
        if strange := [table for table in self.tables if table not in known]:
            raise unknown("table", strange[0], known)
        object.__setattr__(self, "tables", self._of_losses() if "losses" in self.tables else self._of_requests())
        counts = ("max_requests", "max_prompt_tokens", "batch_size", "max_new_tokens", "attention_rows", "key_pages")
        for name, least in zip(counts, (1, 1, 1, 0, 0, 0), strict=True):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be {least} or more")
        _ = self.sampling, self.keep  # both refuse bad values
        if self.quantization in quantised.WIDTHS and (self.speculation is not None or "losses" in self.tables):
            raise ValueError("--quantization goes neither with --draft nor with --tables losses, which quantise by themselves")
        if self.attention_rows and ("attention" not in self.tables or self.keep.kind == "block"):
            why = "sums over blocks name no single row" if self.keep.kind == "block" else "table attention is not recorded"
            raise ValueError(f"--attention-rows: {why}; give --tables attention and --attention full or top:N")
        if (self.query_heads or self.key_pages) and ("attention" not in self.tables or (self.key_pages and self.speculation)):
            raise ValueError("--query-heads and --key-pages are columns of --tables attention, and pages do not go with --draft")

        if self.compact_scores and "scores" not in self.tables:
            raise ValueError("--compact-scores is of table scores, which is not recorded; leave it out or add scores to --tables")

    def _of_losses(self) -> tuple[str, ...]:
        """The tables, and no new tokens: the prompts are the calibration text."""
        others = [table for table in self.tables if table not in OF_LOSSES]
        if others:
            raise ValueError(f"table losses is about weights and has a tape of its own; capture {others[0]} with another command")
        if self.speculation is not None or self.teacher_forced:
            what = "--teacher-forced" if self.teacher_forced else "--draft"
            raise ValueError(f"{what} does not go with --tables losses, which runs prompts only: leave one of them out")
        object.__setattr__(self, "max_new_tokens", 0)
        return OF_LOSSES

    def _of_requests(self) -> tuple[str, ...]:
        tables = tuple(t for t in TABLES if t in self.tables or t in ALWAYS)
        if self.speculation is not None:
            tables += (*SPECULATIVE, *(nodes for table, nodes in OF_NODES.items() if table in tables))
            if self.teacher_forced:
                raise ValueError("--teacher-forced does not go with --draft: leave one of them out")
        elif asked := [t for t in self.tables if t not in TABLES]:
            raise ValueError(f"table {asked[0]} is of speculative decoding; name a drafter, such as --draft elastic")
        return tables

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.top_k)

    @property
    def keep(self) -> AttentionKeep:
        return AttentionKeep.parse(self.attention)

    def recorded(self) -> dict[str, Any]:
        """As the manifest and the tape's name hold them; without what was not asked for."""
        return {name: value for name, value in asdict(self).items() if name not in ASKED or value}


@dataclass(frozen=True)
class Estimate:
    """Upper bounds before compression: every prompt at its limit, no early end."""

    n_requests: int
    n_tokens: int
    table_bytes: dict[str, int]
    free_bytes: int | None  # of the store's disk; None where the store is remote
    memory_bytes: dict[str, int]  # of a batch at its limits, by what it is for; no weights where they are not on this machine

    @property
    def total_bytes(self) -> int:
        return sum(self.table_bytes.values())

    @property
    def largest(self) -> tuple[str, int]:
        """The table that takes most, and its bytes."""
        return max(self.table_bytes.items(), key=lambda of: of[1])

    @property
    def fits(self) -> bool:
        return self.free_bytes is None or self.total_bytes <= self.free_bytes


@dataclass(frozen=True)
class Plan:
    """A capture with its model found and its prompts read."""

    settings: CaptureSettings
    source: models.Source
    items: list[Item]
    geometry: Geometry  # as the config states it
    trace_id: str
    small: models.Source | None = None  # the drafter `model:ID`
    is_unpacked: bool = False  # weights of a quantised checkpoint become plain floats

    @property
    def shard_requests(self) -> int:
        """Requests per shard: whole batches, at most about 256 MiB of rows, at least one batch."""
        per_request = sum(_table_bytes(self.settings, self.geometry, 1).values())
        n = max(1, min(SHARD_REQUESTS, SHARD_BYTES // max(1, per_request)))
        return max(1, n // self.settings.batch_size) * self.settings.batch_size


def plan(settings: CaptureSettings) -> Plan:
    """Finds the model and reads the prompts. Raises ValueError or OSError with one line for whatever is wrong with them."""
    source = models.find(settings.model)
    place = None if settings.device_map else models.resolve_device(settings.device)
    how = quantised.options(source, settings.quantization, place)
    draft, asked = settings.speculation, settings.max_prompt_tokens + settings.max_new_tokens
    small = models.find(draft.model_id) if draft is not None and draft.model_id else None
    for of in (source,) if small is None else (source, small):
        if of.context is not None and asked > of.context:
            raise ValueError(
                f"{settings.max_prompt_tokens} prompt + {settings.max_new_tokens} new tokens exceed the context of {of.model_id} "
                f"({of.context}); lower --max-prompt-tokens or --max-new-tokens"
            )
    found = datasets.items(settings.dataset, settings.max_requests, settings.split, settings.field, settings.subset)
    geometry = from_config(source.config.to_dict())
    if not geometry.n_experts and "losses" in settings.tables:
        raise ValueError(f"{settings.model} is a dense model without experts: there are no losses to record")
    if not geometry.n_experts and {"routing", "scores"} & set(settings.tables):
        raise ValueError(f"{settings.model} is a dense model without expert routers; use --tables requests,tokens,attention")
    prints = [source.fingerprint] if small is None else [source.fingerprint, small.fingerprint]
    if draft is not None and draft.draft == "eagle":
        prints += manifest_for(source)["files"].values()
    is_unpacked = getattr(how.get("quantization_config"), "dequantize", False)
    return Plan(settings, source, found, geometry, _trace_id(settings, source, found, prints), small, is_unpacked)


def _trace_id(settings: CaptureSettings, source: models.Source, found: list[Item], prints: list[str]) -> str:
    # A device map may spread a model over several devices; the machine's accelerator stands for them.
    device = models.resolve_device("auto" if settings.device_map else settings.device).type
    runs_on = [device, models.resolve_dtype(source, settings.dtype), versions("torch", "transformers", "tokentape")]
    runs_on += [versions("gguf", "torchao")] if source.gguf or settings.quantization else []
    parts = json.dumps([settings.recorded(), *prints, digest_of(found), runs_on], sort_keys=True)
    return f"{slug(settings.model)}-{slug(settings.dataset)}-{hashlib.sha256(parts.encode()).hexdigest()[:8]}"


def digest_of(found: list[Item]) -> str:
    """SHA-256 of all that items say."""
    return hashlib.sha256(json.dumps([[i.name, i.prompt, i.solution, i.answer, *i.turns] for i in found]).encode()).hexdigest()


def versions(*packages: str) -> dict[str, str]:
    """Installed versions. A package run from a checkout that is not installed is left out."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def slug(name: str) -> str:
    """`Qwen/Qwen3-30B-A3B` -> `qwen3-30b-a3b`, `data/prompts.jsonl` -> `prompts`."""
    last = Path(name).name or Path(name).resolve().name
    stem = last.removesuffix(Path(last).suffix) if Path(last).suffix in datasets.SUFFIXES else last
    return re.sub(r"[^a-z0-9.]+", "-", stem.lower()).strip("-.") or "model"


def estimate(settings: CaptureSettings, store: Store, planned: Plan | None = None) -> Estimate:
    """Size of the tape and room for it. Loads no weights."""
    planned = planned or plan(settings)
    n = settings.max_requests if "losses" in settings.tables else len(planned.items)
    local = "file" in (store.fs.protocol if isinstance(store.fs.protocol, tuple) else (store.fs.protocol,))
    return Estimate(
        n_requests=n,
        n_tokens=n * (settings.max_prompt_tokens + settings.max_new_tokens),
        table_bytes=_table_bytes(settings, planned.geometry, n),
        free_bytes=_free_bytes(store.root) if local else None,
        memory_bytes=_memory_bytes(settings, planned),
    )


def _memory_bytes(settings: CaptureSettings, planned: Plan) -> dict[str, int]:
    """Weights as loaded, keys and values, and of eager attention one layer's matrix and its softmax in float32."""
    geometry, batch, prompt = planned.geometry, settings.batch_size, settings.max_prompt_tokens
    width = models.DTYPES.get(models.resolve_dtype(planned.source, settings.dtype), torch.float32).itemsize
    known = () if geometry.uncounted else geometry.attending  # no more is asked than a note on memory
    n_values = sum(geometry.of_layer(layer).kv_elements_per_token_layer for layer in known)
    sizes = {"keys and values": batch * (prompt + settings.max_new_tokens) * n_values * width}
    if "attention" in settings.tables:
        sizes["attention matrices"] = 2 * 4 * batch * geometry.n_heads * prompt**2
    if planned.source.gguf:
        return sizes | {"weights": width * sum(planned.source.gguf["stored_parameters"].values())}
    try:
        stored = stored_tensors(settings.model)
    except (OSError, ValueError):
        return sizes
    return sizes | {"weights": sum(t.n_values * width if planned.is_unpacked or t.dtype in FLOATS else t.n_bytes for t in stored)}


def _free_bytes(root: str) -> int:
    folder = Path(root).resolve()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _table_bytes(settings: CaptureSettings, geometry: Geometry, n_requests: int) -> dict[str, int]:
    """Bytes per table, uncompressed but with keys at what dictionary and run-length encoding leave of them (about 4 B a row)."""
    prompt, new = settings.max_prompt_tokens, settings.max_new_tokens
    tokens = n_requests * (prompt + new)
    rows = tokens * len(geometry.moe_layers)
    heads = geometry.n_layers * (1 if geometry.kv_lora_rank else geometry.n_kv_heads)
    lengths = np.concatenate([[prompt], prompt + np.arange(1, new)]) if new else np.array([prompt])
    masses = sum(settings.keep.values_per_row(int(n)) for n in lengths)
    masses_of_prompt = settings.keep.values_per_row(prompt)
    group = geometry.n_heads // max(1, geometry.n_kv_heads)
    vectors = 2 * -(-prompt // settings.key_pages) + new * (2 + group) if settings.key_pages else 0
    last, whole = min(settings.attention_rows, prompt), settings.keep.values_per_row(prompt + new)
    per_mass = 4 if settings.keep.kind == "full" else 8
    # A round outputs at least one token; its draft and its verify pass see at most so many nodes.
    shape = settings.speculation.shape if settings.speculation is not None else Shape(1)
    drafted = shape.depth * shape.width
    nodes = n_requests * new * (2 + drafted + min(drafted, shape.verify_nodes or drafted))
    layers, chosen = max(1, len(geometry.moe_layers)), geometry.top_k
    sizes = {
        "losses": 32 * layers * geometry.n_experts * len(WIDTHS) * len(METHODS),
        "acceptance": 24 * n_requests * new * drafted,
        "rounds": n_requests * new * layers * (24 + 10 * geometry.n_experts),
        "node_routing": nodes * layers * (8 + 8 * chosen),
        "node_scores": nodes * layers * (8 + 4 * geometry.n_experts),
        "requests": 120 * n_requests,
        "tokens": 12 * tokens,
        "passes": 16 * n_requests * (1 + new),
        "routing": rows * (4 + 6 * geometry.top_k),
        "scores": rows * (4 + 4 * geometry.n_experts),
        "attention": n_requests * heads * (per_mass * (masses + last * whole) + 12 * (len(lengths) + last))
        + n_requests * (geometry.n_layers * geometry.n_heads * (per_mass * masses_of_prompt + 20) if settings.query_heads else 0)
        + n_requests * heads * 4 * geometry.head_dim * vectors
        + (nodes * heads * (per_mass * whole + 24) if settings.speculation is not None else 0),
    }
    return {name: sizes[name] for name in settings.tables}


def requests(planned: Plan, tokenizer: PreTrainedTokenizerBase) -> list[Request]:
    """Prompts as token ids. A prompt with a question, or in a chat template, keeps its end, a document its beginning.

    Teacher-forced, a question is followed by the data set's own solution, a document by its own next tokens. For table losses
    prompts are pieces of their length: the first of every item, then the second ones, and so on. Raises ValueError for a prompt
    without tokens, or with one that the model does not have.
    """
    if "losses" in planned.settings.tables:
        size, pieces = planned.settings.max_prompt_tokens, list[list[tuple[int, ...]]]()
        for item in planned.items:
            whole = replace(item, prompt=item.prompt + (item.solution or ""))
            ids = datasets.prompt_ids(whole, tokenizer, planned.settings.model, planned.settings.chat_template)
            pieces.append([tuple(ids[start : start + size]) for start in range(0, len(ids), size)])
        taken = [piece for row in zip_longest(*pieces) for piece in row if piece]
        found = [Request(i, ids, 0) for i, ids in enumerate(taken[: planned.settings.max_requests])]
    else:
        found = [_request(i, item, planned.settings, tokenizer) for i, item in enumerate(planned.items)]
    largest = max((max(*request.prompt_ids, *(request.forced or ()), 0) for request in found), default=0)
    if largest >= planned.geometry.vocab:
        n_rows, remedy = planned.geometry.vocab, "give the model's own tokenizer"
        raise ValueError(f"{planned.settings.model}: its tokenizer gives token {largest}, the model has {n_rows}; {remedy}")
    return found


def _request(number: int, item: Item, settings: CaptureSettings, tokenizer: PreTrainedTokenizerBase) -> Request:
    ids = datasets.prompt_ids(item, tokenizer, settings.model, settings.chat_template)
    if not ids:
        raise ValueError(f"data set {settings.dataset}, item {item.name}: its prompt has no tokens; remove it")
    longest, new = settings.max_prompt_tokens, settings.max_new_tokens
    forced: list[int] | None = None
    is_document = item.answer is None and item.solution is None and not item.turns and not settings.chat_template
    if not is_document:
        prompt = ids[-longest:]
        if settings.teacher_forced:
            if not (follows := item.solution or item.answer):
                remedy = "give it an answer, or leave --teacher-forced out"
                raise ValueError(f"data set {settings.dataset}, item {item.name}: nothing follows its prompt; {remedy}")
            forced = tokenizer(follows, add_special_tokens=False)["input_ids"]
    elif settings.teacher_forced:
        n = min(longest, max(1, len(ids) - new))
        prompt, forced = ids[:n], ids[n:]
    else:
        prompt = ids[:longest]
    seed = int.from_bytes(hashlib.sha256(f"{settings.seed}:{number}".encode()).digest()[:8], "big") >> 1
    return Request(number, tuple(prompt), new, None if forced is None else tuple(forced[:new]), seed)

"""Capture: runs a model over a data set and writes what it did as a tape, shard by shard, the manifest last.

A shard is a fixed group of requests, run in fixed batches: so a capture that was killed and resumed writes the same rows, byte
for byte, as one that was not. Attaching and decoding live in routing.py, attention.py and live/loop.py; this file wires them.
"""

import logging
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import torch

from tokentape.capture import families, measure, models
from tokentape.capture.attention import AttentionCapture
from tokentape.capture.live.caches import windows_of
from tokentape.capture.live.loop import Pass, Request, Round, decode, refuse_nan
from tokentape.capture.live.slots import Inside
from tokentape.capture.losses.run import Report, record_losses
from tokentape.capture.plan import CaptureSettings, Estimate, Plan, estimate, plan, requests, versions
from tokentape.capture.routing import RoutingCapture
from tokentape.capture.rows import rows_of
from tokentape.capture.shard import ShardRecorder
from tokentape.capture.speculation.drafters import drafter_of
from tokentape.capture.speculation.tape import RoundRecorder
from tokentape.policies.compact import compacted
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.tape import Store, TapeWriter, is_disk_full

__all__ = ["CaptureSettings", "Estimate", "capture", "estimate"]

REPORT_EVERY_S = 0.5
LOG = logging.getLogger("tokentape")
PACKAGES = ("tokentape", "torch", "transformers", "tokenizers", "numpy", "pyarrow")


class _Meter:
    """Counts inputs of prefill and decode alike, of as many as there can be, and tells `progress` at most twice a second and at
    the end of each batch."""

    def __init__(self, todo: list[Request], progress: Report) -> None:
        self.progress, self.n_requests = progress, len(todo)
        self.most_tokens = sum(_most_tokens(r) for r in todo)
        self.done = self.tokens = 0
        self.started = self.reported = time.monotonic()

    def skip(self, group: list[Request]) -> None:
        self.done += len(group)
        self.most_tokens -= sum(_most_tokens(r) for r in group)

    def passed(self, n_tokens: int) -> None:
        self.tokens += n_tokens
        if time.monotonic() - self.reported > REPORT_EVERY_S:
            self._tell()

    def finished(self, batch: list[Request]) -> None:
        self.done += len(batch)
        self._tell()

    def _tell(self) -> None:
        self.reported = time.monotonic()
        rate = self.tokens / max(1e-9, self.reported - self.started)
        self.progress(self.tokens, self.most_tokens, f"{self.done}/{self.n_requests} requests, {rate:,.0f} tokens/s")


@contextmanager
def _a_full_disk_says_how_to_go_on() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise OSError(error.errno, f"{error.strerror}; then run the same command again with --resume") from error
        raise


@_a_full_disk_says_how_to_go_on()
def capture(
    settings: CaptureSettings,
    store: Store,
    resume: bool = False,
    progress: Report = lambda done, total, text: None,
    loaded: models.Loaded | None = None,
) -> str:
    """Records the tape that `settings` describe and returns its trace id; at once if the store already holds it.

    A device that runs out of memory gets the tape of half the batch instead, from its start: no tape mixes two. loaded: the
    settings' model where it is loaded already. Raises ValueError or OSError with one line: unknown model or data set, a dense
    model asked for routing, no room on the disk or for one request, or an unfinished capture of these settings (give `resume`).
    """
    planned = plan(settings)
    writer = store.writer(planned.trace_id)
    if writer.is_finished:
        return planned.trace_id
    if writer.is_started and not resume:
        name = planned.trace_id
        raise ValueError(f"capture {name} was stopped before it finished; continue with --resume, or `tokentape rm {name}`")
    store.remove_stale()
    writer.remove_incomplete(settings.tables)
    found = estimate(settings, store, planned)
    if not found.fits:
        raise OSError(
            f"the tape may take {_size(found.total_bytes)} ({_size(found.largest[1])} in {found.largest[0]}) and {store.uri} has "
            f"{_size(found.free_bytes or 0)} free; lower --max-requests or --max-new-tokens, leave out --tables scores or "
            "attention, or give --store on another disk"
        )
    loaded = loaded or models.load(planned.source, settings.device, settings.dtype, settings.device_map, settings.quantization)
    try:
        return _recorded(planned, loaded, writer, progress)
    except torch.OutOfMemoryError as error:
        if settings.batch_size == 1 or settings.speculation is not None:
            what = "one request" if settings.batch_size == 1 else "a group that shares a drafter"
            remedy = "lower --max-prompt-tokens or --batch-size, leave out --tables attention, or give --device-map auto"
            raise ValueError(f"the device has no memory for {what} of {settings.model}: {remedy}") from error
    if not writer.has_shard(0):
        writer.discard()
    less = replace(settings, batch_size=settings.batch_size // 2)
    LOG.warning("out of memory with batches of %d: going on with %d, as another tape", settings.batch_size, less.batch_size)
    return capture(less, store, resume, progress, loaded)


def _recorded(planned: Plan, loaded: models.Loaded, writer: TapeWriter, progress: Report) -> str:
    settings, todo = planned.settings, requests(planned, loaded.tokenizer)
    with models.suitable_threads(loaded.model):
        if "tokens" in settings.tables:
            models.refuse_unless_causal(loaded, "a prompt has no nll: leave tokens out of --tables")
        geometry = measure.geometry(loaded.model)
        if "losses" in settings.tables:
            n_shards, attention = record_losses(loaded, todo, settings, writer, progress), None
        else:
            n_shards, attention = _record_requests(planned, loaded, todo, writer, _Meter(todo, progress))
    told = {"source": settings.model, "dataset": settings.dataset, "seed": settings.seed, "settings": settings.recorded()}
    told["attention"] = _attention_notes(settings, attention)
    writer.finish(settings.tables, n_shards, **facts_of(loaded, geometry), **told)
    return planned.trace_id


def _record_requests(
    planned: Plan, loaded: models.Loaded, todo: list[Request], writer: TapeWriter, meter: _Meter
) -> tuple[int, AttentionCapture | None]:
    """Writes every shard that is not there yet. How many there are, and what attention was recorded with."""
    settings = planned.settings
    n_shards = -(-len(todo) // planned.shard_requests)
    with ExitStack() as attached:
        routing = attention = natural = inside = None
        windows: list[int] = []
        wants_routing = bool({"routing", "scores"} & set(settings.tables))
        if settings.speculation is not None:
            on = (settings.device, settings.dtype, settings.device_map)
            small = None if planned.small is None else models.load(planned.small, *on)
            inside = Inside(loaded.model, drafter=drafter_of(loaded, settings.speculation, small, settings.seed))
            if wants_routing and inside.slots:
                natural = attached.enter_context(RoutingCapture(loaded.model, with_scores=False, is_first=True))
            attached.enter_context(inside)
        if wants_routing:
            routing = attached.enter_context(RoutingCapture(loaded.model, with_scores="scores" in settings.tables))
        if "attention" in settings.tables:
            windows = [] if inside is None else windows_of(loaded.model)
            attention = attached.enter_context(AttentionCapture(loaded.model, settings.query_heads, settings.key_pages > 0))
        for shard in range(n_shards):
            group = todo[shard * planned.shard_requests : (shard + 1) * planned.shard_requests]
            if writer.has_shard(shard):
                meter.skip(group)
                continue
            first_pass_id = writer.count_rows(("passes",), shard)["passes"]
            recorded = (routing, attention, settings.keep, first_pass_id)
            recorder: ShardRecorder
            if inside is not None:
                recorder = RoundRecorder(*recorded, natural, str(settings.speculation), settings.attention_rows, windows=windows)
            else:
                recorder = ShardRecorder(*recorded, n_last=settings.attention_rows, page=settings.key_pages)
            tables = _shard(loaded, group, settings, recorder, inside, meter)
            if settings.compact_scores:
                tables |= _compact(tables, *families.score_rule(loaded.model, planned.geometry.top_k), planned.geometry.top_k)
            writer.write_shard(shard, tables)
    return n_shards, attention


def _shard(
    loaded: models.Loaded,
    group: list[Request],
    settings: CaptureSettings,
    recorder: ShardRecorder,
    inside: Inside | None,
    meter: _Meter,
) -> dict[str, pa.Table]:
    def on_pass(done: Pass) -> None:
        recorder.record(done)
        meter.passed(sum(done.counts) if done.kind == "prefill" or inside is None else 0)

    def on_round(done: Round) -> None:
        if isinstance(recorder, RoundRecorder):
            recorder.rounds[done.request_id, done.number] = done
            meter.passed(len(done.committed))

    watch: dict[str, Any] = {"before_pass": recorder.before, "on_pass": on_pass, "on_round": on_round}
    watch["with_nll"] = "tokens" in settings.tables
    outcomes = []
    for start in range(0, len(group), settings.batch_size):
        batch = group[start : start + settings.batch_size]
        outcomes += decode(loaded.model, batch, settings.sampling, loaded.stop_ids, loaded.pad_id, inside, **watch)
        meter.finished(batch)
    tables = recorder.tables(group, outcomes, settings.dataset, settings.tables)
    refuse_nan(group, outcomes)  # what a table shows first says where
    return tables


def _compact(tables: Mapping[str, pa.Table], rule: str | None, params: Mapping[str, Any], top_k: int) -> dict[str, pa.Table]:
    """The tables of scores as policies/compact.py has them."""
    made = {}
    for name, rows in ((name, tables[name]) for name in ("scores", "node_scores") if name in tables and tables[name].num_rows):
        exact = rows["scores"].combine_chunks().values.to_numpy().reshape(rows.num_rows, -1)
        scores = rows_of(compacted(exact, rows["layer"].to_numpy(), rule, params, top_k))
        made[name] = rows.drop_columns("scores").append_column("scores", scores)
    return made


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.2f} MB"


def facts_of(loaded: models.Loaded, geometry: Geometry) -> dict[str, Any]:
    """What the manifest of a tape that `loaded` made says of it."""
    rule, params = families.score_rule(loaded.model, geometry.top_k) if geometry.moe_layers else (None, {})
    return {
        "origin": "captured",
        "model_id": loaded.source.model_id,
        "model_revision": loaded.source.fingerprint,
        "geometry": geometry,
        "score_rule": rule,
        "score_params": params,
        "weights": loaded.weights,
        "tokenizer_sha256": models.tokenizer_sha256(loaded.tokenizer),
        "versions": {"python": platform.python_version(), **versions(*PACKAGES)},
    }


def _attention_notes(settings: CaptureSettings, attention: AttentionCapture | None) -> dict[str, Any]:
    """How the attention rows are to be read."""
    if attention is None:
        return {}
    is_block = settings.keep.kind == "block"
    return {
        "keep": settings.attention,
        "prefill": "block_sum" if is_block else "column_sum",
        "decode": "block_sum" if is_block else "row",
        "n_kv_heads": attention.n_kv_heads,
        "query_heads_per_kv_head": attention.n_heads // attention.n_kv_heads,
        "is_latent": attention.is_latent,
        "dtype": "float32",
        "has_sinks": attention.has_sinks,
        **({"prompt_rows": settings.attention_rows} if settings.attention_rows else {}),
        **({"head_sums": "prefill"} if settings.query_heads else {}),
        **({"page_tokens": settings.key_pages} if settings.key_pages else {}),
    }


def _most_tokens(request: Request) -> int:
    return len(request.prompt_ids) + max(0, request.budget - 1)

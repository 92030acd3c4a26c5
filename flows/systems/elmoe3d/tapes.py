"""What tapes say: misses of an LRU by batch, experts touched by tokens of one request or of many, acceptance through the machine.

Every tape of the store is replayed, and one synthetic tape per model of the paper, since its own traces are not public.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from tokentape.capture.synthetic.tape import SynthesisSettings, synthesize
from tokentape.flows.grid import load_trace
from tokentape.flows.systems.elmoe3d.settings import Settings
from tokentape.hw.elmoe3d_constants import ElasticConstants
from tokentape.replay.elmoe3d.cells import Setup
from tokentape.replay.elmoe3d.mapping import SLICE_FRAC
from tokentape.replay.elmoe3d.measured import law_of, mean_accepted
from tokentape.replay.elmoe3d.of_tape import coverage, misses
from tokentape.replay.elmoe3d.points import CONTEXT_TOKENS, ELASTIC, QUANT, Point
from tokentape.replay.elmoe3d.rows import MEASURED, Job
from tokentape.replay.elmoe3d.shape import shape_of
from tokentape.replay.trace import DECODE, Trace
from tokentape.warehouse import models
from tokentape.warehouse.tape import Manifest, Store

DRAFTED_BY = {"elastic": ELASTIC, "quant": QUANT}  # of a capture's settings


def drawn(store: Store, study: Settings) -> list[str]:
    """Ids of the study's synthetic tapes, drawn where they are missing."""
    wanted = study.tapes
    how = SynthesisSettings(requests=wanted.requests, prompt=wanted.prompt, output=wanted.output, seed=wanted.seed, scores=False)
    return [synthesize(model.name, models.load(model.name).geometry, how, store) for model in study.models]


def routed(store: Store) -> list[str]:
    """Tapes of models with experts."""
    return [tape.trace_id for tape in store.readable() if tape.has("routing") and tape.geometry.moe_layers]


def rows_of(store: Store, study: Settings, fit: ElasticConstants, trace_id: str) -> dict[str, list[dict[str, Any]]]:
    """Rows of elastic_misses and coverage_points of one tape; none where it decodes nothing."""
    trace, manifest = load_trace(store, trace_id), store.open(trace_id).manifest
    if not (trace.pass_kind == DECODE).any():
        return {"elastic_misses": [], "coverage_points": []}
    law = fit.laws.get(manifest.model_id) or law_of(trace)
    of, where = study.tapes, {name: getattr(manifest, name) for name in ("origin", "model_id", "dataset")}
    return {
        "elastic_misses": misses(trace, where, law, of.batches, of.cache_fracs, of.warm_steps),
        "coverage_points": coverage(trace, manifest.model_id, law),
    }


def measured_jobs(store: Store, study: Settings, setup: Setup, fit: ElasticConstants, trace_id: str) -> list[Job]:
    """A tape's own acceptance through the machine; none where nothing was drafted from the model itself."""
    tape = store.open(trace_id)
    if _scheme(tape.manifest) is None or not tape.has("rounds"):
        return []
    return through_machine(tape.manifest, load_trace(store, trace_id), tape.read("rounds"), study, setup, fit)


def _scheme(manifest: Manifest) -> str | None:
    drafted = manifest.settings.get("speculation") or {}
    return DRAFTED_BY.get(drafted.get("draft", ""))


def through_machine(
    manifest: Manifest, trace: Trace, rounds: pl.DataFrame, study: Settings, setup: Setup, fit: ElasticConstants
) -> list[Job]:
    """The tape's model under the scheme it was drafted with, by hit law: its own popularity, accepted length, depth and batch.

    HB is as large as holds its pool, with the rates of the paper's largest machine; what a round costs is the fit's.
    """
    drafted, scheme = manifest.settings["speculation"], _scheme(manifest)
    assert scheme is not None
    shape, largest = shape_of(manifest.model_id, manifest.geometry), setup.machines[max(setup.machines)]
    batch = int(manifest.settings.get("batch_size") or 1)
    law, accepted = law_of(trace), mean_accepted(rounds)
    pool_bytes = SLICE_FRAC * float(drafted.get("pool_frac", 1.0)) * shape.all_expert_bytes
    needed = shape.static_bytes + shape.embedding_bytes + batch * CONTEXT_TOKENS * shape.kv_bytes_per_token
    point = Point(
        shape=shape,
        machine=replace(largest, hb_bytes=needed + pool_bytes),
        law=law,
        speculation=replace(fit.speculation, n_draft_steps=int(drafted["depth"])),
        scheme=scheme,
        batch=batch,
        accepted_len=accepted,
    )
    return [Job(MEASURED, replace(point, hit_model=hit_model), fit) for hit_model in study.hit_models]

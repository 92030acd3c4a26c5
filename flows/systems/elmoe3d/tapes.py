"""What tapes say: misses of an LRU by batch, experts touched by tokens of one request or of many, acceptance through the machine.

Every tape of the store is replayed, and one synthetic tape per model of the paper, since its own traces are not public.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from tokentape.capture.synthetic.tape import SynthesisSettings, synthesize
from tokentape.flows.grid import load_trace
from tokentape.flows.systems.elmoe3d.settings import Settings
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.replay.elmoe3d.points import ELASTIC, QUANT, Setup
from tokentape.replay.elmoe3d.rows import MEASURED, evaluated, point_rows
from tokentape.replay.elmoe3d.tape import coverage, law_of, misses, through_machine
from tokentape.replay.trace import DECODE
from tokentape.warehouse import models
from tokentape.warehouse.tape import Store

DRAFTED_BY = {"elastic": ELASTIC, "quant": QUANT}  # of a capture's settings


def drawn(store: Store, study: Settings) -> list[str]:
    """Ids of the study's synthetic tapes, drawn where they are missing."""
    wanted = study.tapes
    how = SynthesisSettings(requests=wanted.requests, prompt=wanted.prompt, output=wanted.output, seed=wanted.seed, scores=False)
    return [synthesize(model.name, models.load(model.name).geometry, how, store) for model in study.models]


def routed(store: Store) -> list[str]:
    """Tapes of models with experts."""
    return [tape.trace_id for tape in store.readable() if tape.has("routing") and tape.geometry.moe_layers]


def rows_of(store: Store, study: Settings, fit: ELMoE3DConstants, trace_id: str) -> dict[str, list[dict[str, Any]]]:
    """Rows of elmoe3d_misses and coverage_points of one tape; none where it decodes nothing."""
    trace, manifest = load_trace(store, trace_id), store.open(trace_id).manifest
    if not (trace.pass_kind == DECODE).any():
        return {"elmoe3d_misses": [], "coverage_points": []}
    law = fit.laws.get(manifest.model_id) or law_of(trace)
    of, where = study.tapes, {name: getattr(manifest, name) for name in ("origin", "model_id", "dataset")}
    return {
        "elmoe3d_misses": list(misses(trace, where, law, of.batches, of.cache_fracs, of.warm_steps)),
        "coverage_points": coverage(trace, manifest.model_id, law),
    }


def measured_rows(store: Store, study: Settings, setup: Setup, fit: ELMoE3DConstants, trace_id: str) -> list[dict[str, Any]]:
    """Rows of elmoe3d_points: a tape's own acceptance through the machine, by hit law; none where nothing was drafted from the
    model itself."""
    tape = store.open(trace_id)
    drafted = tape.manifest.settings.get("speculation") or {}
    scheme = DRAFTED_BY.get(drafted.get("draft", ""))
    if scheme is None or not tape.has("rounds"):
        return []
    batch, largest = int(tape.manifest.settings.get("batch_size") or 1), setup.machines[str(max(study.machines))]
    of = (tape.manifest.model_id, load_trace(store, trace_id), tape.read("rounds"))
    point, own = through_machine(*of, drafted, scheme, batch, largest, fit)
    points = pl.concat(point.with_columns(series=pl.lit(MEASURED), hit_model=pl.lit(law)) for law in study.hit_models)
    return point_rows(evaluated(points, own, study.profile), own)

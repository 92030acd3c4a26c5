"""What tapes say: misses of an LRU by batch, experts touched by tokens of one request or of many, acceptance through the machine.

Every tape of the store is replayed, and one synthetic tape per model of the paper, since its own traces are not public.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from tokentape.capture.synthetic.tape import SynthesisSettings, synthesize
from tokentape.flows.grid import load_trace
from tokentape.flows.systems.elmoe3d.points import MEASURED, Job
from tokentape.flows.systems.elmoe3d.settings import Settings
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants, ModelLaw
from tokentape.replay.coverage import ONE_REQUEST, recorded_by_layer
from tokentape.replay.elmoe3d.cells import Setup
from tokentape.replay.elmoe3d.hits import HIT_LAWS
from tokentape.replay.elmoe3d.interleaved import interleaved, lru_miss_frac
from tokentape.replay.elmoe3d.mapping import SLICE_FRAC
from tokentape.replay.elmoe3d.measured import law_of, mean_accepted
from tokentape.replay.elmoe3d.points import CONTEXT_TOKENS, ELASTIC, QUANT, Point
from tokentape.replay.elmoe3d.shape import shape_of
from tokentape.replay.elmoe3d.unions import touched, weights_of
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


def rows_of(store: Store, study: Settings, fit: ELMoE3DConstants, trace_id: str) -> dict[str, list[dict[str, Any]]]:
    """Rows of elmoe3d_misses and coverage_points of one tape; none where it decodes nothing."""
    trace, manifest = load_trace(store, trace_id), store.open(trace_id).manifest
    if not (trace.pass_kind == DECODE).any():
        return {"elmoe3d_misses": [], "coverage_points": []}
    law = fit.laws.get(manifest.model_id) or law_of(trace)
    return {"elmoe3d_misses": _misses(trace, manifest, study, law), "coverage_points": _coverage(trace, manifest, law)}


def _misses(trace: Trace, manifest: Manifest, study: Settings, law: ModelLaw) -> list[dict[str, Any]]:
    geometry, found = trace.geometry, []
    decoded = np.unique(trace.row_request[trace.pass_kind[trace.row_pass] == DECODE]).size
    for batch in (batch for batch in study.tapes.batches if batch <= decoded):
        together = interleaved(trace, batch)
        n_warm = min(study.tapes.warm_steps, together.pass_ids.size - 1)
        for share in study.tapes.cache_fracs:
            slots = share * geometry.n_experts
            missed = {"lru": lru_miss_frac(together, int(slots), n_warm)}
            missed |= {name: 1.0 - _hit_frac(name, share, law, geometry.n_experts, geometry.top_k, batch) for name in HIT_LAWS}
            found += [
                {
                    "source": trace.trace_id,
                    "origin": manifest.origin,
                    "model_id": manifest.model_id,
                    "dataset": manifest.dataset,
                    "batch": batch,
                    "hit_model": name,
                    "cache_frac": share,
                    "cache_experts": float(int(slots)) if name == "lru" else slots,
                    "miss_frac_lookups": value,
                    "fidelity": "exact" if name == "lru" else "approximate",
                }
                for name, value in missed.items()
            ]
    return found


def _hit_frac(name: str, share: float, law: ModelLaw, n_experts: int, top_k: int, batch: int) -> float:
    weights = weights_of([(n_experts, top_k, law.exponent)])
    numbers = [np.array([value], np.float64) for value in (share, law.beta, batch, n_experts)]
    return float(HIT_LAWS[name](numbers[0], numbers[1], weights, numbers[2], numbers[3])[0])


def _coverage(trace: Trace, manifest: Manifest, law: ModelLaw) -> list[dict[str, Any]]:
    """Recorded, by tokens of different requests and of one; and the law's independent tokens beside them."""
    n_experts, found = trace.geometry.n_experts, []
    weights = weights_of([(n_experts, trace.geometry.top_k, law.exponent)])
    for tokens_of in ("decode", ONE_REQUEST):
        curves = recorded_by_layer(trace, tokens_of)
        sizes = curves[0].n_tokens
        shares = np.array([curve.distinct for curve in curves]) / n_experts
        independent = touched(np.repeat(weights, sizes.size, axis=0), sizes) / n_experts
        for i, n_tokens in enumerate(sizes.astype(int).tolist()):
            mean = float(shares[:, i].mean())
            where = {
                "source": trace.trace_id,
                "model_id": manifest.model_id,
                "tokens_of": tokens_of,
                "layer_band": "all",
                "n_tokens": n_tokens,
            }
            ends = {"low": float(shares[:, i].min()), "high": float(shares[:, i].max())}
            found.append({**where, "form": "recorded", "coverage_frac": mean, **ends, "recorded_err_frac": None})
            law_frac = float(independent[i])
            none = {"low": None, "high": None}
            found.append(
                {**where, "form": "power-law", "coverage_frac": law_frac, **none, "recorded_err_frac": law_frac / mean - 1.0}
            )
    return found


def measured_jobs(store: Store, study: Settings, setup: Setup, fit: ELMoE3DConstants, trace_id: str) -> list[Job]:
    """A tape's own acceptance through the machine; none where nothing was drafted from the model itself."""
    tape = store.open(trace_id)
    if _scheme(tape.manifest) is None or not tape.has("rounds"):
        return []
    return through_machine(tape.manifest, load_trace(store, trace_id), tape.read("rounds"), study, setup, fit)


def _scheme(manifest: Manifest) -> str | None:
    drafted = manifest.settings.get("speculation") or {}
    return DRAFTED_BY.get(drafted.get("draft", ""))


def through_machine(
    manifest: Manifest, trace: Trace, rounds: pl.DataFrame, study: Settings, setup: Setup, fit: ELMoE3DConstants
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

"""What a tape's routing says: misses of an LRU by batch, and experts touched by tokens of one request or of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tokentape.hw.elmoe3d_constants import ModelLaw
from tokentape.replay.coverage import ONE_REQUEST, recorded_by_layer
from tokentape.replay.elmoe3d.interleaved import interleaved, lru_miss_frac
from tokentape.replay.elmoe3d.laws import HIT_LAWS, touched, weights_of
from tokentape.replay.serving.coverage_points import points
from tokentape.replay.trace import DECODE, Trace


def misses(
    trace: Trace, where: Mapping[str, Any], law: ModelLaw, batches: Sequence[int], fracs: Sequence[float], warm_steps: int
) -> list[dict[str, Any]]:
    """Rows of elmoe3d_misses: an LRU replayed, and the hit laws, by batch and share of the experts cached. where: of the tape."""
    geometry, found = trace.geometry, list[dict[str, Any]]()
    decoded = np.unique(trace.row_request[trace.pass_kind[trace.row_pass] == DECODE]).size
    for batch in (batch for batch in batches if batch <= decoded):
        together = interleaved(trace, batch)
        n_warm = min(warm_steps, together.pass_ids.size - 1)
        for share in fracs:
            slots = share * geometry.n_experts
            missed = {"lru": lru_miss_frac(together, int(slots), n_warm)}
            missed |= {name: 1.0 - _hit_frac(name, share, law, geometry.n_experts, geometry.top_k, batch) for name in HIT_LAWS}
            found += [
                {
                    **where,
                    "source": trace.trace_id,
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


def coverage(trace: Trace, model: str, law: ModelLaw) -> list[dict[str, Any]]:
    """Rows of coverage_points: recorded, by tokens of different requests and of one; the law's independent tokens beside them."""
    n_experts, found = trace.geometry.n_experts, list[dict[str, Any]]()
    weights = weights_of([(n_experts, trace.geometry.top_k, law.exponent)])
    for tokens_of in ("decode", ONE_REQUEST):
        curves = recorded_by_layer(trace, tokens_of)
        sizes = curves[0].n_tokens
        shares = np.array([curve.distinct for curve in curves]) / n_experts
        independent = touched(np.repeat(weights, sizes.size, axis=0), sizes) / n_experts
        mean = shares.mean(axis=0)
        of = (trace.trace_id, model, tokens_of, "all", sizes)
        found += points("recorded", *of, mean, shares.min(axis=0), shares.max(axis=0))
        found += points("power-law", *of, independent, error=independent / mean - 1.0)
    return found

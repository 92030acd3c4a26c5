"""Small routings and the tables of a tape that holds them."""

from dataclasses import replace

import numpy as np
import tapes

from tokentape.hw.profile import Profile
from tokentape.replay.cxl_ndp.routing import ENDED, CXLNDPRouting, routing_of
from tokentape.replay.scores import scores_from_table
from tokentape.replay.system.recorded import recorded
from tokentape.replay.trace import trace_from_tables

GEOMETRY = tapes.GEOMETRY.model_copy(update={"moe_layers": (1, 3), "n_experts": 6})


def make_tables(seed=0, prompts=(5, 3, 7), decodes=(4, 0, 6), batch=3, geometry=GEOMETRY):
    """(passes, routing, scores): prompts pass by pass, then decode in lockstep; members drop out as they end."""
    rng = np.random.default_rng(seed)

    def told(request, position, layer):
        logits = rng.normal(size=geometry.n_experts).astype(np.float32)
        ids = np.argsort(-logits, kind="stable")[: geometry.top_k]
        weights = np.exp(logits[ids])
        return {"expert_ids": ids.tolist(), "gate_weights": (weights / weights.sum()).tolist(), "scores": logits.tolist()}

    passes = []
    for first in range(0, len(prompts), batch):
        together = range(first, min(first + batch, len(prompts)))
        passes += [("prefill", [(request, position) for position in range(prompts[request])]) for request in together]
        steps = range(max(decodes[r] for r in together))
        passes += [("decode", [(r, prompts[r] + step) for r in together if step < decodes[r]]) for step in steps]
    routing, of_passes = tapes.tables_of(passes, told, geometry)
    return of_passes, routing.drop("scores"), routing.drop("pass_id", "expert_ids", "gate_weights")


def read(tables, geometry=GEOMETRY, **reading) -> CXLNDPRouting:
    passes, routing, scores = tables
    trace, weights = trace_from_tables("test", geometry, "synthetic", routing, passes), routing["gate_weights"].explode()
    told = scores_from_table(trace, scores, "softmax", {}) if reading.get("weight_source") == "softmax" else None
    return routing_of(recorded(trace, None if weights.null_count() else weights.to_numpy(), scores=told), **reading)


def make_routing(seed=0, geometry=GEOMETRY, **sizes) -> CXLNDPRouting:
    return read(make_tables(seed, geometry=geometry, **sizes), geometry)


def random_routing(seed, n_sequences=6, n_layers=2, n_experts=5, k=2, n_steps=12, n_prompt=9) -> CXLNDPRouting:
    """Uniform choices of decodes of any length, some of none."""
    rng = np.random.default_rng(seed)
    ids = rng.random((n_sequences, n_steps, n_layers, n_experts)).argsort(axis=-1)[..., :k].astype(np.int16)
    prompts = rng.random((n_sequences, n_prompt, n_layers, n_experts)).argsort(axis=-1)[..., :k]
    n_decode = rng.integers(0, n_steps + 1, n_sequences).astype(np.int32)
    n_decode[0] = n_steps
    ids[np.arange(n_steps) >= n_decode[:, None]] = ENDED
    counts = (prompts[..., None] == np.arange(n_experts)).sum(axis=(1, 3)).astype(np.int32)
    return CXLNDPRouting(
        trace_id="random",
        origin="synthetic",
        layers=tuple(range(n_layers)),
        request_ids=np.arange(n_sequences),
        prefill_counts=counts,
        prefill_weights=counts * rng.uniform(0.2, 0.8, counts.shape),
        decode_ids=ids,
        n_decode=n_decode,
    )


def with_shares(profile: Profile, shares: dict[str, float]) -> Profile:
    """Lanes that reach these shares of a memory's peak, whatever the machine says."""
    lanes = (replace(lane, bytes_frac=shares.get(lane.name, lane.bytes_frac)) for lane in profile.lanes)
    return replace(profile, lanes=tuple(lanes))

"""What lies in HBM and in the NDP's memory, and whether it fits. A model that does not is warned about, never refused."""

from __future__ import annotations

from dataclasses import dataclass

from tokentape.hw.cxl_ndp_knobs import Knobs
from tokentape.replay.cxl_ndp.system import FP16_BITS, FP16_BYTES, REPLICA_BITS, Machine, Shape
from tokentape.warehouse.model_sizes import kv_bytes

HBM, CXL = "hbm", "cxl"


@dataclass(frozen=True)
class Part:
    """Bytes of something in a tier."""

    tier: str
    part: str
    n_bytes: float


def parts(shape: Shape, knobs: Knobs, hot_experts: int, batch: int) -> list[Part]:
    """Of the whole model; hot_experts per layer."""
    g, of_layer = shape.geometry, shape.n_experts * shape.expert_bytes
    others = g.n_layers * shape.attention_bytes
    others += FP16_BYTES * (shape.n_layers * shape.shared_params + shape.n_dense_layers * shape.dense_params)
    all_experts = shape.n_layers * of_layer
    return [
        Part(HBM, "hot experts", shape.n_layers * hot_experts * shape.expert_bytes),
        Part(HBM, "attention, shared and dense", others),
        Part(HBM, "embeddings", FP16_BYTES * g.vocab * g.hidden * (1 if g.is_tied else 2)),
        Part(HBM, "KV", batch * kv_bytes(g, knobs.context_tokens, "fp16")),
        Part(CXL, "FP16 experts", all_experts),
        Part(CXL, "replicas", all_experts * sum(REPLICA_BITS) / FP16_BITS),
    ]


def notes(shape: Shape, machine: Machine, knobs: Knobs, hot_experts: int, batch: int) -> list[str]:
    """What does not fit, in one sentence each; and whether the NDP is needed at all."""
    found, listed = [], parts(shape, knobs, hot_experts, batch)
    for tier, capacity in ((HBM, machine.hbm_bytes), (CXL, machine.ndp_bytes)):
        mine = [part for part in listed if part.tier == tier]
        total = sum(part.n_bytes for part in mine)
        if total > capacity:
            said = ", ".join(f"{part.part} {part.n_bytes / 1e9:.1f}" for part in mine)
            found.append(f"{tier} holds {capacity / 1e9:.0f} GB, {total / 1e9:.1f} are wanted ({said})")
    by_part = {part.part: part.n_bytes for part in listed}
    rest = sum(part.n_bytes for part in listed if part.tier == HBM) - by_part["hot experts"]
    if rest + by_part["FP16 experts"] <= machine.hbm_bytes:
        found.append("all experts fit the GPU at FP16: this model needs no NDP")
    return found

"""What lies on the GPU and in the experts' home, and whether it fits. A model that does not is warned about, never refused."""

from __future__ import annotations

from dataclasses import dataclass

from tokentape.replay.cxl_ndp.system import FP16_BITS, FP16_BYTES, REPLICA_BITS, Setup
from tokentape.warehouse.model_sizes import kv_bytes, parameters


@dataclass(frozen=True)
class Part:
    """Bytes of something in a tier, and what the tier holds."""

    tier: str
    part: str
    n_bytes: float
    tier_bytes: float


def parts(made: Setup, hot_experts: int, batch: int) -> list[Part]:
    """Of the whole model; hot_experts per layer."""
    g, roles = made.geometry, made.machine.roles
    counted, n_moe = parameters(g), len(g.moe_layers)
    all_experts = n_moe * g.n_experts * made.expert_bytes
    others = FP16_BYTES * (counted.attention + counted.shared_ffn + counted.dense_ffn)
    listed = (
        (roles.expert_cache or roles.expert_home, "hot experts", n_moe * hot_experts * made.expert_bytes),
        (roles.weights_home, "attention, shared and dense", others),
        (roles.weights_home, "embeddings", FP16_BYTES * g.vocab * g.hidden * (1 if g.is_tied else 2)),
        (roles.kv_home, "KV", batch * kv_bytes(g, made.context_tokens, "fp16")),
        (roles.expert_home, "FP16 experts", all_experts),
        (roles.expert_home, "replicas", all_experts * sum(REPLICA_BITS) / FP16_BITS),
    )
    room = {name: tier.capacity_bytes.value * made.machine.n_devices for name, tier in made.machine.tiers.items()}
    return [Part(tier, part, n_bytes, room[tier]) for tier, part, n_bytes in listed]


def notes(made: Setup, hot_experts: int, batch: int) -> list[str]:
    """What does not fit, in one sentence each; and whether the NDP is needed at all."""
    found, listed = [], parts(made, hot_experts, batch)
    for tier in dict.fromkeys(part.tier for part in listed):
        mine = [part for part in listed if part.tier == tier]
        total, room = sum(part.n_bytes for part in mine), mine[0].tier_bytes
        if total > room:
            said = ", ".join(f"{part.part} {part.n_bytes / 1e9:.1f}" for part in mine)
            found.append(f"{tier} holds {room / 1e9:.0f} GB, {total / 1e9:.1f} are wanted ({said})")
    hot, *others, experts, _ = listed
    home = made.machine.roles.weights_home
    beside = sum(part.n_bytes for part in others if part.tier == home)
    if hot.tier != experts.tier and hot.tier == home and beside + experts.n_bytes <= hot.tier_bytes:
        found.append("all experts fit the GPU at FP16: this model needs no NDP")
    return found

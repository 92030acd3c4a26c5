"""What lies on the GPU and in the experts' home, and whether it fits. A model that does not is warned about, never refused."""

from __future__ import annotations

from typing import Any

import polars as pl

from tokentape.replay.cxl_ndp.system import FP16_BITS, FP16_BYTES, REPLICA_BITS, Setup
from tokentape.warehouse.model_sizes import kv_bytes, parameters


def parts(made: Setup, hot_experts: int, batch: int) -> list[dict[str, Any]]:
    """Columns tier, part, placed_bytes and tier_bytes, what the tier holds; of the whole model, hot_experts per layer."""
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
    columns = ("tier", "part", "placed_bytes", "tier_bytes")
    return [dict(zip(columns, (*of, room[of[0]]), strict=True)) for of in listed]


def notes(made: Setup, hot_experts: int, batch: int) -> list[str]:
    """What does not fit, in one sentence each; and whether the NDP is needed at all."""
    found, listed = [], pl.DataFrame(parts(made, hot_experts, batch))
    for (tier, room), mine in listed.group_by("tier", "tier_bytes", maintain_order=True):
        total = float(mine["placed_bytes"].sum())
        if total > room:
            said = ", ".join(f"{part} {n_bytes / 1e9:.1f}" for part, n_bytes in mine.select("part", "placed_bytes").iter_rows())
            found.append(f"{tier} holds {room / 1e9:.0f} GB, {total / 1e9:.1f} are wanted ({said})")
    hot, *others, experts, _ = listed.to_dicts()
    home = made.machine.roles.weights_home
    beside = sum(part["placed_bytes"] for part in others if part["tier"] == home)
    if hot["tier"] != experts["tier"] and hot["tier"] == home and beside + experts["placed_bytes"] <= hot["tier_bytes"]:
        found.append("all experts fit the GPU at FP16: this model needs no NDP")
    return found

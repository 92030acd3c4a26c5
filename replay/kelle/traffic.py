"""Bytes and multiply-adds of a decode step: weights at a byte each, and the KV that the policy keeps, reads and recomputes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokentape.hw.kelle_knobs import Knobs
from tokentape.replay.kelle.systems import System
from tokentape.replay.kelle.work import Accounting, Floats, Work
from tokentape.warehouse.geometry import Geometry

INPUT_BYTES = 2  # of an element of a layer input


def kv_elements(geometry: Geometry, accounting: Accounting) -> int:
    """Elements that a token caches in a layer: K and V, or the latent of latent attention, which has no heads to miscount."""
    if accounting.true_gqa or geometry.kv_lora_rank:
        return geometry.kv_elements_per_token_layer
    return 2 * geometry.n_heads * geometry.head_dim


def kv_bytes_per_token(geometry: Geometry, accounting: Accounting, kv_bits: float = 16.0) -> float:
    """Of a token, all layers. Scales of quantised elements are not counted."""
    return geometry.n_layers * kv_elements(geometry, accounting) * kv_bits / 8


@dataclass(frozen=True)
class Weights:
    """At a byte each: all that are held, those that a pass reads, and the multiply-adds of one token."""

    held_bytes: float
    read_bytes: float
    macs_per_token: float


def weights_of(geometry: Geometry, n_tokens: int) -> Weights:
    """Of a pass of n_tokens, each of which chooses its experts for itself, where there are experts."""
    dense = float(geometry.non_expert_params)
    if not geometry.n_experts:
        return Weights(dense, dense, dense)
    experts = float(len(geometry.moe_layers) * geometry.n_experts * geometry.expert_params)
    chosen_frac = geometry.top_k / geometry.n_experts
    return Weights(dense + experts, dense + experts * (1.0 - (1.0 - chosen_frac) ** n_tokens), dense + experts * chosen_frac)


@dataclass(frozen=True, eq=False)
class KvTraffic:
    """Arrays over the lengths that a step is evaluated at. elements: of the kept tokens in all layers, which attention reads.

    kept_bytes: of the cache; read_bytes: what recomputation leaves of it, with the layer inputs it reads; dram_bytes: of these,
    what the chip does not hold.
    """

    elements: Floats
    kept_bytes: Floats
    read_bytes: Floats
    dram_bytes: Floats
    recompute_macs: Floats
    peak_bytes: float
    notes: tuple[str, ...] = ()


def kv_traffic(geometry: Geometry, system: System, work: Work, knobs: Knobs, accounting: Accounting) -> KvTraffic:
    """Of a step of the batch. Recomputation that is charged is left out where a layer input is no smaller than K and V."""
    per_token, notes = kv_elements(geometry, accounting), list[str]()
    budget = float(work.budget_tokens) if system.evicts and work.budget_tokens else np.inf
    vectors = work.batch * np.minimum(accounting.lengths(work), budget) * geometry.n_layers  # tokens x layers that are kept
    kept_bytes = vectors * per_token * work.kv_bits / 8
    share = knobs.recomputed_frac if system.recomputes else 0.0
    if accounting.charges_recompute and share and geometry.hidden * INPUT_BYTES >= per_token * work.kv_bits / 8:
        notes.append(f"no recomputation: a layer input of {geometry.hidden} elements is no smaller than K and V of {per_token}")
        share = 0.0
    charged = share * vectors if accounting.charges_recompute else np.zeros_like(vectors)
    read_bytes = kept_bytes * (1.0 - share) + charged * geometry.hidden * INPUT_BYTES
    return KvTraffic(
        elements=vectors * per_token,
        kept_bytes=kept_bytes,
        read_bytes=read_bytes,
        dram_bytes=np.maximum(0.0, read_bytes - system.chip.kv_bytes),
        recompute_macs=charged * geometry.hidden * per_token,
        peak_bytes=work.batch * min(work.n_tokens, budget) * kv_bytes_per_token(geometry, accounting, work.kv_bits),
        notes=tuple(notes),
    )

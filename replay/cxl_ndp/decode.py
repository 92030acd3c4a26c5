"""A tape's decode on one system: experts placed, the kernel run, and what it says of time, traffic and hits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.cxl_ndp_knobs import Knobs
from tokentape.policies.names import unknown
from tokentape.policies.placement import FIXED, Capacity, FixedPlacement, importance, start_average
from tokentape.policies.resolve import resolve
from tokentape.replay.cxl_ndp import kernel
from tokentape.replay.cxl_ndp import timing as t
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting, in_batches
from tokentape.replay.cxl_ndp.system import Machine, Shape, System

Floats = NDArray[np.float64]
# Metric: unit. Times are means of a layer-step; bytes are per generated token, over all layers.
UNITS = {
    "step_s": "s",
    "tokens_per_s": "1/s",
    **dict.fromkeys(("other_s", "gpu_s", "ndp_s", "activation_s", "transfer_s", "wait_s"), "s"),
    "ndp_gain": "x",
    "hit_frac": "1",
    "moved_per_layer_step": "experts",
    "link_weight_bytes_per_token": "B",
    "link_activation_bytes_per_token": "B",
    "ndp_bytes_per_token": "B",
}


@dataclass(frozen=True, eq=False)
class Placed:
    """Batches and their experts when decoding starts. groups (G, B) sequences; scores (G, L, E) importance by the prompts, whose
    order bits follow; hot (G, L, E): on the GPU; capacity: experts of a layer there."""

    groups: NDArray[np.int64]
    scores: Floats
    hot: NDArray[np.bool_]
    capacity: int


def place(
    routing: CXLNDPRouting, batch: int, hot_experts: int, alpha: float = 0.5, placement: FixedPlacement | None = None
) -> Placed:
    """One placement per batch of `batch` sequences in tape order, from the sums over its members. placement: prefill-guided.

    Raises ValueError for fewer sequences than a batch, and for more hot experts than a layer has.
    """
    groups = in_batches(routing.n_sequences, batch)
    scores = importance(routing.prefill_counts[groups].sum(axis=1), routing.prefill_weights[groups].sum(axis=1), alpha)
    ranked = scores if placement is None else placement.scores(routing.seen(groups))
    return Placed(groups, scores, Capacity(hot_experts).hot(ranked), hot_experts)


def fixed(name: str, seed: int = 0) -> FixedPlacement:
    """A fixed placement by name. Raises ValueError for another name."""
    if name not in FIXED:
        raise unknown("placement", name, FIXED)
    made: FixedPlacement = resolve("place", name, {"seed": seed} if name == "random" else {})
    return made


@dataclass(frozen=True, eq=False)
class Decoded:
    """What the kernel added up. of_step (G, T, N_PARTS), of_layer (L, N_PARTS): columns of timing.py. batch (G, T) sequences that
    decode; dense_s (G, T) layers without experts."""

    shape: Shape
    system: System
    of_step: Floats
    of_layer: Floats
    batch: NDArray[np.int64]
    dense_s: Floats

    @property
    def n_tokens(self) -> int:
        return int(self.batch.sum())

    @property
    def n_layer_steps(self) -> int:
        return self.n_steps * int(self.of_layer.shape[0])

    @property
    def n_steps(self) -> int:
        """In which at least one sequence decodes, all batches together."""
        return int((self.batch > 0).sum())

    @property
    def total(self) -> Floats:
        """(N_PARTS,) over all layer-steps."""
        return np.asarray(self.of_layer.sum(axis=0))

    @property
    def step_s(self) -> float:
        """Mean time of a step through all layers."""
        return float((self.total[t.STEP] + self.dense_s.sum()) / max(1, self.n_steps))

    def metrics(self) -> dict[str, float]:
        """By name, UNITS. Raises ValueError where nothing decodes."""
        if not self.n_tokens:
            raise ValueError("no sequence of this tape decodes; record or draw one with output tokens")
        total, mean = self.total, self.total / self.n_layer_steps
        expert, tokens = self.shape.expert_bytes, self.n_tokens
        return {
            "step_s": float(mean[t.STEP]),
            "tokens_per_s": tokens / (float(total[t.STEP]) + float(self.dense_s.sum())),
            "other_s": float(mean[t.OTHER]),
            "gpu_s": float(mean[t.GPU]),
            "ndp_s": float(mean[t.NDP]),
            "activation_s": float(mean[t.ACTIVATION]),
            "transfer_s": float(mean[t.TRANSFER]),
            "wait_s": float(mean[t.WAIT]),
            "ndp_gain": float(total[t.NDP_FP16] / total[t.NDP]) if total[t.NDP] else float("nan"),
            "hit_frac": float(total[t.HITS] / total[t.TOKENS]),
            "moved_per_layer_step": float(mean[t.MOVED]),
            "link_weight_bytes_per_token": float(total[t.MOVED]) * expert * self.system.moved_bits / 16 / tokens,
            "link_activation_bytes_per_token": float(total[t.ON_NDP]) * self.shape.activation_bytes / tokens,
            "ndp_bytes_per_token": float(total[t.READS]) * expert / tokens,
        }


def refuse_other_model(routing: CXLNDPRouting, shape: Shape) -> None:
    """Raises ValueError, with both values, where the tape's experts, top k or layers are not the model's."""
    routing.refuse_other_model(shape.n_experts, shape.top_k, shape.name)
    if routing.n_layers != shape.n_layers:
        raise ValueError(
            f"tape {routing.trace_id} has {routing.n_layers} MoE layers, {shape.name} has {shape.n_layers}; give its own"
        )


def replay(
    routing: CXLNDPRouting,
    placed: Placed,
    shape: Shape,
    machine: Machine,
    knobs: Knobs,
    system: System,
    bits: NDArray[np.integer] | None = None,
) -> Decoded:
    """Every layer-step of every batch. bits: (G, L, E) of the NDP's experts (policies.bits.assign); None: all of system.bits.

    Exact and deterministic. Raises ValueError for a tape of another model.
    """
    refuse_other_model(routing, shape)
    n_groups, n_members = placed.groups.shape
    unit = t.unit_of(shape, machine, knobs, system)
    resident = (placed.hot if system.starts_placed else np.zeros_like(placed.hot)).astype(np.uint8)
    average = start_average(routing.prefill_counts[placed.groups].sum(axis=1), n_members, routing.top_k)
    widths = np.full(placed.hot.shape, float(system.bits)) if bits is None else np.ascontiguousarray(bits, np.float64)
    of_step = np.zeros((n_groups, routing.n_steps, t.N_PARTS))
    of_layer = np.zeros((routing.n_layers, t.N_PARTS))
    kernel.decode(
        system.reactive.migrate, system.reactive.params(), routing.decode_ids, routing.n_decode, placed.groups, average, resident,
        widths, placed.capacity, system.fetches, system.overlaps, float(system.moved_bits), unit, of_step, of_layer,
    )  # fmt: skip
    batch = (routing.n_decode[placed.groups][:, :, None] > np.arange(routing.n_steps)).sum(axis=1)
    found = Decoded(shape, system, of_step, of_layer, batch, t.dense_s(shape, machine, knobs, unit, batch))
    _conserved(found, unit)
    return found


def _conserved(found: Decoded, unit: t.Unit) -> None:
    """Every token-expert is somewhere, and no link or memory is faster than its peak."""
    total, system = found.total, found.system
    assert total[t.TOKENS] == found.n_tokens * found.of_layer.shape[0] * found.shape.top_k
    assert system.fetches or total[t.HITS] + total[t.ON_NDP] == total[t.TOKENS]
    assert total[t.STEP] * (1 + 1e-12) >= total[t.MOVED] * system.moved_bits * unit.fetch
    assert total[t.STEP] * (1 + 1e-12) >= total[t.READS] * 16 * unit.ndp_read

"""Seconds of a batch's prompts in one layer, and of whole requests. Source: specification section 5, forms assumed.

    experts = min over H of max(H (fetch + GPU compute), (E - H) NDP time)      H experts streamed to the GPU, the rest in place
    HOBBIT  = max(E fetches at low precision, E GPU computes)
    layer   = experts + projections + T_o, in OURS + the hot experts that were not streamed

Every expert is taken to have n k / E of the batch's n tokens. Replicas do not serve prefill: the NDP computes at FP16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokentape.hw.cxl_ndp_knobs import Knobs
from tokentape.replay.cxl_ndp import timing
from tokentape.replay.cxl_ndp.decode import Decoded
from tokentape.replay.cxl_ndp.system import FP16_BITS, Machine, Shape, System


@dataclass(frozen=True)
class Prefill:
    """One layer with experts. placing_s: hot experts that prefill did not stream. dense_s: a layer without experts."""

    streamed_experts: int
    experts_s: float
    projections_s: float
    other_s: float
    placing_s: float
    dense_s: float

    @property
    def seconds(self) -> float:
        return self.experts_s + self.projections_s + self.other_s + self.placing_s


def prefill(
    shape: Shape, machine: Machine, knobs: Knobs, system: System, n_context_tokens: int, batch: int, hot_experts: int
) -> Prefill:
    """A batch of prompts of n_context_tokens each. hot_experts: to lie on the GPU when decoding starts."""
    n_tokens, n_experts = batch * n_context_tokens, shape.n_experts
    unit = timing.unit_of(shape, machine, knobs, system)
    on_gpu = n_tokens * shape.top_k / n_experts * shape.expert_ops / (knobs.prefill_ops_frac * machine.gpu_ops_per_s)
    on_ndp = max(FP16_BITS * unit.ndp_read, n_tokens * shape.top_k / n_experts * unit.ndp_token)
    fetch = FP16_BITS * unit.fetch
    streamed = np.arange(n_experts + 1)
    both = np.maximum(streamed * (fetch + on_gpu), (n_experts - streamed) * on_ndp)
    best = int(both.argmin())
    experts = float(both[best])
    if system.fetches:
        best, experts = n_experts, n_experts * max(system.moved_bits * unit.fetch, on_gpu)
    places = system.starts_placed and not system.fetches  # a baseline that starts with residents pays for them too
    ops = knobs.attention_ops_frac * machine.gpu_ops_per_s
    attention = 2.0 * n_tokens * shape.geometry.attention_params / ops
    other = timing.other_s(batch, unit)
    return Prefill(
        streamed_experts=best,
        experts_s=experts,
        projections_s=attention + 2.0 * n_tokens * shape.shared_params / ops,
        other_s=other,
        placing_s=max(0, hot_experts - best) * fetch if places else 0.0,
        dense_s=attention + 2.0 * n_tokens * shape.dense_params / ops + other,
    )


@dataclass(frozen=True)
class Request:
    """A batch from its prompts to the last token. seconds = prefill + transfer + other + gpu + wait; ndp_s runs beside gpu_s.

    is_extrapolated: more tokens than the tape decodes, at its mean step.
    """

    streamed_experts: int
    prefill_s: float
    transfer_s: float
    other_s: float
    gpu_s: float
    wait_s: float
    ndp_s: float
    is_extrapolated: bool

    @property
    def seconds(self) -> float:
        return self.prefill_s + self.transfer_s + self.other_s + self.gpu_s + self.wait_s


def request(
    decoded: Decoded, machine: Machine, knobs: Knobs, n_context_tokens: int, n_decode_tokens: int, batch: int, hot_experts: int
) -> Request:
    """At the tape's mean decode step. batch: sequences of a prefill."""
    shape = decoded.shape
    of_prompt = prefill(shape, machine, knobs, decoded.system, n_context_tokens, batch, hot_experts)
    scale = n_decode_tokens / max(1, decoded.n_steps)
    total = decoded.total * scale
    shown = total[timing.OTHER] + total[timing.GPU] + total[timing.WAIT]
    return Request(
        streamed_experts=of_prompt.streamed_experts,
        prefill_s=shape.n_layers * of_prompt.seconds + shape.n_dense_layers * of_prompt.dense_s,
        transfer_s=float(total[timing.STEP] - shown),
        other_s=float(total[timing.OTHER] + decoded.dense_s.sum() * scale),
        gpu_s=float(total[timing.GPU]),
        wait_s=float(total[timing.WAIT]),
        ndp_s=float(total[timing.NDP] + total[timing.ACTIVATION]),
        is_extrapolated=n_decode_tokens > decoded.of_step.shape[1],
    )

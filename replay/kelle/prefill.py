"""A prompt on Kelle's systems, and a whole request. The paper has no prefill model: all of this is assumed, and reported only.

Weights stream once for all prompts of the batch; activations stay on the chip; attention is causal; kept KV that does not fit on
the chip is written to DRAM. Work and transfers run side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokentape.hw.kelle_knobs import Knobs
from tokentape.replay.kelle.step import decode_step, refresh_w
from tokentape.replay.kelle.systems import System
from tokentape.replay.kelle.traffic import kv_bytes_per_token, weights_of
from tokentape.replay.kelle.work import PAPER, Accounting, Work
from tokentape.warehouse.geometry import Geometry


@dataclass(frozen=True)
class Request:
    """Seconds and joules of a batch from its first prompt token to its last output token."""

    prefill_s: float
    prefill_j: float
    decode_s: float
    decode_j: float
    overflow_bytes: float

    @property
    def seconds(self) -> float:
        """Prefill and decode."""
        return self.prefill_s + self.decode_s

    @property
    def joules(self) -> float:
        """Prefill and decode."""
        return self.prefill_j + self.decode_j


def prefill(geometry: Geometry, system: System, work: Work, accounting: Accounting = PAPER) -> tuple[float, float]:
    """Seconds and joules of the batch's prompts."""
    chip, tokens = system.chip, float(work.n_context_tokens)
    weights = weights_of(geometry, work.batch * work.n_context_tokens)
    weight_bytes, head_macs = weights.read_bytes, geometry.vocab * geometry.hidden
    budget = work.budget_tokens if system.evicts and work.budget_tokens else work.n_context_tokens
    kept_bytes = work.batch * min(work.n_context_tokens, budget) * kv_bytes_per_token(geometry, accounting, work.kv_bits)
    written_bytes = max(0.0, kept_bytes - chip.kv_bytes)
    attention_macs = geometry.n_layers * geometry.n_heads * geometry.head_dim * tokens**2
    # The output head sees the last token only.
    macs = work.batch * (tokens * (weights.macs_per_token - head_macs) + head_macs + attention_macs)
    dram_bytes = weight_bytes + written_bytes
    seconds = max(macs / chip.macs_per_s, dram_bytes / chip.dram_bytes_per_s, weight_bytes / chip.weight_bytes_per_s)
    watts = chip.static_w + chip.leakage_w + float(refresh_w(system, kept_bytes, accounting))
    joules = chip.dram_j_per_byte * dram_bytes + chip.weight_j_per_byte * 2 * weight_bytes + chip.kv_j_per_byte * kept_bytes
    return seconds, joules + watts * seconds


def request(geometry: Geometry, system: System, work: Work, knobs: Knobs, accounting: Accounting = PAPER) -> Request:
    """A batch of prompts and their decode steps, each step counted as the accounting says."""
    step = decode_step(geometry, system, work, knobs, accounting)
    n = work.n_decode_tokens
    return Request(*prefill(geometry, system, work, accounting), n * step.seconds, n * step.energy_j, step.overflow_bytes)

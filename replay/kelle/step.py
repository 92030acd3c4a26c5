"""Time and energy of one decode step, from bytes and multiply-adds. Source: Kelle section 8, completed by assumptions.

    seconds = comb(weights: DRAM, array, SRAM) + comb(KV: DRAM, on-chip memory, array)      comb(v) = max(v) + s (sum(v) - max(v))
    joules  = DRAM + weight SRAM + on-chip KV + refresh + array + leakage

s is the serial share of the knobs. Weights are 8 bits, activations and KV 16. Not counted: the prompt (prefill.py), activations'
traffic, sliding windows (Mistral's cache counts as any other), and the time of refresh, which the paper hides. Where the paper
speaks of dense models, a mixture of experts reads the experts that its batch chooses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.kelle_knobs import Knobs
from replay.kelle.systems import Chip, System
from warehouse.geometry import Geometry

Floats = NDArray[np.float64]
INPUT_BYTES = 2  # of an element of a layer input
KV_ELEMENTS_PER_ROW_CYCLE = 4  # that a row of the array takes in (assumed)
FULL_BATCH = 16  # from which on weights reach the DRAM's full bandwidth (assumed)
MEAN_POINTS = 33  # lengths that the mean over a decode is taken at


@dataclass(frozen=True)
class Work:
    """A batch of requests. budget_tokens: kept per request where the system evicts; None: all. kv_bits: of an element of KV."""

    n_context_tokens: int
    n_decode_tokens: int
    batch: int = 16
    budget_tokens: int | None = None
    kv_bits: int = 16

    def __post_init__(self) -> None:
        for name, least in (("n_context_tokens", 0), ("n_decode_tokens", 0), ("batch", 1), ("budget_tokens", 1), ("kv_bits", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}; it must be at least {least}")

    @property
    def n_tokens(self) -> int:
        """Length of a request at its end."""
        return self.n_context_tokens + self.n_decode_tokens


@dataclass(frozen=True)
class Accounting:
    """How a step is counted where the paper and physics differ.

    true_gqa: KV of the model's own KV heads, else of as many as query heads. eval_point: final, the longest step, or mean, over
    the decode. charges_recompute: recomputation reads layer inputs and occupies the array, else KV reads vanish. must_fit_dram:
    what does not fit has no time. streamed_bypasses_edram: KV that comes from DRAM is not written to eDRAM and read again
    (assumed; without it the paper's energies are missed). activations_at_retention: they refresh at the retention time, else as
    rarely as KV.
    """

    true_gqa: bool = False
    eval_point: str = "final"
    charges_recompute: bool = False
    must_fit_dram: bool = False
    streamed_bypasses_edram: bool = True
    activations_at_retention: bool = False

    def __post_init__(self) -> None:
        if self.eval_point not in ("final", "mean"):
            raise ValueError(f"eval_point is {self.eval_point!r}; choose final or mean")

    def lengths(self, work: Work) -> Floats:
        """(n,) lengths of a request that a step is evaluated at."""
        if self.eval_point == "final":
            return np.array([work.n_tokens], np.float64)
        return np.linspace(work.n_context_tokens, work.n_tokens, MEAN_POINTS)


PAPER = Accounting()
PHYSICAL = Accounting(true_gqa=True, eval_point="mean", charges_recompute=True, must_fit_dram=True)
MODES = {"paper": PAPER, "physical": PHYSICAL}


@dataclass(frozen=True)
class Step:
    """A decode step of the batch. joules: by part; kv_read_bytes: from the chip or DRAM, kv_dram_bytes of them from DRAM."""

    seconds: float
    joules: dict[str, float]
    weight_bytes: float
    kv_read_bytes: float
    kv_dram_bytes: float
    macs: float
    overflow_bytes: float
    is_feasible: bool
    notes: tuple[str, ...] = field(default=())

    @property
    def energy_j(self) -> float:
        """Of all parts."""
        return sum(self.joules.values())


def kv_elements(geometry: Geometry, accounting: Accounting) -> int:
    """Elements that a token caches in a layer: K and V, or the latent of latent attention, which has no heads to miscount."""
    if accounting.true_gqa or geometry.kv_lora_rank:
        return geometry.kv_elements_per_token_layer
    return 2 * geometry.n_heads * geometry.head_dim


def kv_bytes_per_token(geometry: Geometry, accounting: Accounting, kv_bits: int = 16) -> float:
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


def serial(times: tuple[Floats | float, ...], serial_frac: float) -> Floats:
    """Seconds of transfers and work that run side by side, `serial_frac` of the shorter ones after the longest."""
    stacked = np.stack(np.broadcast_arrays(*times))
    longest = stacked.max(axis=0)
    return np.asarray(longest + serial_frac * (stacked.sum(axis=0) - longest))


def decode_step(geometry: Geometry, system: System, work: Work, knobs: Knobs, accounting: Accounting = PAPER) -> Step:
    """One decode step of the batch."""
    chip, notes = system.chip, list[str]()
    elements, weights = kv_elements(geometry, accounting), weights_of(geometry, work.batch)
    weight_bytes = weights.read_bytes
    lengths = accounting.lengths(work)
    budget = float(work.budget_tokens) if system.evicts and work.budget_tokens else np.inf
    vectors = work.batch * np.minimum(lengths, budget) * geometry.n_layers  # tokens x layers whose K and V are kept
    kept_bytes = vectors * elements * work.kv_bits / 8
    share = knobs.recomputed_frac if system.recomputes else 0.0
    if accounting.charges_recompute and share and geometry.hidden >= elements:
        notes.append(f"no recomputation: a layer input of {geometry.hidden} elements is no smaller than K and V of {elements}")
        share = 0.0
    charged = share * vectors if accounting.charges_recompute else np.zeros_like(vectors)
    recompute_macs = charged * geometry.hidden * elements
    read_bytes = kept_bytes * (1.0 - share) + charged * geometry.hidden * INPUT_BYTES
    dram_bytes = np.maximum(0.0, read_bytes - chip.kv_bytes)
    weight_frac = 1.0 if work.batch >= FULL_BATCH else knobs.weight_dram_frac
    serial_frac = knobs.serial_frac * (knobs.kelle_serial_frac if system.overlaps else 1.0)
    weight_macs = weights.macs_per_token * work.batch
    attention_s = vectors * elements / (chip.rows * KV_ELEMENTS_PER_ROW_CYCLE * chip.clock_hz)
    of_weights = (
        weight_bytes / (chip.dram_bytes_per_s * weight_frac),
        weight_macs / chip.macs_per_s,
        weight_bytes / chip.weight_bytes_per_s,
    )
    of_kv = (
        dram_bytes / chip.dram_bytes_per_s,
        read_bytes / chip.kv_bytes_per_s,
        attention_s + recompute_macs / chip.macs_per_s,
    )
    seconds = serial(of_weights, serial_frac) + serial(of_kv, serial_frac)
    joules = {
        "dram_j": chip.dram_j_per_byte * (weight_bytes / weight_frac + dram_bytes),
        "weight_sram_j": chip.weight_j_per_byte * 2 * weight_bytes,
        "kv_j": chip.kv_j_per_byte * _on_chip_bytes(chip, read_bytes, dram_bytes, accounting),
        "refresh_j": refresh_w(system, kept_bytes, accounting) * seconds,
        "array_j": chip.static_w * seconds,
        "leakage_j": chip.leakage_w * seconds,
    }
    overflow_bytes = max(0.0, weights.held_bytes + _peak_bytes(geometry, work, budget, accounting) - chip.dram_bytes)
    if overflow_bytes:
        notes.append(f"dram_overflow: {overflow_bytes / 1e9:.1f} GB more than the DRAM holds")
    return Step(
        seconds=float(seconds.mean()),
        joules={part: float(np.mean(joule)) for part, joule in joules.items()},
        weight_bytes=weight_bytes,
        kv_read_bytes=float(read_bytes.mean()),
        kv_dram_bytes=float(dram_bytes.mean()),
        macs=float(np.mean(weight_macs + vectors * elements)),
        overflow_bytes=overflow_bytes,
        is_feasible=not (accounting.must_fit_dram and overflow_bytes),
        notes=tuple(notes),
    )


def _on_chip_bytes(chip: Chip, read_bytes: Floats, dram_bytes: Floats, accounting: Accounting) -> Floats:
    """Bytes in and out of the KV memory: SRAM takes in what streams from DRAM; eDRAM serves only what it holds."""
    if chip.is_edram and accounting.streamed_bypasses_edram:
        return np.minimum(read_bytes, chip.kv_bytes)
    return read_bytes + dram_bytes


def refresh_w(system: System, kept_bytes: Any, accounting: Accounting = PAPER) -> Any:
    """Watts of refreshing the occupied KV rows and the activations; 0 for SRAM."""
    chip = system.chip
    activation_interval_s = chip.activation_interval_s if accounting.activations_at_retention else chip.refresh_interval_s
    of_kv = np.minimum(kept_bytes, chip.kv_bytes) / chip.refresh_interval_s
    return chip.refresh_j_per_byte * (of_kv + system.transient_frac * chip.activation_bytes / activation_interval_s)


def _peak_bytes(geometry: Geometry, work: Work, budget: float, accounting: Accounting) -> float:
    """KV of the longest step."""
    return work.batch * min(work.n_tokens, budget) * kv_bytes_per_token(geometry, accounting, work.kv_bits)

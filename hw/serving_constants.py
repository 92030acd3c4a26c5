"""Constants of the serving engine's cost model: efficiencies and overheads of one engine on one machine, with the energy's.

They are fitted to published runs (replay/serving/fit.py) or assumed, and kept in hw/fits/serving-*.toml with what they were
fitted on. Constants are correlated: 10 % more or less between two fits is normal.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tokentape.hw.fit_files import FitFiles


@dataclass(frozen=True, kw_only=True)
class ServingConstants:
    """What data sheets do not say. Shares are of the machine's peaks; times are of one device; hidden sizes scale to 2048."""

    expert_bandwidth_frac: float  # at which routed experts, and they alone, are read
    expert_ops_frac: float
    attention_ops_frac: float  # of prefill attention
    kv_bandwidth_frac: float  # at which decodes read their KV cache
    prefill_layer_s: float  # rest of a layer in an iteration that carries prefill
    decode_layer_s: float  # and in one that does not
    prefill_token_s: float  # rest of a layer per prefill token, at hidden size 2048
    prefill_iteration_s: float  # rest of an iteration that carries prefill
    prefill_correlation: float  # prefill tokens that touch as many experts as one decode token
    # Assumed (Layered Prefill section 5 of our notes), not fitted.
    decode_iteration_s: float = 1.5e-3
    dense_bandwidth_frac: float = 0.75  # of plain matrix products: projections, dense FFNs, shared experts, the output head
    dense_ops_frac: float = 0.60
    link_frac: float = 250 / 450  # 250 GB/s over the H100's NVLink
    kv_frac_per_decode: float = 0.0  # limit of kv_bandwidth_frac per decode of the batch; 0: none
    time_multiplier: float = 1.0  # another GPU or engine
    activation_passes: float = 20.0  # reads and writes of the hidden states per layer
    j_per_byte: float = 140e-12
    j_per_op: float = 0.8e-12
    static_w: float = 345.0  # of all devices

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            may_be_0 = not field.name.endswith(("_frac", "multiplier", "correlation"))
            if not 0.0 <= value < float("inf") or (value == 0.0 and not may_be_0):
                raise ValueError(f"{field.name} is {value}; it must be finite and {'at least 0' if may_be_0 else 'above 0'}")


# A plain roofline: nothing fitted. 3.5 to 6 times too fast, though orderings keep their sign (Layered Prefill, our notes).
ROOFLINE = ServingConstants(
    expert_bandwidth_frac=0.8,
    expert_ops_frac=0.6,
    attention_ops_frac=0.5,
    kv_bandwidth_frac=0.8,
    prefill_layer_s=20e-6,
    decode_layer_s=20e-6,
    prefill_token_s=0.0,
    prefill_iteration_s=1.5e-3,
    prefill_correlation=1.0,
)


@dataclass(frozen=True)
class ServingFitted:
    """engine: of the cost model; length_scale: of the arXiv prompts, fitted too."""

    engine: ServingConstants
    length_scale: float


FILES = FitFiles("serving", ServingFitted, "sum of the squared misses, in sigmas")
load, save = FILES.load, FILES.save

"""Knobs of the GPU-NDP cost model: what neither data sheets nor the paper fix. Fitted by replay/cxl_ndp/fit.py, kept in hw/fits.

The paper gives no bandwidth of HBM, no batch, no efficiencies and no settings of its baselines: what is not fitted is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tokentape.hw.fit_files import FitFiles

# Lowest and highest value that a fit may take.
BOUNDS = {
    "fixed_s": (0.0, 5e-4),
    "link_frac": (0.7, 1.0),  # the range of hw/specs/h100-cxl-ndp.toml
    "hobbit_bits": (2.0, 16.0),
}


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """Shares are of the machine's peaks.

    Fitted: fixed_s, of a layer beside its reads; link_frac; hobbit_bits, mean width that HOBBIT fetches at. Assumed: the rest, as
    the specification's section 5 has them.
    """

    fixed_s: float
    link_frac: float
    hobbit_bits: float
    batch: int = 16
    context_tokens: int = 768  # cached tokens per sequence
    ema_beta: float = 0.9
    attention_read_frac: float = 0.8  # of HBM: weights that every token reads
    kv_read_frac: float = 0.6
    decode_ops_frac: float = 0.5  # of the GPU: experts in decode
    prefill_ops_frac: float = 0.4  # experts in prefill
    attention_ops_frac: float = 0.5  # projections in prefill

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            low, high = BOUNDS.get(field.name, (0.0, 1.0 if field.name.endswith("_frac") else float("inf")))
            may_be_0 = field.name in ("fixed_s", "ema_beta", "context_tokens")
            if not low <= value <= high or value == float("inf") or (value == 0.0 and not may_be_0):
                raise ValueError(f"{field.name} is {value}; it must lie in {low:g} to {high:g}{'' if may_be_0 else ', above 0'}")


_ASSUMED = tuple(field.name for field in fields(Knobs) if field.name not in BOUNDS)
FILES = FitFiles("cxl_ndp", Knobs, "mean of |ln(ours / published)|", assumed=_ASSUMED)
load, save = FILES.load, FILES.save

"""Knobs of Kelle's cost model: what neither its sources nor a derivation fix. Fitted by replay/kelle/fit.py, kept in hw/fits."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tokentape.hw.fit_files import FitFiles

# Lowest and highest value that a fit may take.
BOUNDS = {
    "serial_frac": (0.0, 1.0),
    "kelle_serial_frac": (0.0, 1.0),
    "recomputed_frac": (0.0, 0.6),
}


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """serial_frac: how much of the shorter transfers waits for the longest one, 1 being all; kelle_serial_frac: its share that is
    left with Kelle's parallel memories. recomputed_frac: share of the KV reads that recomputation removes.

    The DRAM has no knob: weights and KV move at its full bandwidth at every batch.
    """

    serial_frac: float = 1.0
    kelle_serial_frac: float = 0.0
    recomputed_frac: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            lowest = BOUNDS[field.name][0]
            if not lowest <= value <= 1.0:
                raise ValueError(f"{field.name} is {value}; it must lie in {lowest:g} to 1")


FILES = FitFiles("kelle", Knobs, "mean of |ln(ours / published)|")
load, save = FILES.load, FILES.save

"""Knobs of Kelle's cost model: what neither its sources nor a derivation fix. Fitted by replay/kelle/fit.py, kept in hw/fits."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tokentape.hw.fit_files import read_fit, write_fit

COMMAND = "tokentape calibrate kelle"
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


@dataclass(frozen=True)
class KelleFit:
    """Knobs with their origin. fitted_on: ids of the claims; mean_abs_log: mean of |ln(ours / published)| left on them."""

    knobs: Knobs
    fitted_on: tuple[str, ...]
    mean_abs_log: float


def save(fit: KelleFit, path: Path) -> None:
    """Writes a fit as TOML, aside and then renamed."""
    write_fit(path, COMMAND, {"mean_abs_log": fit.mean_abs_log}, fit.fitted_on, {"knobs": asdict(fit.knobs)})


def load(name_or_path: str = "kelle") -> KelleFit:
    """The shipped fit by its name, or a file by path. Raises BadSpec naming the file and the key."""

    def parse(data: dict[str, Any]) -> KelleFit:
        return KelleFit(Knobs(**data["knobs"]), tuple(data["fitted_on"]), float(data["mean_abs_log"]))

    return read_fit(name_or_path, "kelle", "Kelle's knobs", COMMAND, parse)

"""Knobs of Kelle's cost model: what neither its sources nor a derivation fix. Fitted by replay/kelle/fit.py, kept in hw/fits."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from hw.files import write_text
from hw.sourced import BadSpec

FITS = Path(__file__).parent / "fits"
# Lowest and highest value that a fit may take.
BOUNDS = {
    "weight_dram_frac": (0.1, 1.0),
    "serial_frac": (0.0, 1.0),
    "kelle_serial_frac": (0.0, 1.0),
    "recomputed_frac": (0.0, 0.6),
}


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """weight_dram_frac: share of the DRAM's bandwidth that weights reach below batch 16, and its inverse what they cost.

    serial_frac: how much of the shorter transfers waits for the longest one, 1 being all; kelle_serial_frac: its share that is
    left with Kelle's parallel memories. recomputed_frac: share of the KV reads that recomputation removes.
    """

    weight_dram_frac: float = 1.0
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
    lines = [
        "# Written by `tokentape calibrate kelle`; hw/fits/README.md says what this is.",
        f"mean_abs_log = {fit.mean_abs_log:.6g}",
        "fitted_on = [",
        *(f'    "{claim}",' for claim in fit.fitted_on),
        "]",
        "",
        "[knobs]",
        *(f"{name} = {value:.6g}" for name, value in asdict(fit.knobs).items()),
    ]
    write_text(path, "\n".join(lines) + "\n")


def load(name_or_path: str = "kelle") -> KelleFit:
    """The shipped fit by its name, or a file by path. Raises BadSpec naming the file and the key."""
    path = Path(name_or_path) if name_or_path.endswith(".toml") else FITS / f"{name_or_path}.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return KelleFit(Knobs(**data["knobs"]), tuple(data["fitted_on"]), float(data["mean_abs_log"]))
    except FileNotFoundError:
        raise BadSpec(f"{path}: no such file of knobs; shipped: kelle; `tokentape calibrate kelle --out` writes one") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise BadSpec(f"{path}: not a file of Kelle's knobs ({error}); write it with `tokentape calibrate kelle`") from error

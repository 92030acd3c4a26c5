"""Quantities as a person reads them: three digits, an SI prefix, the unit."""

import math

from tokentape.warehouse.claim_errors import signed

__all__ = ["joined", "number", "percent", "quantity", "share", "signed", "significant"]

_PREFIXES = {-12: "p", -9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}
_SCALED = ("B", "B/s", "bit/s", "op/s", "Hz", "J", "W", "s")  # units that take a prefix; pJ/bit and mm2 already have one
_BINARY = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def quantity(value: float, unit: str) -> str:
    """`value` with its unit: 3.35e12, "B/s" is 3.35 TB/s; 41943040, "B" is 40 MiB, because it is no round decimal number."""
    if not unit or unit == "1":
        return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"
    if unit not in _SCALED:
        return f"{value:.3g} {unit}"
    for size, name in _BINARY if unit == "B" and value else ():
        if value % size == 0 and value % 1000:
            return f"{value / size:.4g} {name}"
    exponent = 3 * math.floor(math.log10(float(f"{value:.3g}")) / 3 + 1e-12) if value else 0
    exponent = min(max(exponent, min(_PREFIXES)), max(_PREFIXES))
    return f"{value / 10.0**exponent:.3g} {_PREFIXES[exponent]}{unit}"


def number(key: str, value: float, unit: str) -> str:
    """A value of a hardware file; shares, whose keys end in _frac, as per cent."""
    return percent(value) if key.endswith("_frac") else quantity(value, unit)


def percent(fraction: float, digits: int = 1) -> str:
    """A share as a person reads it."""
    return f"{fraction * 100:.{digits}f} %"


def share(fraction: float) -> str:
    """Whole per cent, without a zero for what is there."""
    return "< 1 %" if 0.0 < fraction < 0.005 else percent(fraction, 0)


def significant(value: float) -> str:
    """Three significant digits, without an exponent where a person would write none."""
    if value >= 999.5:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def joined(words: list[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""

"""Machines as people read them: rows for the terminal and for pages."""

import math

from tokentape.hw.sourced import Sourced, leaves
from tokentape.hw.spec import HardwareSpec, load

# What the end of a key says about its unit, longest first; the flag: whether the unit takes an SI prefix.
_UNITS = (
    ("bit_per_s_per_pin", "bit/s", True),
    ("bytes_per_unit", "B", True),
    ("bytes_per_s", "B/s", True),
    ("ops_per_s", "op/s", True),
    ("values_per_s", "value/s", True),
    ("_pj_per_bit", "pJ/bit", False),
    ("_pj_per_op", "pJ/op", False),
    ("_bytes", "B", True),
    ("_mm2", "mm2", False),
    ("_hz", "Hz", True),
    ("_nj", "nJ", False),
    ("_j", "J", True),
    ("_w", "W", True),
    ("_s", "s", True),
)
_PREFIXES = {-12: "p", -9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}
_NAMING = ("name", "title", "sha256")  # what tells machines apart without being a difference
_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def rows(spec: HardwareSpec) -> list[tuple[str, str, str, str]]:
    """Key, value, band ("" where the file gives none) and source of every number of a machine, in the order of its fields."""
    return [(key, readable(key, number.value), _band(key, number), number.source) for key, number in spec.numbers()]


def readable(key: str, value: float) -> str:
    """A value with the unit that its key ends in: capacity_bytes 4194304 is 4 MiB, peak_bytes_per_s 6.4e10 is 64 GB/s."""
    name, is_scaled = _unit(key)
    if not name:
        return f"{value:.6g}"
    return _scaled(value, name) if is_scaled else f"{value:.4g} {name}"


def unit(key: str) -> str:
    """The unit that a key ends in; 1 for counts and shares."""
    return _unit(key)[0] or "1"


def _unit(key: str) -> tuple[str, bool]:
    for part in reversed(key.split(".")):  # the last part may be a dtype: engines.sm.ops_per_s.bf16
        for ending, name, is_scaled in _UNITS:
            if part.endswith(ending):
                return name, is_scaled
    return "", False


def summary(names: tuple[str, ...]) -> list[tuple[str, str, str, str, str, str]]:
    """One row per machine: name, what it is, peak of its engine, tiers, their roles, share of assumed numbers."""
    return [(m.name, m.title, _peak(m), _tiers(m), roles(m), _share(m)) for m in map(load, names)]


def roles(spec: HardwareSpec) -> str:
    """Where weights, experts and KV lie, with the tier in front, and what computes beside a memory."""
    r = spec.roles
    lies = [("weights", r.weights_home, r.stage), ("experts", r.expert_home, r.expert_cache), ("KV", r.kv_home, r.kv_cache)]
    told = [f"{what} {home}" + (f" < {front}" if front else "") for what, home, front in lies]
    return ", ".join([*told, *([f"near {r.near_compute}"] if r.near_compute else [])])


def differences(a: HardwareSpec, b: HardwareSpec) -> list[tuple[str, str, str]]:
    """(key, in a, in b) of every number, text and count that differs or that only one of them has; name and title aside.

    A number differs in value, band or source; what is equal up to there is shown with it.
    """
    of_a, of_b = ({key: leaf for key, leaf in leaves(machine) if key not in _NAMING} for machine in (a, b))
    return [(key, *_apart(key, of_a.get(key), of_b.get(key))) for key in of_a | of_b if of_a.get(key) != of_b.get(key)]


def _apart(key: str, *pair: Sourced | str | int | None) -> tuple[str, str]:
    """Both of a pair in the shortest form that tells them apart: value, band, source, then all digits."""
    a, b = (_forms(key, one) if isinstance(one, Sourced) else ("" if one is None else str(one),) * 4 for one in pair)
    return next(((x, y) for x, y in zip(a, b, strict=True) if x != y), (a[-1], b[-1]))


def _forms(key: str, number: Sourced) -> tuple[str, str, str, str]:
    plain = readable(key, number.value)
    banded = f"{plain} ({_band(key, number) or 'no band'})"
    return plain, banded, f"{banded}: {number.source}", f"{number.value!r} ({number.low!r} to {number.high!r})"


def _peak(spec: HardwareSpec) -> str:
    times = f"{spec.n_devices} x " if spec.n_devices > 1 else ""
    return f"{times}{readable('ops_per_s', spec.compute.ops_per_s[spec.dtype].value)} {spec.dtype}"


def _tiers(spec: HardwareSpec) -> str:
    """Name, capacity and bandwidth of each tier, the fast and the backing one first."""
    tiers = {name: spec.tiers[name] for name in (spec.fast, spec.backing, *spec.tiers) if name}
    keys = ("capacity_bytes", "peak_bytes_per_s")
    told = {name: " at ".join(readable(key, getattr(tier, key).value) for key in keys) for name, tier in tiers.items()}
    return ", ".join(f"{name} {of}" for name, of in told.items())


def _share(spec: HardwareSpec) -> str:
    n_assumed, n = len(spec.assumed), len(spec.numbers())
    return f"{n_assumed} of {n} ({100 * n_assumed / n:.0f} %)"


def _band(key: str, number: Sourced) -> str:
    return "" if number.low == number.high else f"{readable(key, number.low)} to {readable(key, number.high)}"


def _scaled(value: float, unit: str) -> str:
    if unit == "B" and value > 0:
        for size, name in _BINARY:
            if value % size == 0 and value % 1000:  # a power of two, not a round decimal number
                return f"{value / size:.4g} {name}"
    if not value:
        return f"0 {unit}"
    exponent = 3 * math.floor(math.log10(abs(value)) / 3 + 1e-12)
    exponent = min(max(exponent, min(_PREFIXES)), max(_PREFIXES))
    return f"{value / 10.0**exponent:.4g} {_PREFIXES[exponent]}{unit}"

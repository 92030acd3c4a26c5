"""What Kelle's numbers are computed with, what may be changed of it, and rows of the study's views: points in both modes, whole
requests, and of one chip and one layer its parts, roofline, lifetimes and retention curves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import isnan
from typing import Any, ClassVar

import numpy as np

from tokentape.hw import profile as profiles
from tokentape.hw.clock import clock
from tokentape.policies.kv.refresh import Intervals, RetentionCurve
from tokentape.replay.kelle.ratios import LOAD_CLAIM, RECOMPUTE_CLAIM, Steps
from tokentape.replay.kelle.recompute import roofline
from tokentape.replay.kelle.step import PROJECTIONS, Step, lives, prefill, step_rows
from tokentape.replay.kelle.systems import BASELINE, KELLE, MODES, PAPER, PROFILE, Accounting, Shares, System, Work
from tokentape.warehouse.geometry import Geometry

Row = dict[str, Any]
LIFETIME_MODELS = ("llama-2-7b", "llama-2-13b")
CURVE_POINTS = 61
# Part of the chip: tiers of the machine's file whose area it has, and parts of a step's energy that it draws. The special
# functions have neither: the machine's static power holds them with the array's.
PARTS = {
    "array": ((), ("array_j",)),
    "sram": (("weights",), ("weight_sram_j",)),
    "edram": (("kv", "activations"), ("kv_j", "refresh_j")),
    "special functions": ((), ()),
    "dram": (("dram",), ("dram_j",)),
}


class Given:
    """Told in a study's file: what is not a field is refused."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}


@dataclass(frozen=True)
class Variant(Given):
    """One thing changed. machine, edram, kelle: numbers of the machine of every system, of those with eDRAM, of Kelle's, by
    dotted key; scans: Kelle's evictor is a scan in software; schedules: its data live by its own schedule; value: the number in
    `setting`."""

    setting: str = ""
    value: float | None = None
    machine: dict[str, float] = field(default_factory=dict)
    edram: dict[str, float] = field(default_factory=dict)
    kelle: dict[str, float] = field(default_factory=dict)
    recomputes: bool = True
    scans: bool = False
    schedules: bool = True
    accounting: dict[str, bool | str] = field(default_factory=dict)

    def of(self, system: System) -> System:
        """The system with the change made."""
        is_kelle = system.name == KELLE
        made = system.on(self.machine | (self.edram if system.is_edram else {}) | (self.kelle if is_kelle else {}))
        made = replace(made, recomputes=system.recomputes and self.recomputes, scans=self.scans and is_kelle)
        return replace(made, schedules=system.schedules and self.schedules)


@dataclass(frozen=True)
class Refresh(Given):
    """2DRP: intervals by group of token importance and bit significance, and the curves that failures are read from.

    anchors: failures at 45 us, the default first; held_frac: failures that the sensitivity to the curve holds; curve_us: ends of
    a drawn curve.
    """

    intervals_us: dict[str, float]
    anchors: tuple[float, ...]
    held_frac: float
    curve_us: tuple[float, float]

    def __post_init__(self) -> None:
        if len(self.intervals_us) != 4:
            raise ValueError(f"intervals_us names {len(self.intervals_us)} groups; give HST-MSB, HST-LSB, LST-MSB, LST-LSB")
        if not 0.0 < self.held_frac < 1.0:
            raise ValueError(f"held_frac = {self.held_frac} is no share of cells that fail; give one above 0 and below 1")

    @property
    def intervals(self) -> Intervals:
        """Of the groups, in the order of the file."""
        return Intervals(*self.intervals_us.values())


@dataclass(frozen=True)
class Chip(Given):
    """The paper's shares of area and on-chip power, and the cell that our power is of."""

    model: str
    workload: str
    area_share: dict[str, float]
    power_share: dict[str, float]

    def __post_init__(self) -> None:
        if not all(0.0 <= share <= 1.0 for share in (*self.area_share.values(), *self.power_share.values())):
            raise ValueError("shares of area and power lie in 0 to 1")


@dataclass(frozen=True)
class Requests(Given):
    """Whole requests: lengths of prompt and output."""

    model: str
    lengths: tuple[tuple[int, int], ...]
    budget_tokens: int


@dataclass(frozen=True)
class Setup:
    """curves: of retention, by the failures assumed at 45 us, the default first; claims: of the paper; sensitivity: changes whose
    error over all ratios is told; errors: typical and worst, of a gain without a published value."""

    systems: dict[str, System]
    geometries: dict[str, Geometry]
    models: tuple[str, ...]
    workloads: dict[str, Work]
    shares: Shares
    curves: dict[float, RetentionCurve]
    claims: Sequence[Mapping[str, Any]]
    refresh: Refresh
    chip: Chip
    requests: Requests
    sensitivity: tuple[Variant, ...]
    errors: tuple[float, float]
    profile: str = PROFILE
    _made: dict[str, Steps] = field(default_factory=dict)

    @property
    def stated(self) -> dict[str, float]:
        """The paper's numbers by the id of their claim."""
        return {row["claim_id"]: row["value"] for row in self.claims}

    @property
    def chip_work(self) -> Work:
        """Of the cell that the parts' power is of."""
        return self.workloads[self.chip.workload]

    def steps(self, mode: str = "paper", variant: Variant | None = None) -> Steps:
        """Decode steps in this mode, with one thing changed."""
        changed = variant or Variant()
        key = f"{mode}/{changed!r}"
        if key not in self._made:
            systems = {name: changed.of(system) for name, system in self.systems.items()}
            counted: Accounting = replace(MODES[mode], **changed.accounting)  # type: ignore[arg-type]
            self._made[key] = Steps(systems, self.geometries, self.workloads, self.shares, counted, self.profile)
        return self._made[key]


Cell = tuple[str, str, Work, str, Variant]  # model, name of the workload, the work, system, and what is changed


# -------------------------------------------------------------------------------------------------- steps and requests


def swept(made: Setup, series: str, role: str, cells: Sequence[Cell]) -> Iterator[Row]:
    """Rows of `kelle_points` of a series. What does not fit has neither time nor energy."""
    for variant, mode in product({repr(cell[-1]): cell[-1] for cell in cells}.values(), MODES):
        asked = [(model, name, work) for model, _, work, system, of in cells if of == variant for name in (system, BASELINE)]
        made.steps(mode, variant).make(asked)
    for (model, workload, work, system, variant), mode in product(cells, MODES):
        steps = made.steps(mode, variant)
        step, gains = steps.step(model, system, work), steps.gains(model, system, work)
        timed = {"step_s": step.seconds, "energy_j": step.energy_j, **step.joules}
        timed |= {name: getattr(step, name) for name in ("weight_bytes", "kv_read_bytes", "kv_dram_bytes")}
        yield {
            "series": series,
            "setting": variant.setting,
            "setting_value": variant.value,
            "role": role,
            "workload": workload,
            "mode": mode,
            **_where(model, work, steps.systems[system]),
            **(timed if step.is_feasible else dict.fromkeys(timed)),
            **{name: None if isnan(gain) else gain for name, gain in zip(("speed_gain", "energy_gain"), gains, strict=True)},
            "typical_err_frac": made.errors[0],
            "worst_err_frac": made.errors[1],
            "dram_overflow_bytes": step.overflow_bytes,
            "notes": "; ".join(step.notes),
        }


def retained(made: Setup) -> list[Cell]:
    """Kelle's energy if its four intervals were scaled so that failures stay at a rate, by the assumed retention curve."""
    refresh, cells = made.refresh, []
    for anchor, curve in made.curves.items():
        scale = scale_to(curve, refresh.intervals.all_us, refresh.held_frac)
        setting = f"failures held to {refresh.held_frac:g}, {anchor:g} at 45 us"
        interval_s = 1e-6 * refresh.intervals.harmonic_mean_us * scale
        variant = Variant(setting, anchor, kelle={"tiers.kv.refresh_interval_s": interval_s})
        of = product(made.models, made.workloads.items(), (BASELINE, KELLE))
        cells += [(model, *workload, system, variant) for model, workload, system in of]
    return cells


def scale_to(curve: RetentionCurve, intervals_us: Sequence[float], failure_frac: float) -> float:
    """The factor on all intervals at which equal groups fail at this rate on average."""
    low, high = 1e-6, 1e6
    for _ in range(100):
        middle = (low * high) ** 0.5
        lost = curve.mean_failure([middle * interval for interval in intervals_us])
        low, high = (middle, high) if lost < failure_frac else (low, middle)
    return low


def _where(model: str, work: Work, system: System) -> Row:
    return {
        "model_id": model,
        "n_context_tokens": work.n_context_tokens,
        "n_decode_tokens": work.n_decode_tokens,
        "batch": work.batch,
        "system": system.name,
        "budget_tokens": work.budget_tokens if system.evicts else None,
    }


def requests(made: Setup) -> Iterator[Row]:
    """Rows of `kelle_requests`: a batch from its first prompt token to its last output token, of several lengths."""
    asked, columns = made.requests, ("prefill_s", "prefill_j", "decode_s", "decode_j", "speed_gain", "energy_gain")
    for (context, decode), (mode, accounting) in product(asked.lengths, MODES.items()):
        work, base = Work(context, decode, budget_tokens=asked.budget_tokens), None
        for name, system in made.systems.items():  # the baseline first
            step = made.steps(mode).step(asked.model, name, work)
            parts = (*prefill(made.geometries[asked.model], system, work, profiles.load(made.profile), accounting),
                     decode * step.seconds, decode * step.energy_j)  # fmt: skip
            whole = parts[0] + parts[2], parts[1] + parts[3]
            if base is None:
                base = whole if step.is_feasible else (np.nan, np.nan)
            gains = [None if isnan(of) else of / own for of, own in zip(base, whole, strict=True)]
            found = dict(zip(columns, (*parts, *gains), strict=True))
            where = _where(asked.model, work, system) | {"mode": mode, "dram_overflow_bytes": step.overflow_bytes}
            yield where | (found if step.is_feasible else dict.fromkeys(columns))


# ------------------------------------------------------------------------------------------------ one chip, one layer


def recompute(made: Setup) -> Iterator[Row]:
    """Rows of `kelle_recompute`: the paper's ratio of latencies, and the array's own."""
    of, work = made.chip, made.chip_work
    slowdown = made.stated[RECOMPUTE_CLAIM] / made.stated[LOAD_CLAIM]
    where = {"model_id": of.model, "workload": of.workload, "batch": work.batch}
    for mode, ratio in (("paper", slowdown), ("physical", None)):
        for point in roofline(made.geometries[of.model], made.systems[KELLE].machine, work, mode, ratio):
            yield where | {"mode": mode} | point


def lifetimes(made: Setup) -> Iterator[Row]:
    """Rows of `kelle_lifetimes`: how long a layer's data stay in eDRAM by either schedule, in the placed step of Kelle's chip."""
    work, system = made.chip_work, made.systems[KELLE]
    for model in (name for name in LIFETIME_MODELS if name in made.geometries):
        geometry, n = made.geometries[model], made.geometries[model].n_layers
        counted = step_rows(geometry, [(system, work)], made.shares.once, PAPER)
        cost = clock(counted, system.machine, profiles.load(made.profile), ends=("value",))
        where = {"model_id": model, "batch": work.batch, "budget_tokens": work.budget_tokens}
        for schedule in PROJECTIONS:
            for tensor, (start, seconds) in lives(geometry, cost, schedule).items():
                each = {"start_s": float(start[0]) / n, "seconds": float(seconds[0]) / n}
                yield where | {"schedule": schedule, "tensor": tensor} | each


def chip_step(made: Setup) -> Step:
    """Kelle's step of the cell that the parts' power is of."""
    return made.steps().step(made.chip.model, KELLE, made.chip_work)


def part_w(step: Step, part: str) -> float:
    """Mean power of a part over a step, without leakage."""
    return sum(step.joules[joule] for joule in PARTS[part][1]) / step.seconds


def parts(made: Setup) -> Iterator[Row]:
    """Rows of `kelle_parts`: our areas and powers beside the paper's; the array's power is the special functions' too."""
    machine, stated = made.systems[KELLE].machine, made.stated
    assert machine.area_mm2 is not None
    for part, (tiers, joules) in PARTS.items():
        area = machine.compute.area_mm2
        areas = [machine.tiers[tier].area_mm2 for tier in tiers] + [area] * (part == "array")
        held = [one.value for one in areas if one is not None]
        share, power = (shares.get(part) for shares in (made.chip.area_share, made.chip.power_share))
        yield {
            "hardware": machine.name,
            "part": part,
            "area_mm2": sum(held) if held else None,
            "published_area_mm2": share * machine.area_mm2.value if share is not None else None,
            "power_w": part_w(chip_step(made), part) if joules else None,
            "published_power_w": stated["kelle/8/power/dram"] if power is None else power * stated["kelle/8/power/on-chip-total"],
        }


def retention(made: Setup) -> Iterator[Row]:
    """Rows of `kelle_retention`: a curve for every assumed failure rate at 45 us, and the four intervals on each."""
    drawn = np.geomspace(*made.refresh.curve_us, CURVE_POINTS).tolist()
    for curve in made.curves.values():
        for group, interval_us in [*(("", interval) for interval in drawn), *made.refresh.intervals_us.items()]:
            yield {
                "sigma": curve.sigma,
                "anchor_frac": curve.failure_at_45us,
                "interval_s": 1e-6 * interval_us,
                "failure_frac": curve.failure_frac(interval_us),
                "refresh_group": group,
            }

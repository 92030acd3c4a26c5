"""What Kelle's numbers are computed with: systems, models, workloads and knobs, and what may be changed of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from tokentape.hw.spec import HardwareSpec
from tokentape.policies.kv.refresh import Intervals, RetentionCurve
from tokentape.replay.kelle.ratios import Steps
from tokentape.replay.kelle.systems import KELLE, PROFILE, Fitted, System
from tokentape.replay.kelle.work import MODES, Accounting, Work
from tokentape.warehouse.geometry import Geometry

ZERO, CALIBRATED = "zero", "calibrated"
MEAN_FAILURE = "kelle/7.1/retention_failure_average/four-default-intervals"


class Given:
    """Told in a study's file: what is not a field is refused."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}


@dataclass(frozen=True)
class Variant(Given):
    """One thing changed. machine, edram, kelle: numbers of the machine of every system, of those with eDRAM, of Kelle's, by
    dotted key; scans: Kelle's evictor is a scan in software; value: the number in `setting`."""

    setting: str = ""
    value: float | None = None
    machine: dict[str, float] = field(default_factory=dict)
    edram: dict[str, float] = field(default_factory=dict)
    kelle: dict[str, float] = field(default_factory=dict)
    recomputes: bool = True
    scans: bool = False
    transient_frac: float | None = None
    accounting: dict[str, bool | str] = field(default_factory=dict)

    def systems(self, of: Mapping[str, System]) -> dict[str, System]:
        """The systems with the change made."""
        return {name: self._changed(system) for name, system in of.items()}

    def _changed(self, system: System) -> System:
        is_kelle = system.name == KELLE
        made = system.on(self.machine | (self.edram if system.is_edram else {}) | (self.kelle if is_kelle else {}))
        made = replace(made, recomputes=system.recomputes and self.recomputes, scans=self.scans and is_kelle)
        return made if self.transient_frac is None else replace(made, transient_frac=self.transient_frac)

    def counted(self, accounting: Accounting) -> Accounting:
        """The accounting with the change made."""
        return replace(accounting, **self.accounting)  # type: ignore[arg-type]


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


@dataclass(frozen=True)
class Requests(Given):
    """Whole requests: lengths of prompt and output."""

    model: str
    lengths: tuple[tuple[int, int], ...]
    budget_tokens: int


@dataclass(frozen=True)
class Setup:
    """knobs: by name, zero and calibrated; curves: of retention, by the failures assumed at 45 us, the default first; stated: the
    paper's claims by id; sensitivity: changes whose error over all ratios is told; errors: typical and worst, of a gain without a
    published value."""

    machines: dict[str, HardwareSpec]
    systems: dict[str, System]
    geometries: dict[str, Geometry]
    models: tuple[str, ...]
    workloads: dict[str, Work]
    knobs: dict[str, Fitted]
    curves: dict[float, RetentionCurve]
    stated: dict[str, dict[str, Any]]
    refresh: Refresh
    chip: Chip
    requests: Requests
    sensitivity: tuple[Variant, ...]
    errors: tuple[float, float]
    profile: str = PROFILE
    _made: dict[str, Steps] = field(default_factory=dict)

    def steps(self, knobs: str = CALIBRATED, mode: str = "paper", variant: Variant | None = None) -> Steps:
        """Decode steps under these knobs, in this mode, with one thing changed."""
        changed = variant or Variant()
        key = f"{knobs}/{mode}/{changed!r}"
        if key not in self._made:
            of = (changed.systems(self.systems), self.geometries, self.workloads, self.knobs[knobs])
            self._made[key] = Steps(*of, changed.counted(MODES[mode]), self.profile)
        return self._made[key]

"""What Kelle prints: one system over another in time or energy, of a cell or averaged over models and tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tokentape.replay.kelle.step import Step, decode_steps
from tokentape.replay.kelle.systems import BASELINE, PROFILE, Fitted, System, profile_of
from tokentape.replay.kelle.work import PAPER, Accounting, Work
from tokentape.warehouse.geometry import Geometry

SPEED, ENERGY = "speed", "energy"
Cell = tuple[str, str, Work]  # model, system, what it is asked of
METRICS = {"speedup": SPEED, "energy_efficiency_gain": ENERGY}  # of a claim -> ours
_SETTING = re.compile(r"(?:(?P<workload>\w+) (?P<name>batch|budget)=(?P<value>\d+) )?(?P<ours>\S+) over (?P<over>[^;\s]+)")


@dataclass(frozen=True)
class Ratio:
    """`ours` over `over`: times less time (speed) or energy. model, workload: None averages over all."""

    claim_id: str
    role: str
    published: float
    metric: str
    ours: str
    over: str
    model: str | None = None
    workload: str | None = None
    changed: Mapping[str, int] = field(default_factory=dict)  # batch or budget_tokens of the work

    def __str__(self) -> str:
        where = f"{self.model}, {self.workload}" if self.model else "mean over models and tasks"
        return ", ".join([f"{self.ours} over {self.over}", where, *(f"{name} {value}" for name, value in self.changed.items())])


def ratio_of(claim: Mapping[str, object], systems: Iterable[str]) -> Ratio | None:
    """The ratio that a claim states; None if it states another thing, or one of a workload that is not the paper's four."""
    found = _SETTING.fullmatch(str(claim["setting"]).partition(";")[0])
    known = tuple(systems)
    if not found or claim["metric"] not in METRICS or found["ours"] not in known or found["over"] not in known:
        return None
    changed = {"batch" if found["name"] == "batch" else "budget_tokens": int(found["value"])} if found["name"] else {}
    model = str(claim["model"]).lower() or None
    if (model is None) != (found["workload"] is None):
        return None
    stated = (str(claim["claim_id"]), str(claim["role"]), float(str(claim["value"])), METRICS[str(claim["metric"])])
    return Ratio(*stated, found["ours"], found["over"], model, found["workload"], changed)


@dataclass
class Steps:
    """Decode steps of systems, models and workloads under one choice of knobs, accounting and cost profile; each is computed
    once."""

    systems: Mapping[str, System]
    geometries: Mapping[str, Geometry]
    workloads: Mapping[str, Work]
    knobs: Fitted
    accounting: Accounting = PAPER
    profile: str = PROFILE
    _made: dict[Cell, Step] = field(default_factory=dict)

    def step(self, model: str, system: str, work: Work) -> Step:
        """Of one system. Raises ValueError where a name is unknown."""
        cell = (model, system, work)
        if cell not in self._made:
            for name, known in ((model, self.geometries), (system, self.systems)):
                if name not in known:
                    raise ValueError(f"{name!r} is not of this study; choose one of {', '.join(known)}")
            self._made[cell] = self.make([cell])._made[self._key(*cell)]
        return self._made[cell]

    def make(self, cells: Iterable[Cell]) -> Steps:
        """These steps, with those that are not there yet computed: systems of one machine and profile at once."""
        groups: dict[tuple[str, bool, float], list[Cell]] = {}
        for key in dict.fromkeys(self._key(*cell) for cell in cells):
            system = self.systems[key[1]]
            if key not in self._made:
                groups.setdefault((system.machine.sha256, system.overlaps, system.transient_frac), []).append(key)
        at_retention, share = self.accounting.activations_at_retention, self.knobs.recomputed_frac
        for keys in (sorted(keys, key=lambda key: key[0]) for keys in groups.values()):
            profile = profile_of(self.knobs, self.systems[keys[0][1]], at_retention, self.profile)
            asked = [(self.geometries[model], self.systems[name], work) for model, name, work in keys]
            self._made |= zip(keys, decode_steps(asked, share, profile, self.accounting), strict=True)
        return self

    def _key(self, model: str, system: str, work: Work) -> Cell:
        keeps_all = work.budget_tokens is None or self.systems[system].evicts
        return model, system, work if keeps_all else replace(work, budget_tokens=None)

    def gain(self, metric: str, model: str, ours: str, over: str, work: Work) -> float:
        """`over` / `ours` in time or energy of a step; NaN where one of them does not fit."""
        mine, theirs = (self.step(model, system, work) for system in (ours, over))
        if not (mine.is_feasible and theirs.is_feasible):
            return float("nan")
        return theirs.seconds / mine.seconds if metric == SPEED else theirs.energy_j / mine.energy_j

    def value(self, ratio: Ratio) -> tuple[float, int]:
        """Our value, and how many cells it is the arithmetic mean of; NaN and 0 where none fits."""
        cells = self.make(self.cells_of(ratio)).cells_of(ratio)[::2]
        gains = np.array([self.gain(ratio.metric, model, ratio.ours, ratio.over, work) for model, _, work in cells])
        fitting = gains[~np.isnan(gains)]
        return (float(fitting.mean()), fitting.size) if fitting.size else (float("nan"), 0)

    def cells_of(self, ratio: Ratio) -> list[Cell]:
        """What the ratio is of, in pairs."""
        if ratio.model and ratio.workload:
            works = [(ratio.model, replace(self.workloads[ratio.workload], **ratio.changed))]
        else:
            works = [(model, work) for model in self.geometries for work in self.workloads.values()]
        return [(model, system, work) for model, work in works for system in (ratio.ours, ratio.over)]

    def gains(self, model: str, system: str, work: Work) -> tuple[float, float]:
        """Speed and energy over the SRAM baseline."""
        return self.gain(SPEED, model, system, BASELINE, work), self.gain(ENERGY, model, system, BASELINE, work)

"""What Kelle prints: one system over another in time or energy, of a cell or averaged over models and tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tokentape.hw import profile as profiles
from tokentape.replay.kelle.step import Step, decode_steps
from tokentape.replay.kelle.systems import BASELINE, PAPER, PROFILE, Accounting, Shares, System, Work
from tokentape.warehouse.geometry import Geometry

SPEED, ENERGY = "speed", "energy"
Cell = tuple[str, str, Work]  # model, system, what it is asked of
METRICS = {"speedup": SPEED, "energy_efficiency_gain": ENERGY}  # of a claim -> ours
_SETTING = re.compile(r"(?:(?P<workload>\w+) (?P<name>batch|budget)=(?P<value>\d+) )?(?P<ours>\S+) over (?P<over>[^;\s]+)")
LOAD_CLAIM = "kelle/8.3.2/latency/llama-2-7b/one-kv-vector-from-dram"
RECOMPUTE_CLAIM = "kelle/8.3.2/latency/llama-2-7b/recompute-one-kv-vector"


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


@dataclass
class Steps:
    """Decode steps of systems, models and workloads under one way to count and cost profile; each is computed once."""

    systems: Mapping[str, System]
    geometries: Mapping[str, Geometry]
    workloads: Mapping[str, Work]
    shares: Shares
    accounting: Accounting = PAPER
    profile: str = PROFILE
    _made: dict[Cell, Step] = field(default_factory=dict)

    def step(self, model: str, system: str, work: Work) -> Step:
        """Of one system."""
        return self.make([(model, system, work)])._made[self._key(model, system, work)]

    def make(self, cells: Iterable[Cell]) -> Steps:
        """These steps, with those that are not there yet computed: of a model on systems of one machine at once."""
        groups: dict[tuple[str, str], list[Cell]] = {}
        for key in dict.fromkeys(self._key(*cell) for cell in cells):
            if key not in self._made:
                groups.setdefault((key[0], self.systems[key[1]].machine.sha256), []).append(key)
        for (model, _), keys in groups.items():
            asked, profile = [(self.systems[name], work) for _, name, work in keys], profiles.load(self.profile)
            steps = decode_steps(self.geometries[model], asked, self.shares.once, profile, self.accounting)
            self._made |= zip(keys, steps, strict=True)
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

    def gains(self, model: str, system: str, work: Work) -> tuple[float, float]:
        """Speed and energy over the SRAM baseline."""
        return self.gain(SPEED, model, system, BASELINE, work), self.gain(ENERGY, model, system, BASELINE, work)

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


def ratios(claims: Iterable[Mapping[str, Any]], steps: Steps) -> list[Ratio]:
    """The paper's ratios between these systems; none of a workload that is not among its four, those that a prefill decides."""
    found = []
    for row in claims:
        match = _SETTING.fullmatch(str(row["setting"]).partition(";")[0])
        if not match or row["paper"] != "kelle" or row["metric"] not in METRICS:
            continue
        model, workload = str(row["model"]).lower() or None, match["workload"]
        is_known = workload in (None, *steps.workloads) and {*match.group("ours", "over")} <= {*steps.systems}
        if is_known and (model is None) == (workload is None):
            changed = {"batch" if match["name"] == "batch" else "budget_tokens": int(match["value"])} if workload else {}
            told = (str(row["claim_id"]), str(row["role"]), float(row["value"]), METRICS[row["metric"]])
            found.append(Ratio(*told, match["ours"], match["over"], model, workload, changed))
    return found

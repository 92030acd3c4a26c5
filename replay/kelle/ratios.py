"""What Kelle prints: one system over another in time or energy, of a cell or averaged over models and tasks; the three knobs
fitted to it, and which orders of systems these turn round.

The fit is the least mean |ln(ours / published)| over claims of role `calibrate`, within bounds. Errors count by their size, and
not by their square: cells that no step which rises with its batch can meet (Table 9 at batch 4: docs/kelle.md) do not decide the
knobs then. With nothing fitted transfers are serial but for Kelle's, and the recomputed share balances the paper's two latencies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

import numpy as np

from tokentape.hw.fit_files import Fit, solver
from tokentape.replay.kelle.step import Step, decode_steps
from tokentape.replay.kelle.systems import (
    BASELINE,
    BOUNDS,
    PAPER,
    PROFILE,
    Accounting,
    Fitted,
    Floats,
    System,
    Work,
    profile_of,
)
from tokentape.warehouse.geometry import Geometry

SPEED, ENERGY = "speed", "energy"
Cell = tuple[str, str, Work]  # model, system, what it is asked of
METRICS = {"speedup": SPEED, "energy_efficiency_gain": ENERGY}  # of a claim -> ours
_SETTING = re.compile(r"(?:(?P<workload>\w+) (?P<name>batch|budget)=(?P<value>\d+) )?(?P<ours>\S+) over (?P<over>[^;\s]+)")
LOAD_CLAIM = "kelle/8.3.2/latency/llama-2-7b/one-kv-vector-from-dram"
RECOMPUTE_CLAIM = "kelle/8.3.2/latency/llama-2-7b/recompute-one-kv-vector"
ROUNDING = 0.01  # of the published numbers, three digits: smaller errors count by their square, which keeps the loss smooth
STARTS = (0.25, 0.5, 0.75)  # of the way from each bound to the other
TOLERANCES = {"xtol": 1e-10, "ftol": 1e-10, "gtol": 1e-10}
TIE = 1e-9  # of a ratio's logarithm: equal but for rounding


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

    def errors(self, wanted: Iterable[Ratio]) -> Floats:
        """(n,) ln(ours / published) of each."""
        asked = list(wanted)
        self.make(cell for ratio in asked for cell in self.cells_of(ratio))
        return np.array([np.log(self.value(ratio)[0] / ratio.published) for ratio in asked])


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


def nothing_fitted(claims: Iterable[Mapping[str, Any]]) -> Fitted:
    """The recomputed share at which loading the rest of the vectors takes as long as recomputing these."""
    values = {row["claim_id"]: row["value"] for row in claims}
    load, recompute = float(values[LOAD_CLAIM]), float(values[RECOMPUTE_CLAIM])
    return Fitted(recomputed_frac=load / (load + recompute))


def calibrate(claims: Iterable[Mapping[str, Any]], steps: Steps) -> Fit[Fitted]:
    """Knobs with the least error over claims of role `calibrate`, from three starts. Deterministic; seconds. Needs scipy.

    steps: the systems, models and workloads; its knobs do not matter. Raises ValueError without such claims, ImportError without
    scipy.
    """
    least_squares = solver()
    wanted = [ratio for ratio in ratios(claims, steps) if ratio.role == "calibrate"]
    if len(wanted) < len(BOUNDS):
        raise ValueError(f"{len(wanted)} ratios of role calibrate for {len(BOUNDS)} knobs; check warehouse/claims/claims.csv")
    low, high = np.array(list(BOUNDS.values())).T

    def at(values: Floats) -> Steps:
        return replace(steps, knobs=Fitted(**dict(zip(BOUNDS, values.tolist(), strict=True))), _made={})

    def found(start: float) -> Any:
        first, more = low + start * (high - low), {"loss": "soft_l1", "f_scale": ROUNDING, **TOLERANCES}
        return least_squares(lambda values: at(values).errors(wanted), first, bounds=(low, high), **more)

    fitted = at(np.round(min(map(found, STARTS), key=lambda one: float(one.cost)).x, 6))
    left = float(np.abs(fitted.errors(wanted)).mean())
    return Fit(fitted.knobs, tuple(sorted(ratio.claim_id for ratio in wanted)), left)


def reversals(plain: Steps, fitted: Steps, cells: Sequence[tuple[str, Work]]) -> list[dict[str, Any]]:
    """Pairs of systems, in time and in energy, of which `better` beats `worse` in some `cells` with the fitted knobs and loses to
    it without. A cell where one of the two does not fit is left out. frac: of the others; where: in words, with how far apart the
    two are in the clearest cell, by the reading that separates them less."""
    # (2, metrics, cells) by system
    costs = {system: np.stack([_costs(steps, system, cells) for steps in (plain, fitted)]) for system in plain.systems}
    found = []
    for i, metric in enumerate((SPEED, ENERGY)):
        for better, worse in permutations(costs, 2):
            # (cells,) ln of how much `better` wins by: without the fit it must lose, with it win.
            without, with_fit = np.log(costs[worse][:, i] / costs[better][:, i])
            least = np.minimum(-without, with_fit)
            turned, n_cells = [cells[j] for j in np.flatnonzero(least > TIE).tolist()], int((~np.isnan(least)).sum())
            if turned:
                batches, lengths = (_span([getattr(work, name) for _, work in turned]) for name in ("batch", "n_tokens"))
                most = 100 * float(np.expm1(np.nanmax(least)))
                where = f"{len(turned)} of {n_cells} cells, at most by {most:.2g} %: batch {batches}, {lengths} tokens"
                pair = {"metric": metric, "better": better, "worse": worse, "cells": turned}
                found.append({**pair, "frac": len(turned) / n_cells, "where": where})
    return found


def _span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _costs(steps: Steps, system: str, cells: Sequence[tuple[str, Work]]) -> Floats:
    """(2, cells) seconds and joules of a step; NaN where it does not fit."""
    steps.make((model, system, work) for model, work in cells)
    made = [steps.step(model, system, work) for model, work in cells]
    return np.array([(step.seconds, step.energy_j) if step.is_feasible else (np.nan, np.nan) for step in made]).T

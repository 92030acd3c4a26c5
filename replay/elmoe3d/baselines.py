"""Rows of elmoe3d_platforms and elmoe3d_energy: the proposed design and the paper's five baselines, AR and speculating.

What the paper does not give is varied one thing at a time around the headline: nodes verified, bandwidth next to memory, what is
held there. Every platform computes the same nodes; ours too, so its times here may exceed those of Table 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

import numpy as np

from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.hw.profile import ENDS, Profile
from tokentape.hw.sourced import Sourced
from tokentape.hw.spec import HardwareSpec, with_values
from tokentape.replay.elmoe3d.cells import Cell, Setup
from tokentape.replay.elmoe3d.platforms import Holds, baseline
from tokentape.replay.elmoe3d.points import ELASTIC, Compute, Floats, Points, as_points
from tokentape.replay.elmoe3d.runs import Mode, Run, ours
from tokentape.replay.elmoe3d.timing import evaluate

DATASET = "mt-bench"  # the one with published acceptance
OURS, REFERENCE, HB_XPU = "elmoe3d", "xpu", "hb-xpu"
MODES: tuple[Mode, ...] = ("ar", "sd")
NEAR = "xpu-nmp"


@dataclass(frozen=True)
class Assumed:
    """The baselines, and what the paper does not say of them: each in its range, the headline's value beside it."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    baselines: tuple[str, ...]
    ours_gb: int
    drafted_by: str
    verify_nodes: tuple[float, ...]
    headline_verify_nodes: float
    draft_nodes: float
    near_ext_ratios: tuple[float, ...]
    headline_near_ext_ratio: float
    holds: tuple[Holds, ...]
    headline_holds: Holds
    pool_write_frac: Sourced


@dataclass(frozen=True, eq=False)
class Ran:
    """A platform over all models and batches, in both modes; ratio, holds: of near-memory compute, else None."""

    platform: str
    cells: Sequence[Cell]
    runs: dict[Mode, Run]
    verify_nodes: float
    hit_model: str
    level: str
    ratio: float | None = None
    holds: str | None = None

    @cached_property
    def is_sd(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """(n,) speculation is the faster mode."""
        return np.asarray(self.runs["sd"].token_s < self.runs["ar"].token_s)

    @property
    def best_token_s(self) -> Floats:
        return np.minimum(self.runs["ar"].token_s, self.runs["sd"].token_s)

    def j_per_token(self, mode: Mode, end: str) -> Floats:
        """All parts together."""
        return np.asarray(sum(joules[ENDS.index(end)] for joules in self.runs[mode].joules_per_token.values()))

    def best_j_per_token(self, end: str) -> Floats:
        """In the faster mode."""
        return np.where(self.is_sd, self.j_per_token("sd", end), self.j_per_token("ar", end))


def platform_runs(
    of: Assumed,
    specs: Mapping[str, HardwareSpec],
    setup: Setup,
    table: Sequence[Cell],
    fit: ELMoE3DConstants,
    hit_models: Sequence[str],
    profile: Profile,
) -> Iterator[Ran]:
    """Ours, HB-xPU, then every baseline, each by hit model and number of verified nodes; near-memory compute once per ratio and
    holding. Order of cells: by model and batch.

    specs: the baselines' machines by name, and ours.
    """
    settings = list(product(hit_models, of.verify_nodes))

    def points(cells: Sequence[Cell], machine: HardwareSpec) -> Points:
        """Setting by setting."""
        computes = {nodes: Compute(verify_nodes=nodes, draft_nodes=of.draft_nodes) for nodes in of.verify_nodes}
        return as_points(
            [
                setup.point(cell, fit, machine=machine, hit_model=law, compute=computes[nodes])
                for law, nodes in settings
                for cell in cells
            ]
        )

    def ran(name: str, cells: Sequence[Cell], runs: dict[Mode, Run], *near: Any) -> Iterator[Ran]:
        for i, (law, nodes) in enumerate(settings):
            steps = slice(i * len(cells), (i + 1) * len(cells))
            yield Ran(name, cells, {mode: run.of(steps) for mode, run in runs.items()}, nodes, law, fit.level, *near)

    def chosen(scheme: str) -> list[Cell]:
        return [cell for cell in table if cell.hb_gb == of.ours_gb and cell.scheme == scheme]

    for name, scheme in ((OURS, ELASTIC), (HB_XPU, of.drafted_by)):
        at = points(chosen(scheme), specs[OURS])
        found = evaluate(at, profile, with_joules=True)
        runs: dict[Mode, Run] = {mode: ours(at, found, mode, profile, of.pool_write_frac) for mode in MODES}
        yield from ran(name, chosen(scheme), runs)
    cells = chosen(of.drafted_by)
    for name in of.baselines:
        short = name.removeprefix("elmoe3d-")
        if short != NEAR:
            yield from ran(short, cells, baseline(points(cells, specs[name]), "dense", profile))
            continue
        for ratio in of.near_ext_ratios:
            at = points(cells, near_at(specs[name], ratio))
            for holds in of.holds:
                yield from ran(short, cells, baseline(at, holds, profile), ratio, holds)


def near_at(machine: HardwareSpec, ratio: float) -> HardwareSpec:
    """With compute next to channels at so many times the bandwidth of all channels."""
    name = machine.roles.near_compute
    tiers = (machine.engines[name].memory, machine.roles.expert_home)
    whole = sum(machine.tiers[tier].peak_bytes_per_s.value for tier in tiers)
    return with_values(machine, {f"engines.{name}.memory_bytes_per_s": ratio * whole})


def is_headline(of: Assumed, ran: Ran) -> bool:
    near = (of.headline_near_ext_ratio, of.headline_holds) if ran.platform == NEAR else (None, None)
    return ran.verify_nodes == of.headline_verify_nodes and (ran.ratio, ran.holds) == near


def platform_rows(all_runs: Sequence[Ran]) -> Iterator[dict[str, Any]]:
    """Rows of elmoe3d_platforms; speed-ups over the xPU's AR with as many nodes."""
    reference = {(r.hit_model, r.verify_nodes): r.runs["ar"].token_s for r in all_runs if r.platform == REFERENCE}
    for ran in all_runs:
        for mode in MODES:
            token_s = ran.runs[mode].token_s
            speedup = reference[ran.hit_model, ran.verify_nodes] / token_s
            for i, cell in enumerate(ran.cells):
                yield {
                    **_where(ran, cell),
                    "nmp_ext_ratio": ran.ratio,
                    "placement": ran.holds,
                    "verify_nodes": ran.verify_nodes,
                    "step_mode": mode,
                    "token_s": float(token_s[i]),
                    "speedup": float(speedup[i]),
                    "is_best": bool(ran.is_sd[i]) == (mode == "sd"),
                    "fidelity": "input",
                }


def energy_rows(of: Assumed, all_runs: Sequence[Ran]) -> Iterator[dict[str, Any]]:
    """Rows of elmoe3d_energy, of the headline's settings."""
    for ran in all_runs:
        if not is_headline(of, ran):
            continue
        for mode in MODES:
            joules = ran.runs[mode].joules_per_token
            for i, cell in enumerate(ran.cells):
                for part, (value, low, high) in joules.items():
                    yield {
                        **_where(ran, cell),
                        "step_mode": mode,
                        "is_best": bool(ran.is_sd[i]) == (mode == "sd"),
                        "part": part,
                        "j_per_token": float(value[i]),
                        "low": float(low[i]),
                        "high": float(high[i]),
                    }


def _where(ran: Ran, cell: Cell) -> dict[str, Any]:
    return {
        "platform": ran.platform,
        "model_id": cell.model,
        "dataset": DATASET,
        "batch": cell.batch,
        "level": ran.level,
        "hit_model": ran.hit_model,
    }


@dataclass(frozen=True, eq=False)
class Ratios:
    """Of the baselines over ours in the faster mode, over models and batches: (n,) values.

    near: how near-memory compute is assumed; end: of the energy's ranges.
    """

    over_xpu: Floats
    over_prior: Floats
    energy_over_xpu: Floats
    energy_over_prior: Floats
    near: Ran
    end: str

    @property
    def assumed(self) -> str:
        near = f"near-memory compute at {self.near.ratio:g} x EXT with {self.near.holds} first"
        return f"{self.near.verify_nodes:g} nodes verified, {near}"


def ratios(all_runs: Sequence[Ran]) -> Iterator[Ratios]:
    """One per assumption on nodes, near-memory compute and energy. Best prior: the best baseline without HB, point by point, by
    time or by energy.

    The xPU stands for itself in AR, as the paper normalises to it; among the priors it may speculate.
    """
    for nodes in dict.fromkeys(ran.verify_nodes for ran in all_runs):
        of = [ran for ran in all_runs if ran.verify_nodes == nodes]
        mine = next(ran for ran in of if ran.platform == OURS)
        xpu = next(ran for ran in of if ran.platform == REFERENCE)
        always = [ran for ran in of if ran.platform not in (OURS, HB_XPU, NEAR)]
        for near, end in product((ran for ran in of if ran.platform == NEAR), ENDS):
            priors = [*always, near]
            joules = mine.best_j_per_token(end)
            yield Ratios(
                over_xpu=xpu.runs["ar"].token_s / mine.best_token_s,
                over_prior=np.min([ran.best_token_s for ran in priors], axis=0) / mine.best_token_s,
                energy_over_xpu=xpu.j_per_token("ar", end) / joules,
                energy_over_prior=np.min([ran.best_j_per_token(end) for ran in priors], axis=0) / joules,
                near=near,
                end=end,
            )

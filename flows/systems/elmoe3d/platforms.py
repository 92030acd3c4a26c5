"""Rows of elmoe3d_platforms and elmoe3d_energy: the proposed design and the paper's five baselines, AR and speculating.

What the paper does not give is varied one thing at a time around the headline: nodes verified, bandwidth next to memory, what is
held there. Every platform computes the same nodes; ours too, so its times here may exceed those of Table 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from tokentape.flows.grid import load_hardware
from tokentape.flows.systems.elmoe3d.settings import Settings
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.replay.elmoe3d.cells import Cell, Setup
from tokentape.replay.elmoe3d.energy import ENDS, End, Prices, joules_per_token, prices_of
from tokentape.replay.elmoe3d.platforms import Platform, baseline, platform_of
from tokentape.replay.elmoe3d.points import ELASTIC, Compute, Floats, as_points
from tokentape.replay.elmoe3d.runs import Mode, Run, ours
from tokentape.replay.elmoe3d.timing import evaluate

DATASET = "mt-bench"  # the one with published acceptance
OURS, REFERENCE, HB_XPU = "elmoe3d", "xpu", "hb-xpu"
MODES: tuple[Mode, ...] = ("ar", "sd")
NEAR = "xpu-nmp"


@dataclass(frozen=True, eq=False)
class Ran:
    """A platform over all models and batches, in both modes; ratio, holds: of near-memory compute, else None."""

    platform: str
    cells: Sequence[Cell]
    runs: dict[Mode, Run]
    prices: Prices
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

    def j_per_token(self, mode: Mode, end: End) -> Floats:
        """All parts together."""
        return np.asarray(np.sum(list(joules_per_token(self.runs[mode], self.prices, end).values()), axis=0))

    def best_j_per_token(self, end: End) -> Floats:
        """In the faster mode."""
        return np.where(self.is_sd, self.j_per_token("sd", end), self.j_per_token("ar", end))


def platform_runs(
    study: Settings, setup: Setup, table: Sequence[Cell], fit: ELMoE3DConstants, hit_model: str, verify_nodes: float
) -> Iterator[Ran]:
    """Ours, HB-xPU, then every baseline; near-memory compute once per ratio and holding. Order of cells: by model and batch."""
    of = study.platforms
    compute = Compute(verify_nodes=verify_nodes, draft_nodes=of.draft_nodes)

    def priced(name: str) -> Prices:
        return prices_of(load_hardware(name), of.near_pj_per_bit.sourced, of.pool_write_frac.sourced)

    def chosen(scheme: str) -> list[Cell]:
        return [cell for cell in table if cell.hb_gb == of.ours_gb and cell.scheme == scheme]

    for name, scheme in ((OURS, ELASTIC), (HB_XPU, of.drafted_by)):
        points = as_points([setup.point(cell, fit, hit_model=hit_model, compute=compute) for cell in chosen(scheme)])
        found = evaluate(points)
        runs: dict[Mode, Run] = {mode: ours(points, found, mode) for mode in MODES}
        yield Ran(name, chosen(scheme), runs, priced(study.machines[of.ours_gb]), verify_nodes, hit_model, fit.level)
    for name in of.baselines:  # the points of HB-xPU, without its HB
        spec, short = load_hardware(name), name.removeprefix("elmoe3d-")
        options: list[tuple[Platform, float | None, str | None]] = [(platform_of(spec), None, None)]
        if short == NEAR:
            options = [(platform_of(spec, ratio, holds), ratio, holds) for ratio in of.near_ext_ratios for holds in of.holds]
        for platform, ratio, holds in options:
            runs = {mode: baseline(points, platform, mode) for mode in MODES}
            yield Ran(short, chosen(of.drafted_by), runs, priced(name), verify_nodes, hit_model, fit.level, ratio, holds)


def is_headline(study: Settings, ran: Ran) -> bool:
    of = study.platforms
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


def energy_rows(study: Settings, all_runs: Sequence[Ran]) -> Iterator[dict[str, Any]]:
    """Rows of elmoe3d_energy, of the headline's settings."""
    for ran in all_runs:
        if not is_headline(study, ran):
            continue
        for mode in MODES:
            value, low, high = (joules_per_token(ran.runs[mode], ran.prices, end) for end in ENDS)
            for i, cell in enumerate(ran.cells):
                for part in value:
                    yield {
                        **_where(ran, cell),
                        "step_mode": mode,
                        "is_best": bool(ran.is_sd[i]) == (mode == "sd"),
                        "part": part,
                        "j_per_token": float(value[part][i]),
                        "low": float(low[part][i]),
                        "high": float(high[part][i]),
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
    end: End

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

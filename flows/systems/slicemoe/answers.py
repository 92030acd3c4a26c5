"""What the SliceMoE study's points say about the paper's numbers: one row of table `answers` per claim it can speak to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from tokentape.flows.answers import Row, answer, stated
from tokentape.flows.inside_model import sliced_run
from tokentape.hw.spec import HardwareSpec
from tokentape.replay.matched import METRICS, Point, at_quality, gains
from tokentape.warehouse import models
from tokentape.warehouse.formats import slice_bytes

FIG_9 = "slicemoe/6.3-fig-9/decode_{}/max/{}/dbsc-over-high-bit-cache-prior-at-matched-accuracy"
FIG_10 = "slicemoe/6.3-fig-10/decode_{}/pcw-over-empty-initial-cache"
ANCHOR = "slicemoe/secondary-source-arxiv-2412.00099/miss_rate/{}/{}-half-of-the-experts-cached"
FIDELITY = "slicemoe/project/open_over_closed_loop_{}/mean/{}/{}"
FIDELITY_METRICS = ("miss_frac", "flash_bytes_per_token", "step_s")
FLASH_OVER_DRAM = "slicemoe/1/dram_over_flash_energy_efficiency/more-than"
CACHED_SHARE = "slicemoe/6.1/cached_share_of_high_bit_experts/3.6-gb-cache"
PER_LAYER = "slicemoe/6.1/high_bit_experts_per_layer/1.8-gb-cache-at-least"
GAINS = {"energy_gain": "energy", "speedup": "speed"}  # of a claim's metric -> of replay.matched.gains


def answers(study: Any, machine: HardwareSpec, points: pl.DataFrame) -> list[Row]:
    """Rows of table `answers`; bands are the least and the most of the seeds.

    tau is chosen on the models that calibrate, where their published gains say so: the least sum of |ln(ours / published)|.
    """
    tau = chosen_tau(study, points)
    rows = []
    for model in study.models:
        role = "calibrated on this model" if model.calibrates else "predicted with the other model's tau"
        for metric, name in GAINS.items():
            capacity, values = best_gains(study, points, model.name, tau, name)
            how = f"most over capacities, at {capacity / 1e9:g} GB; tau {tau:g}, {role}; kept gate mass {study.quality_frac:g}"
            rows.append(_row(FIG_9.format(metric, model.name), values, how))
        anchors = points.filter(
            (pl.col("model_id") == model.name) & (pl.col("capacity_bytes") == _anchor_bytes(study, points, model.name))
        )
        for policy, strength in (("lru", 0.0), ("cache-prior", study.prior_strength)):
            missed = anchors.filter(pl.col("strength") == strength)["high_bit_miss_frac"].to_list()
            rows.append(
                _row(ANCHOR.format(model.name, policy), missed, f"high-bit cache, strength {strength:g}, after ten free steps")
            )
    for metric, name in GAINS.items():
        held = f"hard budget {study.warmup_target_frac:g}, Cache-Prior {study.prior_strength:g}"
        how = f"first ten steps of {study.models[0].name}, {study.held_capacity_gb:g} GB, {held}"
        rows.append(_row(FIG_10.format(metric), warmup_gains(study, points, study.models[0].name, f"early_{name}"), how))
    return [*rows, *_by_geometry(study, machine)]


def _row(claim_id: str, values: Iterable[float], how: str) -> Row:
    found = np.array(list(values), np.float64)
    ends = (float(found.min()), float(found.max())) if found.size > 1 else (None, None)
    return answer(claim_id, float(found.mean()), how, ends=ends)


def _matched(study: Any, points: pl.DataFrame, where: pl.Expr) -> dict[int, Point]:
    """By seed: the sweep that `where` picks, read at the study's quality."""
    found = {}
    for (seed,), of_seed in points.filter(where).sort("seed", "strength").group_by(["seed"], maintain_order=True):
        made = [Point(**row) for row in of_seed.select("strength", "quality_frac", *METRICS).to_dicts()]
        found[int(seed)] = at_quality(made, study.quality_frac)
    return found


def gains_by_seed(
    study: Any, points: pl.DataFrame, model: str, tau: float, capacity_bytes: int, warmup: str
) -> list[dict[str, float]]:
    """Of DBSC over the high-bit cache at equal quality, seed by seed."""
    here = (pl.col("model_id") == model) & (pl.col("capacity_bytes") == capacity_bytes) & (pl.col("budget") == "none")
    here &= (pl.col("pair") == study.pairs[0]) & (pl.col("router") == "cache_prior")
    baseline = _matched(study, points, here & (pl.col("configuration") == "high-bit"))
    sliced = (pl.col("configuration") == "dbsc") & (pl.col("tau") == tau) & (pl.col("warmup") == warmup)
    ours = _matched(study, points, here & sliced)
    return [gains(baseline[seed], ours[seed]) for seed in sorted(ours)]


def best_gains(study: Any, points: pl.DataFrame, model: str, tau: float, name: str) -> tuple[int, list[float]]:
    """The capacity with the largest mean gain ("up to"), and the gains of its seeds."""
    by_capacity = {}
    for gb in study.capacities_gb:
        capacity = round(gb * 1e9)
        by_capacity[capacity] = [g[name] for g in gains_by_seed(study, points, model, tau, capacity, "last_layer")]
    best = max(by_capacity, key=lambda capacity: float(np.mean(by_capacity[capacity])))
    return best, by_capacity[best]


def chosen_tau(study: Any, points: pl.DataFrame) -> float:
    """The study's threshold that comes nearest to the published gains of the models that calibrate."""

    def error(tau: float) -> float:
        total = 0.0
        for model in study.models:
            for metric, name in GAINS.items():
                if model.calibrates:
                    ours = float(np.mean(best_gains(study, points, model.name, tau, name)[1]))
                    total += abs(float(np.log(ours / stated("slicemoe")[FIG_9.format(metric, model.name)]["value"])))
        return total

    return float(min(study.taus, key=error))


def _anchor_bytes(study: Any, points: pl.DataFrame, model: str) -> int:
    """The anchor's cache: the one capacity of the model that is not among the study's."""
    known = {round(gb * 1e9) for gb in (*study.capacities_gb, study.held_capacity_gb)}
    (found,) = set(points.filter(pl.col("model_id") == model)["capacity_bytes"].unique().to_list()) - known
    return int(found)


def warmup_gains(study: Any, points: pl.DataFrame, model: str, name: str) -> list[float]:
    """Of PCW over an empty cache under the warm-ups' budget, seed by seed; name: of replay.matched.gains."""
    budget = f"hard {study.warmup_target_frac:g}"
    held = points.filter((pl.col("model_id") == model) & (pl.col("budget") == budget)).sort("seed")

    def of_warmup(warmup: str) -> list[Point]:
        chosen = held.filter((pl.col("warmup") == warmup) & (pl.col("configuration") == "dbsc"))
        return [Point(**row) for row in chosen.select("strength", "quality_frac", *METRICS).to_dicts()]

    return [gains(empty, pcw)[name] for empty, pcw in zip(of_warmup("empty"), of_warmup("pcw"), strict=True)]


def _by_geometry(study: Any, machine: HardwareSpec) -> list[Row]:
    """Claims that follow from sizes and the machine's file alone."""
    flash, dram = (machine.tiers[name].read_pj_per_bit.value for name in (machine.backing, machine.fast))
    shares, per_layer = [], []
    for model in study.models:
        geometry = models.load(model.name).geometry
        n_layers = len(geometry.moe_layers)
        expert_bytes = sum(slice_bytes(geometry.expert_params, 8, 4))
        shares.append(100.0 * max(study.capacities_gb) * 1e9 / (n_layers * geometry.n_experts * expert_bytes))
        per_layer.append(min(study.capacities_gb) * 1e9 / (n_layers * expert_bytes))
    return [
        _row(FLASH_OVER_DRAM, [flash / dram], "pJ/bit of Flash over pJ/bit of DRAM, as the machine's file has them"),
        _row(CACHED_SHARE, [max(shares)], f"largest of {len(shares)} models at MAT84"),
        _row(PER_LAYER, [min(per_layer)], f"least of {len(per_layer)} models at MAT84"),
    ]


def fidelity_answers(study: Any, rows: Iterable[Row]) -> list[Row]:
    """Open loop over closed loop from rows of table `fidelity`, for the project's own claims; bands over seeds."""
    live, found = study.live, []
    how = f"replay of the natural tape over the closed loop, {live.fidelity_cache_frac:g} of the experts cached, {live.dataset}"
    for compared in live.fidelity:
        tried = sliced_run(compared.parameters, live.fidelity_cache_frac).parameters
        mine = [row for row in rows if row["model_id"] == live.name and json.loads(row["parameters"]) == tried]
        for metric in FIDELITY_METRICS:
            pairs = [(row["open_loop"], row["closed_loop"]) for row in mine if row["metric"] == metric]
            ratios = [opened / closed for opened, closed in pairs if closed]
            if ratios:  # a text so short that nothing is counted says nothing
                found.append(_row(FIDELITY.format(metric, live.name, compared.name), ratios, how))
    return found

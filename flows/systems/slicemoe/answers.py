"""What the SliceMoE study's points say about the paper's numbers: one row of table `answers` per claim it can speak to."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import polars as pl

from tokentape.flows.answers import Row, answer, stated
from tokentape.flows.inside_model import sliced_run
from tokentape.flows.systems.slicemoe.live import jobs
from tokentape.flows.systems.slicemoe.settings import ANCHOR as OF_ANCHOR
from tokentape.flows.systems.slicemoe.settings import EQUAL_QUALITY, Settings
from tokentape.hw.spec import HardwareSpec
from tokentape.replay.slicemoe.gains import FIG_9, FIG_10, GAINS, Swept
from tokentape.warehouse import models
from tokentape.warehouse.formats import slice_bytes

ANCHOR = "slicemoe/secondary-source-arxiv-2412.00099/miss_rate/{}/{}-half-of-the-experts-cached"
FIDELITY = "slicemoe/project/open_over_closed_loop_{}/mean/{}/{}"
PAPER = "slicemoe"
FIDELITY_METRICS = ("miss_frac", "flash_bytes_per_token", "step_s")
FLASH_OVER_DRAM = "slicemoe/1/dram_over_flash_energy_efficiency/more-than"
CACHED_SHARE = "slicemoe/6.1/cached_share_of_high_bit_experts/3.6-gb-cache"
PER_LAYER = "slicemoe/6.1/high_bit_experts_per_layer/1.8-gb-cache-at-least"


def swept_of(study: Settings, points: pl.DataFrame) -> Swept:
    """points: rows of `slicemoe_points` of the drawn tapes."""
    capacities = [round(gb * 1e9) for gb in study.values(EQUAL_QUALITY, "capacity_gb")]
    taus = study.values(EQUAL_QUALITY, "tau")
    return Swept(points, study.pair, capacities, taus, study.quality_frac, study.warmed["target_frac"])


def tau_of(study: Settings, swept: Swept) -> float:
    """Chosen on the models that calibrate, where their published gains say so."""
    return swept.tau([model.name for model in study.models if model.calibrates], stated(PAPER))


def answers(study: Settings, machine: HardwareSpec, swept: Swept) -> list[Row]:
    """Rows of view `answers`; bands are the least and the most of the seeds."""
    tau, points = tau_of(study, swept), swept.points
    rows = []
    for model in study.models:
        role = "calibrated on this model" if model.calibrates else "predicted with the other model's tau"
        for metric, name in GAINS.items():
            capacity, values = swept.best(model.name, tau, name)
            how = f"most over capacities, at {capacity / 1e9:g} GB; tau {tau:g}, {role}; kept gate mass {study.quality_frac:g}"
            rows.append(_row(FIG_9.format(metric, model.name), values, how))
        anchors = points.filter(
            (pl.col("model_id") == model.name) & (pl.col("capacity_bytes") == _anchor_bytes(study, points, model.name))
        )
        for policy, strength in zip(("lru", "cache-prior"), study.values(OF_ANCHOR, "strength"), strict=True):
            missed = anchors.filter(pl.col("strength") == strength)["high_bit_miss_frac"].to_list()
            rows.append(
                _row(ANCHOR.format(model.name, policy), missed, f"high-bit cache, strength {strength:g}, after ten free steps")
            )
    first, of = study.models[0].name, study.warmed
    held = f"hard budget {of['target_frac']:g}, Cache-Prior {of['strength']:g}"
    for metric, name in GAINS.items():
        how = f"first ten steps of {first}, {of['capacity_gb']:g} GB, {held}"
        rows.append(_row(FIG_10.format(metric), swept.warmed(first, f"early_{name}"), how))
    return [*rows, *_by_geometry(study, machine)]


def _row(claim_id: str, values: Iterable[float], how: str) -> Row:
    found = np.array(list(values), np.float64)
    ends = (float(found.min()), float(found.max())) if found.size > 1 else (None, None)
    return answer(claim_id, float(found.mean()), how, ends=ends)


def _anchor_bytes(study: Settings, points: pl.DataFrame, model: str) -> int:
    """The anchor's cache: the one capacity of the model that is not among the study's."""
    known = {round(gb * 1e9) for gb in (*study.values(EQUAL_QUALITY, "capacity_gb"), study.warmed["capacity_gb"])}
    (found,) = set(points.filter(pl.col("model_id") == model)["capacity_bytes"].unique().to_list()) - known
    return int(found)


def _by_geometry(study: Settings, machine: HardwareSpec) -> list[Row]:
    """Claims that follow from sizes and the machine's file alone."""
    flash, dram = (machine.tiers[name].read_pj_per_bit.value for name in (machine.backing, machine.fast))
    shares, per_layer = [], []
    capacities_gb = study.values(EQUAL_QUALITY, "capacity_gb")
    for model in study.models:
        geometry = models.load(model.name).geometry
        n_layers = len(geometry.moe_layers)
        expert_bytes = sum(slice_bytes(geometry.expert_params, 8, 4))
        shares.append(100.0 * max(capacities_gb) * 1e9 / (n_layers * geometry.n_experts * expert_bytes))
        per_layer.append(min(capacities_gb) * 1e9 / (n_layers * expert_bytes))
    return [
        _row(FLASH_OVER_DRAM, [flash / dram], "pJ/bit of Flash over pJ/bit of DRAM, as the machine's file has them"),
        _row(CACHED_SHARE, [max(shares)], f"largest of {len(shares)} models at MAT84"),
        _row(PER_LAYER, [min(per_layer)], f"least of {len(per_layer)} models at MAT84"),
    ]


def fidelity_answers(study: Settings, rows: Iterable[Row]) -> list[Row]:
    """Open loop over closed loop from rows of table `fidelity`, for the project's own claims; bands over seeds."""
    found = []
    for job in (job for job in jobs(study) if job.what == "fidelity"):
        how = f"replay of the natural tape over the closed loop, {job.cache_frac:g} of the experts cached, {job.dataset}"
        tried = sliced_run(dict(job.parameters), job.cache_frac).parameters
        mine = [row for row in rows if row["model_id"] == job.model and json.loads(row["parameters"]) == tried]
        for metric in FIDELITY_METRICS:
            pairs = [(row["open_loop"], row["closed_loop"]) for row in mine if row["metric"] == metric]
            ratios = [opened / closed for opened, closed in pairs if closed]
            if ratios:  # a text so short that nothing is counted says nothing
                found.append(_row(FIDELITY.format(metric, job.model, job.name), ratios, how))
    return found

"""Rows of elmoe3d_mapping, elmoe3d_intensity and elmoe3d_checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from tokentape.flows.systems.elmoe3d.settings import Settings
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.replay.elmoe3d.cells import Cell, Setup
from tokentape.replay.elmoe3d.checks import Check, checks, held_out, link_checks
from tokentape.replay.elmoe3d.mapping import map_bytes, placed
from tokentape.replay.elmoe3d.points import EAGLE, Compute, as_points
from tokentape.replay.elmoe3d.runs import target_ops
from tokentape.replay.elmoe3d.timing import Outcome, evaluate
from tokentape.warehouse.load import claims

PUBLISHED_MEAN = "elmoe3d/sec-7.1/best_mode_elastic_speedup/mean/{}gb-mt-bench-batch-1-16-models-all-four"


def mapping_rows(setup: Setup, table: Sequence[Cell], fit: ELMoE3DConstants) -> Iterator[dict[str, Any]]:
    """What every part takes, of all rows of Table 3."""
    points = [setup.point(cell, fit) for cell in table]
    arrays = as_points(points)
    parts = placed(arrays, map_bytes(arrays))
    for i, point in enumerate(points):
        for (tier, part), taken in parts.items():
            yield {
                "hardware": point.machine.name,
                "model_id": point.shape.name,
                "sd_scheme": point.scheme,
                "batch": int(point.batch),
                "context_tokens": int(point.context_tokens),
                "tier": tier,
                "part": part,
                "placed_bytes": float(taken[i]),
            }


def intensity_rows(study: Settings, setup: Setup, table: Sequence[Cell], fit: ELMoE3DConstants) -> Iterator[dict[str, Any]]:
    """Operations per byte of the static part and of the experts, in AR and in verification, and where each tier's roofline bends.

    Attention over the context is not counted, its bytes are.
    """
    of = study.platforms
    compute = Compute(verify_nodes=of.headline_verify_nodes, draft_nodes=of.draft_nodes)
    chosen = [cell for cell in table if cell.scheme == EAGLE]
    points = as_points([setup.point(cell, fit, compute=compute) for cell in chosen])
    found = evaluate(points)
    static_bytes = points.static_bytes + points.kv_bytes
    for mode, made, tokens in (("ar", found.ar, points.batch), ("sd", found.verify, points.batch * points.verify_nodes)):
        static_ops = 2.0 * tokens * points.static_params
        by_part = {
            "static": static_ops / static_bytes,
            "experts": (target_ops(points, tokens) - static_ops) / made.expert_bytes,
        }
        for part, values in by_part.items():
            for cell, value in zip(chosen, values.tolist(), strict=True):
                where = {"hardware": study.machines[cell.hb_gb], "model_id": cell.model, "batch": cell.batch}
                yield {**where, "step_mode": mode, "part": part, "ops_per_byte": value}
    for machine in setup.machines.values():
        for tier in ("hb", "ext"):
            bytes_per_s, ops_per_s = machine.roofline(machine.n_units, tier)
            for model in setup.shapes:
                where = {"hardware": machine.name, "model_id": model, "batch": 1, "step_mode": "ar"}
                yield {**where, "part": f"knee {tier}", "ops_per_byte": ops_per_s / bytes_per_s}


def check_rows(
    study: Settings, setup: Setup, table: Sequence[Cell], fit: ELMoE3DConstants, hit_model: str, found: Outcome, is_headline: bool
) -> Iterator[dict[str, Any]]:
    """Section 11's errors. found: of Table 3's rows in order.

    is_headline: also refits without some rows, where scipy is there, and what the links carry.
    """
    published = {row["claim_id"]: row["value"] for row in claims().to_pylist()}
    made = checks(table, found)
    for gb in setup.machines:
        mean = next(check for check in made if check.block == f"Elastic best mode over xPU, {gb} GB, mean")
        over = mean.value / published[PUBLISHED_MEAN.format(gb)]
        made.append(Check(f"{mean.block} over published", over, "1", mean.n))
    if is_headline:
        made += link_checks(table, setup, fit, study.platforms.headline_verify_nodes)
        made += held_out(table, setup, fit) if find_spec("scipy") is not None else []
    for check in made:
        low, high = study.bars.get(check.block, (None, None))
        assert np.isfinite(check.value), check
        yield {
            "block": check.block,
            "level": fit.level,
            "fit": fit.rows,
            "hit_model": hit_model,
            "value": check.value,
            "unit": check.unit,
            "n": check.n,
            "bar_low": low,
            "bar_high": high,
        }

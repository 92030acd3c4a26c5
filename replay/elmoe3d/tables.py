"""Rows of elmoe3d_mapping, elmoe3d_intensity and elmoe3d_checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.hw.profile import Profile
from tokentape.replay.elmoe3d.baselines import Assumed
from tokentape.replay.elmoe3d.cells import Cell, Setup
from tokentape.replay.elmoe3d.checks import Check, checks, held_out, link_checks
from tokentape.replay.elmoe3d.mapping import map_bytes, placed
from tokentape.replay.elmoe3d.points import EAGLE, Compute, as_points
from tokentape.replay.elmoe3d.runs import knee
from tokentape.replay.elmoe3d.timing import Outcome, reads_of
from tokentape.warehouse.geometry import Geometry

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
                "model_id": point.model,
                "sd_scheme": point.scheme,
                "batch": int(point.batch),
                "context_tokens": int(point.context_tokens),
                "tier": tier,
                "part": part,
                "placed_bytes": float(taken[i]),
            }


def intensity_rows(
    of: Assumed, setup: Setup, table: Sequence[Cell], fit: ELMoE3DConstants, profile: Profile
) -> Iterator[dict[str, Any]]:
    """Operations per byte of the static part and of the experts, in AR and in verification, and where each tier's roofline bends.

    Attention over the context is not counted, its bytes are.
    """
    compute = Compute(verify_nodes=of.headline_verify_nodes, draft_nodes=of.draft_nodes)
    chosen = [cell for cell in table if cell.scheme == EAGLE]
    points = as_points([setup.point(cell, fit, compute=compute) for cell in chosen])
    reads = reads_of(points, map_bytes(points))
    models = [setup.models[cell.model][0] for cell in chosen]
    static, routed = (np.array(params, np.float64) for params in zip(*map(_params_per_token, models), strict=True))
    for mode, made in (("ar", reads["ar"]), ("sd", reads["verify"])):
        ops = 2.0 * points.batch * made.nodes
        by_part = {"static": ops * static / made.static_bytes, "experts": ops * routed / made.expert_bytes}
        for part, values in by_part.items():
            for cell, value in zip(chosen, values.tolist(), strict=True):
                where = {"hardware": setup.machines[cell.hb_gb].name, "model_id": cell.model, "batch": cell.batch}
                yield {**where, "step_mode": mode, "part": part, "ops_per_byte": value}
    for machine in setup.machines.values():
        for tier, role in (("hb", "expert_cache"), ("ext", "expert_home")):
            bends_at = knee(machine, role, profile)
            for model in setup.models:
                where = {"hardware": machine.name, "model_id": model, "batch": 1, "step_mode": "ar"}
                yield {**where, "part": f"knee {tier}", "ops_per_byte": bends_at}


def _params_per_token(geometry: Geometry) -> tuple[int, int]:
    """(all but routed experts, of the experts of a token)."""
    return geometry.non_expert_params, len(geometry.moe_layers) * geometry.top_k * geometry.expert_params


def check_rows(
    bars: Mapping[str, tuple[float, float]],
    published: Mapping[str, Mapping[str, Any]],
    setup: Setup,
    table: Sequence[Cell],
    fit: ELMoE3DConstants,
    hit_model: str,
    found: Outcome,
    verify_nodes: float | None,
) -> Iterator[dict[str, Any]]:
    """Section 11's errors. bars: by the checks' words; published: the paper's claims by id; found: of Table 3's rows in order.

    verify_nodes: of the headline, which also refits without some rows, where scipy is there, and tells what the links carry.
    """
    made = checks(table, found)
    for gb in setup.machines:
        mean = next(check for check in made if check.block == f"Elastic best mode over xPU, {gb} GB, mean")
        over = mean.value / published[PUBLISHED_MEAN.format(gb)]["value"]
        made.append(Check(f"{mean.block} over published", over, "1", mean.n))
    if verify_nodes is not None:
        made += link_checks(table, setup, fit, verify_nodes)
        made += held_out(table, setup, fit) if find_spec("scipy") is not None else []
    for check in made:
        low, high = bars.get(check.block, (None, None))
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

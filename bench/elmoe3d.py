"""ELMoE-3D in closed form: CPU seconds of the whole study and of a sweep, against the same formulas one point at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from tokentape.flows.systems.elmoe3d.settings import Settings, setup_of
from tokentape.flows.systems.elmoe3d.study import closed_forms
from tokentape.replay.elmoe3d.fit import cells
from tokentape.replay.elmoe3d.points import EAGLE, ELASTIC, QUANT, SLM, Setup, as_points, eagle_params, points_of
from tokentape.replay.elmoe3d.timing import evaluate
from tokentape.warehouse.load import claims

N_POINTS, N_ALONE = 10_000, 400
Q8, Q4 = 1.0625, 0.5625  # bytes per weight


def one_by_one(told: Mapping[str, Any], setup: Setup) -> tuple[float, float]:
    """(Phi_AR, Phi_SD) of a point whose static weights and KV fit in HB, by paper_law or physical, in plain Python: the peer."""
    point, small = SimpleNamespace(**told), setup.drafter
    (g, expert_format), machine = setup.models[point.model], setup.machines[point.machine]
    law, spec, batch = point, point, point.batch
    is_sliced, n_layers, expert_bytes = expert_format == "int8-g32", len(g.moe_layers), g.expert_bytes(expert_format)[0]
    rank = [i**-law.exponent for i in range(1, g.n_experts + 1)]
    low, high = 0.0, 1.0
    while sum(1.0 - math.exp(-high * r) for r in rank) < g.top_k:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        if sum(1.0 - math.exp(-middle * r) for r in rank) < g.top_k:
            low = middle
        else:
            high = middle

    def unique(n_tokens: float) -> float:
        return sum(1.0 - math.exp(-n_tokens * high * r) for r in rank)

    def hit(share: float, beta: float, n_tokens: float) -> float:
        if share <= 0.0:
            return 0.0
        found = share**beta
        return min(found, share * g.n_experts / unique(n_tokens)) if point.hit_model == "physical" else found

    hb, ext = (tier.peak_bytes_per_s.value * tier.efficiency_frac.value for tier in (machine.tiers["hb"], machine.tiers["ext"]))
    hb_bytes, static_bytes = machine.tiers["hb"].capacity_bytes.value, Q8 * g.non_expert_params
    kv = g.n_layers * g.kv_elements_per_token_layer * batch * point.context_tokens
    static, all_bytes = static_bytes + kv, expert_bytes * g.n_experts * n_layers
    slm_kv = small.n_layers * small.kv_elements_per_token_layer * batch * point.context_tokens if small else 0.0
    table = 2 * g.vocab * g.hidden * law.own_table  # of the head's own
    private = 2 * eagle_params(g) + table if point.scheme == EAGLE else 0.0
    if point.scheme == SLM and small is not None:
        own = small.vocab * small.hidden
        private = Q8 * (small.non_expert_params - own) + 2 * own + slm_kv
    needed = static + 2 * g.vocab * g.hidden + private
    room = max(0.0, hb_bytes - needed)
    is_copy = point.scheme == QUANT and is_sliced
    share = 0.0 if is_copy else min(1.0, room / all_bytes)

    def phase(experts: float, hits: float, size: float, base_s: float) -> float:
        moved = experts * size * n_layers
        return base_s + max((1.0 - hits) * moved / ext, hits * moved / hb)

    ar_bytes = unique(batch) * expert_bytes * n_layers
    xpu_s = (static + ar_bytes) / ext
    ar_s = phase(unique(batch), hit(share, law.beta, batch), expert_bytes, static / hb)
    n_verified, faded = spec.verify_tokens * batch**spec.growth, 1.0 - (1.0 - law.beta) * batch**-spec.fade
    slices = min(1.0, 2.0 * share) if point.scheme == ELASTIC and is_sliced else 0.0
    hits = 0.5 * hit(slices, faded, n_verified) if slices else hit(share, faded, n_verified)
    verify_s = phase(unique(n_verified), hits, expert_bytes, static / hb)
    n_drafted = spec.draft_tokens * batch**spec.growth
    draft_static = static_bytes * Q4 / Q8 + kv
    if point.scheme in (EAGLE, SLM):
        read = 2 * eagle_params(g) if point.scheme == EAGLE else (Q8 * small.non_expert_params + slm_kv if small else 0.0)
        spill = min(read, max(0.0, needed - (table if point.scheme == EAGLE else 0.0) - hb_bytes))
        draft_s = (read - spill) / hb + spill / ext
    elif point.scheme == ELASTIC:
        pool = (slices if is_sliced else share) * g.n_experts
        size = expert_bytes * (0.5 if is_sliced else 1.0)
        draft_s = draft_static / hb + min(unique(n_drafted), pool) * size * n_layers / hb
    elif is_copy:
        copied = min(1.0, max(0.0, (room - static_bytes * Q4 / Q8) / (all_bytes * Q4 / Q8)))
        hits = hit(copied, faded, n_drafted)
        draft_s = phase(unique(n_drafted), hits, expert_bytes * Q4 / Q8, draft_static / hb)
    else:
        draft_s = phase(unique(n_drafted), hit(share, faded, n_drafted), expert_bytes, draft_static / hb)
    return xpu_s / ar_s, (1.0 + point.alpha * spec.n_draft_steps) * xpu_s / (spec.n_draft_steps * draft_s + verify_s)


def swept(n_points: int) -> tuple[pl.DataFrame, Setup]:
    """So many different points: Table 3's under two hit laws and ever other contexts."""
    study = Settings.shipped()
    setup, table, fit = setup_of(study), cells(claims().to_pylist()), study.load_fits()[study.headline]
    contexts = range(512, 512 + 8 * -(-n_points // (2 * table.height)), 8)
    settings = pl.DataFrame(product(contexts, ("paper_law", "physical")), schema=["context_tokens", "hit_model"], orient="row")
    return points_of(settings.join(table, how="cross", maintain_order="left_right").head(n_points), fit), setup


def bench() -> dict[str, float]:
    """CPU seconds of the study without its tapes, and of a sweep; points per second and their ratio to the peer."""
    study = Settings.shipped()
    setup, table, fits = setup_of(study), cells(claims().to_pylist()), list(study.load_fits().values())
    started = time.process_time()
    closed_forms(study, setup, table, fits)
    study_s = time.process_time() - started
    started = time.process_time()
    points, setup = swept(N_POINTS)
    found = evaluate(as_points(points, setup))
    sweep_s = time.process_time() - started
    started = time.process_time()
    alone = [one_by_one(point, setup) for point in points.head(N_ALONE).iter_rows(named=True)]
    ratio = (time.process_time() - started) / N_ALONE * N_POINTS / sweep_s
    assert np.allclose(alone, np.stack((found.phi_ar, found.phi_sd), axis=1)[:N_ALONE]), "the peer computes something else"
    print(f"ELMoE-3D: study {study_s:.2f} s, {N_POINTS:,} points {sweep_s:.2f} s, one by one {ratio:.0f} times as long")
    return {
        "elmoe3d_study_cpu_s": round(study_s, 2),
        "elmoe3d_points_per_cpu_s": round(N_POINTS / sweep_s),
        "elmoe3d_points_ratio_vs_one_by_one": round(ratio, 1),
    }

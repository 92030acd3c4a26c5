"""Baselines and energy of ELMoE-3D: the sensitivities that a reference implementation reached, and what must hold of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from elmoe3d_paper import GPT, PRINTED, QWEN, SETUP, TABLE, point

from tokentape.hw.sourced import exact
from tokentape.hw.spec import load
from tokentape.replay.elmoe3d.energy import ENDS, PARTS, Prices, joules_per_token, prices_of
from tokentape.replay.elmoe3d.platforms import baseline, platform_of
from tokentape.replay.elmoe3d.points import Compute, as_points
from tokentape.replay.elmoe3d.runs import ours
from tokentape.replay.elmoe3d.timing import evaluate

NODES = Compute(verify_nodes=16.0, draft_nodes=3.0)
PIM, LOGIC, NMP, XPU = (load(f"elmoe3d-xpu{name}") for name in ("-pim", "-logicpim", "-nmp", ""))


def of_scheme(scheme, compute=NODES, **changed):
    return as_points([SETUP.point(c, PRINTED, compute=compute, **changed) for c in TABLE if (c.hb_gb, c.scheme) == (8, scheme)])


def best(run_ar, run_sd):
    return np.minimum(run_ar.token_s, run_sd.token_s)


def ours_at(scheme, **changed):
    points = of_scheme(scheme, **changed)
    found = evaluate(points)
    return ours(points, found, "ar"), ours(points, found, "sd")


def prior_at(points, ratio, holds="dense"):
    platforms = [platform_of(spec) for spec in (XPU, PIM, LOGIC)] + [platform_of(NMP, ratio, holds)]
    return np.min([best(baseline(points, on, "ar"), baseline(points, on, "sd")) for on in platforms], axis=0)


@pytest.mark.parametrize(("ratio", "mean", "largest"), [(2, 2.5, 7.0), (3, 2.0, 4.7), (4, 1.6, 3.5)])
def test_best_prior_over_ours(ratio, mean, largest):
    """Rounded as printed."""
    over = prior_at(of_scheme("EAGLE3"), ratio) / best(*ours_at("Elastic-SD"))
    assert (over.mean(), over.max()) == (pytest.approx(mean, abs=0.06), pytest.approx(largest, abs=0.06))


def test_hb_with_eagle_over_ours():
    assert (best(*ours_at("EAGLE3")) / best(*ours_at("Elastic-SD"))).mean() == pytest.approx(1.35, abs=0.01)


@pytest.mark.parametrize(
    ("pj_per_mac", "watts", "mean", "largest"),
    [(0.2, 0, 3.8, 6.5), (0.2, 5, 5.2, 9.7), (0.5, 0, 3.2, 6.1), (0.5, 5, 4.6, 9.3), (1.0, 5, 4.0, 8.7), (1.0, 10, 4.7, 10.1)],
)
def test_energy_of_the_xpu_over_ours(pj_per_mac, watts, mean, largest):
    """No links, no pool writes; rounded as printed."""
    none = exact(0.0, "left out")
    prices = Prices(
        pj_per_op=exact(pj_per_mac / 2, "tried"),
        ext_pj_per_bit=XPU.tiers["ext"].read_pj_per_bit,
        hb_pj_per_bit=load("elmoe3d-8gb").tiers["hb"].read_pj_per_bit,
        link_pj_per_bit=none,
        near_pj_per_bit=none,
        static_w=exact(watts, "tried"),
        pool_write_frac=none,
    )
    joules = {}
    ar, sd = ours_at("Elastic-SD")
    for name, run in (("ar", ar), ("sd", sd), ("xpu", baseline(of_scheme("Elastic-SD"), platform_of(XPU), "ar"))):
        joules[name] = sum(joules_per_token(run, prices).values())
    over = joules["xpu"] / np.where(sd.token_s < ar.token_s, joules["sd"], joules["ar"])
    assert (over.mean(), over.max()) == (pytest.approx(mean, abs=0.051), pytest.approx(largest, abs=0.051))


def test_no_baseline_is_slower_than_the_xpu_alone():
    points = of_scheme("EAGLE3")
    for mode in ("ar", "sd"):
        alone = baseline(points, platform_of(XPU), mode).seconds
        for on in (platform_of(PIM), platform_of(LOGIC), *(platform_of(NMP, r, h) for r in (1, 4) for h in ("dense", "experts"))):
            assert np.all(baseline(points, on, mode).seconds <= alone * (1 + 1e-12))


def test_bytes_are_those_of_the_model_wherever_they_come_from():
    points = of_scheme("EAGLE3")
    whole = baseline(points, platform_of(XPU), "sd").ext_bytes
    for on in (platform_of(PIM), platform_of(NMP, 3.0), platform_of(NMP, 3.0, "experts")):
        run = baseline(points, on, "sd")
        assert run.ext_bytes + run.near_bytes == pytest.approx(whole)
        assert np.all(run.near_bytes >= 0.0)


def test_the_xpu_is_the_reference():
    points = of_scheme("Elastic-SD", Compute(verify_nodes=1.0, draft_nodes=1.0))
    assert baseline(points, platform_of(XPU), "ar").seconds == pytest.approx(evaluate(points).xpu_s)


def test_more_bandwidth_near_memory_never_hurts():
    points = of_scheme("EAGLE3")
    times = [baseline(points, platform_of(NMP, ratio), "ar").seconds for ratio in (1, 2, 3, 4, 8)]
    assert np.all(np.diff(times, axis=0) <= 1e-15)


def test_pim_is_bound_by_its_operations_when_many_nodes_are_verified():
    """Analog compute: with enough nodes, bringing experts to the xPU is faster, and both platforms are as fast."""
    points = of_scheme("EAGLE3", Compute(verify_nodes=500.0, draft_nodes=3.0))
    assert baseline(points, platform_of(PIM), "sd").seconds == pytest.approx(baseline(points, platform_of(XPU), "sd").seconds)


def test_energy_by_part():
    prices = prices_of(load("elmoe3d-8gb"), exact(3.88, "as EXT"), exact(0.0, "none"))
    points = as_points([point(QWEN, batch=4, compute=NODES)])
    found = evaluate(points)
    run = ours(points, found, "sd")
    parts = joules_per_token(run, prices)
    assert tuple(parts) == PARTS
    tokens = 4 * (1 + found.accepted_len[0])
    ext = 8 * found.draft.ext_bytes[0] + found.verify.ext_bytes[0]
    hb = 8 * found.draft.hb_bytes[0] + found.verify.hb_bytes[0]
    assert parts["ext"][0] == pytest.approx(8e-12 * 3.88 * ext / tokens)
    assert parts["hb"][0] == pytest.approx(8e-12 * 0.43 * hb / tokens)
    assert parts["static"][0] == pytest.approx(5.0 * found.round_s[0] / tokens)
    shape = SETUP.shapes[QWEN]
    macs = 4 * (16 + 8 * 3) * (shape.static_params + 48 * 8 * shape.expert_params)
    assert parts["compute"][0] == pytest.approx(0.25e-12 * 2 * macs / tokens)
    low, high = (joules_per_token(run, prices, end) for end in ENDS[1:])
    assert all(low[part][0] <= parts[part][0] <= high[part][0] for part in PARTS)


def test_pool_writes_cost_as_reads_do():
    points = as_points([point(QWEN, batch=4, compute=NODES), point(GPT, batch=1, compute=NODES)])
    run = ours(points, evaluate(points), "sd")
    none, all_ = (prices_of(load("elmoe3d-8gb"), exact(3.88, "x"), exact(share, "x")) for share in (0.0, 1.0))
    added = joules_per_token(run, all_)["hb"] - joules_per_token(run, none)["hb"]
    assert added == pytest.approx(8e-12 * 0.43 * run.written_bytes / run.tokens)
    assert run.written_bytes[0] > 0.0
    assert run.written_bytes[1] == 0.0  # whole MXFP4 experts have no slice


def test_nodes_are_never_assumed():
    points = of_scheme("EAGLE3", None)
    for refused in (lambda: ours(points, evaluate(points), "ar"), lambda: baseline(points, platform_of(XPU), "ar")):
        with pytest.raises(ValueError, match="the paper gives no number of verified nodes"):
            refused()


def test_other_machines_are_refused():
    with pytest.raises(ValueError, match="h100: needs a tier ext and an engine xpu"):
        platform_of(load("h100"))
    without = replace(PIM, engines={**PIM.engines, "pim": replace(PIM.engines["pim"], memory_bytes_per_s=None)})
    with pytest.raises(ValueError, match=r"engines\.pim needs a memory"):
        platform_of(without)

"""Baselines and energy of ELMoE-3D: the sensitivities that a reference implementation reached, and what must hold of them."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from elmoe3d_paper import PRINTED, QWEN, SETUP, STUDY, TABLE, arrays, point

from tokentape.hw import profile as profiles
from tokentape.hw.sourced import exact
from tokentape.hw.spec import load, shipped, with_values
from tokentape.replay.elmoe3d.baselines import near_at
from tokentape.replay.elmoe3d.platforms import baseline
from tokentape.replay.elmoe3d.points import points_of
from tokentape.replay.elmoe3d.runs import ours
from tokentape.replay.elmoe3d.timing import evaluate

PROFILE = profiles.load("elmoe3d")
NODES = {"verify_nodes": 16.0, "draft_nodes": 3.0}
PIM, LOGIC, NMP, XPU = (load(f"elmoe3d-xpu{name}") for name in ("-pim", "-logicpim", "-nmp", ""))
NONE = exact(0.0, "left out")


def of_scheme(scheme, nodes=NODES, machine=None):
    table = TABLE.filter(pl.col("hb_gb") == 8, pl.col("scheme") == scheme)
    return arrays(points_of(table, PRINTED, **nodes), machine=machine)


def best(runs):
    return np.minimum(runs["ar"].token_s, runs["sd"].token_s)


def ours_at(scheme, written=NONE, **changed):
    points = of_scheme(scheme, **changed)
    found = evaluate(points, PROFILE, with_joules=True)
    return {mode: ours(points, found, mode, PROFILE, written) for mode in ("ar", "sd")}


def on(machine, scheme="EAGLE3", holds="dense", **changed):
    return baseline(of_scheme(scheme, machine=machine, **changed), holds, PROFILE)


def prior_at(ratio, holds="dense"):
    return np.min([best(on(machine, holds=holds)) for machine in (XPU, PIM, LOGIC, near_at(NMP, ratio))], axis=0)


@pytest.mark.parametrize(("ratio", "mean", "largest"), [(2, 2.5, 7.0), (3, 2.0, 4.7), (4, 1.6, 3.5)])
def test_best_prior_over_ours(ratio, mean, largest):
    """Rounded as printed."""
    over = prior_at(ratio) / best(ours_at("Elastic-SD"))
    assert (over.mean(), over.max()) == (pytest.approx(mean, abs=0.06), pytest.approx(largest, abs=0.06))


def test_hb_with_eagle_over_ours():
    assert (best(ours_at("EAGLE3")) / best(ours_at("Elastic-SD"))).mean() == pytest.approx(1.35, abs=0.01)


@pytest.mark.parametrize(
    ("pj_per_mac", "watts", "mean", "largest"),
    [(0.2, 0, 3.8, 6.5), (0.2, 5, 5.2, 9.7), (0.5, 0, 3.2, 6.1), (0.5, 5, 4.6, 9.3), (1.0, 5, 4.0, 8.7), (1.0, 10, 4.7, 10.1)],
)
def test_energy_of_the_xpu_over_ours(pj_per_mac, watts, mean, largest):
    """No links, no pool writes; rounded as printed."""
    own = {"engines.xpu.energy_pj_per_op": pj_per_mac / 2, "static_w": watts}
    mine = ours_at("Elastic-SD", machine=with_values(SETUP.machines["8"], {**own, "links.aggregation.energy_pj_per_bit": 0.0}))
    xpu = on(with_values(XPU, own), "Elastic-SD")["ar"]
    ar, sd, reference = (sum(run.joules_per_token.values())[0] for run in (mine["ar"], mine["sd"], xpu))
    over = reference / np.where(mine["sd"].token_s < mine["ar"].token_s, sd, ar)
    assert (over.mean(), over.max()) == (pytest.approx(mean, abs=0.051), pytest.approx(largest, abs=0.051))


def test_no_baseline_is_slower_than_the_xpu_alone():
    alone = on(XPU)
    near = [on(near_at(NMP, ratio), holds=holds) for ratio in (1, 4) for holds in ("dense", "experts")]
    for mode in ("ar", "sd"):
        for runs in (on(PIM), on(LOGIC), *near):
            assert np.all(runs[mode].seconds <= alone[mode].seconds * (1 + 1e-12))


def test_more_bandwidth_near_memory_never_hurts():
    times = [on(near_at(NMP, ratio))["ar"].seconds for ratio in (1, 2, 3, 4, 8)]
    assert np.all(np.diff(times, axis=0) <= 1e-15)


def test_nodes_are_never_assumed():
    points = of_scheme("EAGLE3", {})
    found = evaluate(points, PROFILE, with_joules=True)
    for refused in (lambda: ours(points, found, "ar", PROFILE, NONE), lambda: baseline(points, "dense", PROFILE)):
        with pytest.raises(ValueError, match="the paper gives no number of verified nodes"):
            refused()


@pytest.mark.parametrize("profile", ["elmoe3d", "physical"])
@pytest.mark.parametrize("name", shipped())
def test_every_machine_is_a_baseline_and_runs_the_design(name, profile):
    """Finite on all machines: what one lacks changes what is read where."""
    machine, costs = load(name), profiles.load(profile)
    points = arrays(*(point(QWEN, scheme, batch=4, **NODES) for scheme in ("EAGLE3", "Elastic-SD")), machine=machine)
    found = evaluate(points, costs, with_joules=True)
    runs = [
        *baseline(points, "dense", costs).values(),
        *(ours(points, found, mode, costs, STUDY.platforms.pool_write_frac) for mode in ("ar", "sd")),
    ]
    for run in runs:
        total = sum(run.joules.values())
        assert np.all(np.isfinite(run.seconds) & (run.seconds > 0.0))
        assert np.all((total[1] <= total[0] * (1 + 1e-12)) & (total[0] <= total[2] * (1 + 1e-12)))
    roles = machine.roles
    home, static = (machine.tiers[tier].peak_bytes_per_s.value for tier in (roles.expert_home, roles.weights_home))
    assert np.all(found.phi_ar >= 1.0 - 1e-12) or static < home  # elmoe3d-xpu-nmp: static weights in two of eight channels
    if machine.roles.expert_home == machine.roles.weights_home and not machine.roles.kv_cache:
        assert found.phi_ar == pytest.approx(1.0)  # all of it lies there already

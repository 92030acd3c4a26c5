"""ELMoE-3D's printed numbers: geometry, mapping, golden cells, the paper's table within its bars, the published orderings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from elmoe3d_paper import GLM, GPT, PRINTED, PRINTED_L1, QWEN, SETUP, STUDY, TABLE, point

from tokentape.hw import profile as profiles
from tokentape.hw.elmoe3d_constants import load
from tokentape.replay.elmoe3d.checks import HONESTY, checks, held_out
from tokentape.replay.elmoe3d.fit import calibrate
from tokentape.replay.elmoe3d.points import as_points
from tokentape.replay.elmoe3d.runs import tokens_until_link_binds
from tokentape.replay.elmoe3d.timing import evaluate, policy_phi

PROFILE = profiles.load("elmoe3d")
# R GB, x, X GB, h, T_AR ms, t ms, Phi_AR, X_v GB, h_v, t_v ms, t_d ms, L, Phi_SD


def test_partial_sums_cross_a_link_while_slices_stream_in():
    assert tokens_until_link_binds(point(QWEN), PROFILE) == 51


def outcome(fit, **changed):
    return evaluate(as_points([SETUP.point(c, fit, **changed) for c in TABLE]))


@pytest.mark.parametrize(("level", "rows"), [("L0", "calibrate"), ("L1", "calibrate"), ("L0", "all-open"), ("L1", "all-open")])
def test_calibration_finds_the_shipped_constants(level, rows):
    shipped = load(f"elmoe3d-{level.lower()}" + ("" if rows == "calibrate" else "-all-open"))
    fit = calibrate(TABLE, SETUP, level, rows)
    assert fit.fitted_on == shipped.fitted_on
    found, shipped = fit.constants, shipped.constants
    for model, law in found.laws.items():
        assert (law.beta, law.head_bytes) == pytest.approx((PRINTED.laws[model].beta, PRINTED.laws[model].head_bytes), rel=1e-3)
        assert (law.beta, law.exponent) == pytest.approx((shipped.laws[model].beta, shipped.laws[model].exponent), rel=1e-5)
    if level == "L1":
        assert [law.exponent for law in found.laws.values()] == pytest.approx(PRINTED_L1, abs=1e-3)
    names = ("verify_tokens", "draft_tokens", "growth", "fade")
    ours, theirs = ([getattr(of.speculation, name) for name in names] for of in (found, shipped))
    assert ours == pytest.approx(theirs, rel=1e-3)


def test_only_rows_of_role_calibrate_are_fitted_on():
    roles = {c.ar_claim: c.role_ar for c in TABLE} | {c.sd_claim: c.role_sd for c in TABLE}
    for name in ("elmoe3d-l0", "elmoe3d-l1"):
        assert {roles[claim] for claim in load(name).fitted_on} == {"calibrate"}
    assert "predict" in {roles[claim] for claim in load("elmoe3d-l1-all-open").fitted_on}


def test_the_headline_holds_every_bar():
    made = {check.block: check for check in checks(TABLE, outcome(load(STUDY.headline).constants))}
    for block, (low, high) in STUDY.bars.items():
        if not block.endswith("over published"):
            assert low <= made[block].value <= high, block
    assert made["Phi_AR error, open rows, mean"].n == 104
    assert made["Phi_AR best scheme right, ties count"].n == 26
    assert "forms are not" in HONESTY


def test_refits_without_some_rows_predict_those():
    made = {check.block: check.value for check in held_out(TABLE, SETUP, load("elmoe3d-l1").constants)}
    bars = {"fitted on 8 GB, of 4 GB": 0.10, "fitted on 4 GB, of 8 GB": 0.10, "fitted without gpt-oss-20b, of it": 0.15}
    for words, bar in bars.items():
        assert made[f"Phi_SD error, {words}, mean"] <= bar


@pytest.mark.parametrize(
    ("law", "level", "mean"), [("physical", "l0", 0.124), ("physical", "l1", 0.098), ("che", "l0", 0.26), ("che", "l1", 0.19)]
)
def test_what_is_resident_bounds_the_table(law, level, mean):
    """The untuned laws miss the table by as much as a reference implementation of them did."""
    made = {check.block: check.value for check in checks(TABLE, outcome(load(f"elmoe3d-{level}").constants, hit_model=law))}
    assert made["Phi_AR error, open rows, mean"] == pytest.approx(mean, abs=0.005)


def test_the_table_itself():
    assert (len(TABLE), sum(c.is_open for c in TABLE)) == (128, 104)
    withheld = [c for c in TABLE if not c.is_open]
    assert {(c.hb_gb, c.model) for c in withheld} == {(8, GLM), (8, GPT)}
    assert all(c.phi_ar is None and c.phi_sd is None and c.alpha > 0 for c in withheld)
    assert sum(c.role_ar == "calibrate" for c in TABLE) == 12
    predicted = outcome(load("elmoe3d-l1").constants)
    rows = np.array([not c.is_open for c in TABLE])
    assert np.all(predicted.phi_ar[rows] > 1.0)
    assert np.all(predicted.phi_sd[rows] > 0.0)


def test_where_the_method_must_lose():
    """GPT-OSS, whose experts are never sliced: no open row gains from speculation; a copy of INT8 experts leaves no cache."""
    found = outcome(load("elmoe3d-l1").constants)
    lost = [i for i, c in enumerate(TABLE) if (c.model, c.scheme) == (GPT, "Elastic-SD") and c.is_open]
    assert len(lost) == 5
    assert not found.is_sd_better[lost].any()
    copied = [i for i, c in enumerate(TABLE) if c.scheme == "Quant-SD" and c.model != GPT]
    assert not found.mapping.share[copied].any()
    assert not found.ar.hit_frac[copied].any()


def test_slices_win_where_hb_is_small_and_meet_at_large_batch():
    """Figure 13, verification of Qwen in ms at L0."""
    wanted = {(8, 1): (26.9, 46.4), (8, 16): (211.4, 211.8), (4, 16): (265.4, 254.7)}
    for (gb, batch), times in wanted.items():
        found = evaluate(as_points([point(QWEN, scheme, gb, batch) for scheme in ("EAGLE3", "Elastic-SD")]))
        assert 1e3 * found.verify.seconds == pytest.approx(times, rel=2e-3)


def test_the_policy_speculates_from_tau():
    batches = (1, 4, 8, 16)
    found = evaluate(as_points([point(QWEN, batch=batch) for batch in batches]))
    at = np.array(batches, float)
    assert np.array_equal(policy_phi(found, at, 4), np.where(at >= 4, found.phi_sd, found.phi_ar))
    assert np.array_equal(policy_phi(found, at, 1000), found.phi_ar)
    assert np.array_equal(policy_phi(found, at, 0), found.phi_sd)


def test_a_missing_row_of_the_table_is_named():
    few = [c for c in TABLE if not (c.model == QWEN and c.role_ar == "calibrate" and c.scheme == "EAGLE3")]
    with pytest.raises(ValueError, match="qwen3-30b-a3b: needs open cells to calibrate on"):
        calibrate(few, SETUP)
    with pytest.raises(ValueError, match="level 'L2'"):
        calibrate(TABLE, SETUP, "L2")
    with pytest.raises(ValueError, match="reproduces"):
        calibrate([replace(c, phi_ar=40.0) if c.role_ar == "calibrate" else c for c in TABLE], SETUP)

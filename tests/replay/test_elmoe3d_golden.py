"""ELMoE-3D's printed numbers: geometry, mapping, golden cells, the paper's table within its bars, the published orderings."""

from __future__ import annotations

import polars as pl
import pytest
from elmoe3d_paper import GLM, GPT, PRINTED, PRINTED_L1, QWEN, SETUP, STUDY, TABLE, arrays, point

from tokentape.hw import profile as profiles
from tokentape.hw.elmoe3d_constants import load
from tokentape.replay.elmoe3d.cells import IS_OPEN
from tokentape.replay.elmoe3d.checks import HONESTY, checks, held_out
from tokentape.replay.elmoe3d.fit import calibrate
from tokentape.replay.elmoe3d.points import points_of
from tokentape.replay.elmoe3d.rows import evaluated
from tokentape.replay.elmoe3d.runs import tokens_until_link_binds
from tokentape.replay.elmoe3d.timing import evaluate

PROFILE = profiles.load("elmoe3d")
# R GB, x, X GB, h, T_AR ms, t ms, Phi_AR, X_v GB, h_v, t_v ms, t_d ms, L, Phi_SD


def test_partial_sums_cross_a_link_while_slices_stream_in():
    assert tokens_until_link_binds(SETUP.models[QWEN][0], SETUP.machines["8"], PROFILE) == 51


def outcome(fit, **changed):
    return evaluated(points_of(TABLE, fit, **changed), SETUP)


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
    roles = dict(TABLE.select("ar_claim", "role_ar").rows()) | dict(TABLE.select("sd_claim", "role_sd").rows())
    for name in ("elmoe3d-l0", "elmoe3d-l1"):
        assert {roles[claim] for claim in load(name).fitted_on} == {"calibrate"}
    assert "predict" in {roles[claim] for claim in load("elmoe3d-l1-all-open").fitted_on}


def test_the_headline_holds_every_bar():
    made = {check["block"]: check for check in checks(outcome(load(STUDY.headline).constants))}
    for block, (low, high) in STUDY.bars.items():
        if not block.endswith("over published"):
            assert low <= made[block]["value"] <= high, block
    assert made["Phi_AR error, open rows, mean"]["n"] == 104
    assert made["Phi_AR best scheme right, ties count"]["n"] == 26
    assert "forms are not" in HONESTY


def test_refits_without_some_rows_predict_those():
    made = {check["block"]: check["value"] for check in held_out(TABLE, SETUP, load("elmoe3d-l1").constants)}
    bars = {"fitted on 8 GB, of 4 GB": 0.10, "fitted on 4 GB, of 8 GB": 0.10, "fitted without gpt-oss-20b, of it": 0.15}
    for words, bar in bars.items():
        assert made[f"Phi_SD error, {words}, mean"] <= bar


@pytest.mark.parametrize(
    ("law", "level", "mean"), [("physical", "l0", 0.124), ("physical", "l1", 0.098), ("che", "l0", 0.26), ("che", "l1", 0.19)]
)
def test_what_is_resident_bounds_the_table(law, level, mean):
    """The untuned laws miss the table by as much as a reference implementation of them did."""
    made = {check["block"]: check["value"] for check in checks(outcome(load(f"elmoe3d-{level}").constants, hit_model=law))}
    assert made["Phi_AR error, open rows, mean"] == pytest.approx(mean, abs=0.005)


def test_the_table_itself():
    assert (TABLE.height, TABLE.filter(IS_OPEN).height) == (128, 104)
    withheld = TABLE.filter(~IS_OPEN)
    assert set(withheld.select("hb_gb", "model").rows()) == {(8, GLM), (8, GPT)}
    assert withheld["published_ar"].null_count() == withheld["published_sd"].null_count() == 24
    assert TABLE["alpha"].min() > 0
    assert TABLE.filter(pl.col("role_ar") == "calibrate").height == 12
    predicted = outcome(load("elmoe3d-l1").constants).filter(~IS_OPEN)
    assert predicted["phi_ar"].min() > 1.0
    assert predicted["phi_sd"].min() > 0.0


def test_where_the_method_must_lose():
    """GPT-OSS, whose experts are never sliced: no open row gains from speculation; a copy of INT8 experts leaves no cache."""
    found = outcome(load("elmoe3d-l1").constants)
    lost = found.filter(IS_OPEN, pl.col("model") == GPT, pl.col("scheme") == "Elastic-SD")
    assert lost["best_mode"].to_list() == ["ar"] * 5
    copied = found.filter(pl.col("scheme") == "Quant-SD", pl.col("model") != GPT)
    assert copied["resident_frac"].max() == copied["ar_hit_frac"].max() == 0.0


def test_slices_win_where_hb_is_small_and_meet_at_large_batch():
    """Figure 13, verification of Qwen in ms at L0."""
    wanted = {(8, 1): (26.9, 46.4), (8, 16): (211.4, 211.8), (4, 16): (265.4, 254.7)}
    for (gb, batch), times in wanted.items():
        found = evaluate(arrays(*(point(QWEN, scheme, gb, batch) for scheme in ("EAGLE3", "Elastic-SD"))))
        assert 1e3 * found.verify.seconds == pytest.approx(times, rel=2e-3)


def test_a_missing_row_of_the_table_is_named():
    of_eagle = (pl.col("model") == QWEN) & (pl.col("role_ar") == "calibrate") & (pl.col("scheme") == "EAGLE3")
    with pytest.raises(ValueError, match="qwen3-30b-a3b: needs open cells to calibrate on"):
        calibrate(TABLE.filter(~of_eagle), SETUP)
    with pytest.raises(ValueError, match="level 'L2'"):
        calibrate(TABLE, SETUP, "L2")
    with pytest.raises(ValueError, match="reproduces"):
        calibrate(TABLE.with_columns(published_ar=pl.lit(40.0)), SETUP)

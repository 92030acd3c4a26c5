"""What must hold of ELMoE-3D's model wherever it is asked: bounds, directions, conservation, edges, bad input."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from elmoe3d_paper import GPT, MODELS, QWEN, SETUP, TABLE, arrays, point
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses

from tokentape.hw.coverage import PowerLaw
from tokentape.hw.elmoe3d_constants import ModelLaw, Speculation
from tokentape.hw.spec import with_values
from tokentape.replay.elmoe3d.fit import IS_OPEN, cells
from tokentape.replay.elmoe3d.laws import FORMS, HIT_LAWS, touched, weights_of
from tokentape.replay.elmoe3d.mapping import map_bytes, placed
from tokentape.replay.elmoe3d.points import SCHEMES
from tokentape.replay.elmoe3d.timing import evaluate
from tokentape.warehouse.load import claims

GIB = 2**30
exponents, shares, betas = st.floats(0.0, 3.0), st.floats(0.0, 1.0), st.floats(0.02, 1.0)
shapes = st.sampled_from([(128, 8), (64, 4), (64, 6), (32, 4), (8, 8), (1, 1)])
tokens = st.floats(1.0, 500.0)
QUICK = settings(max_examples=60, deadline=None)


def run(*points, **of):
    return evaluate(arrays(*points, **of))


def machine(gib=8.0, factor=1.0):
    base = SETUP.machines["8"]
    faster = factor * base.tiers["hb"].peak_bytes_per_s.value
    return with_values(base, {"tiers.hb.capacity_bytes": gib * GIB, "tiers.hb.peak_bytes_per_s": faster})


def rate(of, tier):
    """Reached bytes per second of a tier."""
    return of.tiers[tier].peak_bytes_per_s.value * of.tiers[tier].efficiency_frac.value


@QUICK
@given(shapes, exponents, st.lists(tokens, min_size=1, max_size=8))
def test_unions_are_those_of_the_power_law(shape, exponent, sizes):
    """How they rise, and that they are what draws touch: tests/hw/test_coverage.py."""
    weights = np.repeat(weights_of([(*shape, exponent)]), len(sizes), axis=0)
    assert touched(weights, np.array(sizes)) == pytest.approx(PowerLaw(exponent=exponent).distinct(sizes, *shape))


@QUICK
@given(st.sampled_from(sorted(HIT_LAWS)), shapes, exponents, betas, tokens, shares, shares)
def test_hit_rates_lie_between_0_and_1_and_rise_with_what_is_resident(law, shape, exponent, beta, n_tokens, one, two):
    n, k = shape
    less, more = sorted((one, two))
    weights = np.repeat(weights_of([(n, k, exponent)]), 4, axis=0)
    full = np.full(4, float(n))
    found = HIT_LAWS[law](np.array([0.0, less, more, 1.0]), np.full(4, beta), weights, np.full(4, n_tokens), full)
    assert found[0] == 0.0
    assert found[3] == pytest.approx(1.0)
    assert np.all(np.diff(found) >= -1e-9)
    assert np.all((found >= 0.0) & (found <= 1.0 + 1e-9))
    if law == "physical":
        assert np.all(found <= np.array([0.0, less, more, 1.0]) * n / touched(weights, np.full(4, n_tokens)) + 1e-9)


@QUICK
@given(
    st.sampled_from(MODELS), st.sampled_from(SCHEMES), st.sampled_from(sorted(HIT_LAWS)), st.floats(1.0, 64.0),
    st.floats(0.5, 64.0), st.floats(0.2, 4.0), st.integers(1, 131072), st.floats(0.0, 1.0), st.booleans(),
)  # fmt: skip
def test_every_point_keeps_its_bounds(model, scheme, law, batch, gib, factor, context, alpha, computes):
    """No pass beats a tier, nor does AR gain more than both tiers busy all the time would."""
    nodes = {"verify_nodes": 24.0, "draft_nodes": 3.0} if computes else {}
    point_ = point(model, scheme, hit_model=law, context_tokens=context, alpha=alpha, **nodes).with_columns(batch=pl.lit(batch))
    at = arrays(point_, machine=machine(gib, factor))
    found = evaluate(at)
    slack = 1.0 + 1e-9
    hb, ext = (rate(machine(gib, factor), tier) for tier in ("hb", "ext"))
    assert 0.0 < found.phi_ar[0] <= (1.0 + hb / ext) * slack
    for of in (found.ar, found.verify, found.draft):
        assert of.seconds[0] * slack >= max(of.hb_bytes[0] / hb, of.ext_bytes[0] / ext)
        assert of.hb_bytes[0] + of.ext_bytes[0] == pytest.approx(of.static_bytes[0] + of.expert_bytes[0])
    assert found.phi_sd[0] > 0.0
    assert 0.0 <= found.mapping.share[0] <= 1.0
    in_hb = sum(taken[0] for (tier, _), taken in placed(at, found.mapping).items() if tier == "hb")
    assert in_hb == pytest.approx(gib * GIB)


def test_forms_of_acceptance():
    d = np.full(3, 8.0)
    assert FORMS["linear"](np.array([0.0, 0.5, 1.0]), d) == pytest.approx([0.0, 4.0, 8.0])
    assert FORMS["chain"](np.array([0.0, 0.5, 1.0]), d) == pytest.approx([0.0, 1.0 - 0.5**8, 8.0])
    linear, chain = (run(point(QWEN, accepted_form=form)) for form in ("linear", "chain"))
    assert chain.phi_sd[0] < linear.phi_sd[0]


def test_impossible_constants_are_refused_and_withheld_values_are_none():
    rows = [dict(row) for row in claims().to_pylist()]
    alpha = next(row for row in rows if row["claim_id"] == "elmoe3d/table-3/alpha/glm-4.7-flash/hb-gb-8-scheme-eagle3-batch-4")
    assert TABLE.filter(~IS_OPEN)["published_ar"][0] is None
    alpha["value"] = None
    refuses("alpha is an input and has no value", cells, rows)
    refuses("no claim of alpha", cells, [row for row in rows if row is not alpha])
    refuses("verify_tokens is 0", Speculation, verify_tokens=0.0, draft_tokens=1.0, growth=0.5, fade=0.5)
    for beta in (0.0, 1.5):
        refuses("it must be above 0 and at most 1", ModelLaw, beta=beta, exponent=1.0)
    refuses("exponent must be between 0 and 16", run, point(QWEN, law=ModelLaw(beta=0.5, exponent=40.0)))
    refuses("no points", arrays, point(QWEN).head(0))


def test_nothing_some_or_everything_fits():
    """Nothing is resident: no hits, and no 0 to the power of 0."""
    found = run(*(point(QWEN, hit_model=law, batch=4) for law in HIT_LAWS), machine=machine(1.5))
    assert found.mapping.resident_bytes.tolist() == [0.0] * 3
    assert not found.ar.hit_frac.any()
    assert not found.verify.hit_frac.any()
    assert not found.draft.experts.any()
    # Then AR takes all bytes from HB, at most at the two memories' ratio; slices still leave half to EXT.
    found = run(*(point(GPT, hit_model=law) for law in HIT_LAWS), machine=machine(64.0))
    assert found.mapping.share.tolist() == [1.0] * 3
    assert found.ar.hit_frac == pytest.approx(1.0)
    assert found.phi_ar == pytest.approx(rate(SETUP.machines["8"], "hb") / rate(SETUP.machines["8"], "ext"))
    assert run(point(QWEN), machine=machine(64.0)).verify.hit_frac == pytest.approx(0.5)
    # EAGLE's head leaves GPT-OSS fewer than k experts per layer at 4 GB: the bound binds already at batch 1.
    bound, law = run(*(point(GPT, "EAGLE3", 4, 1, hit_model=law) for law in ("physical", "paper_law"))).ar.hit_frac
    slots = map_bytes(arrays(point(GPT, "EAGLE3", 4, 1))).share[0] * 32
    assert slots < 4
    assert bound == pytest.approx(slots / 4)
    assert bound < law


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch": 0}, "batch is 0; it must be at least 1"),
        ({"context_tokens": 0}, "context_tokens is 0"),
        ({"scheme": "SLM-SD"}, "needs the small model as drafter"),
        ({"alpha": None}, "the acceptance is unknown; give alpha or accepted_len"),  # an error and not 0
        ({"alpha": -0.1}, "alpha is"),
        ({"alpha": float("nan")}, "alpha is"),
        ({"alpha": None, "accepted_len": -1.0}, "accepted_len is"),
    ],
)
def test_impossible_points_are_refused(changed, message):
    setup = replace(SETUP, drafter=None)
    assert arrays(point(QWEN), setup=setup).batch.tolist() == [1.0]
    impossible = point(QWEN).with_columns(pl.lit(value).alias(name) for name, value in changed.items())
    refuses(message, arrays, impossible, setup=setup)

"""ELMoE-3D's model against slow and obvious versions: plain Python, random draws, a list as LRU, a table made by itself."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import polars as pl
import pytest
from elmoe3d_paper import MODELS, PRINTED, SETUP, TABLE, arrays, point
from tapes import GEOMETRY, make_trace

from bench.elmoe3d import one_by_one
from tokentape.hw.elmoe3d_constants import ModelLaw, Speculation, load
from tokentape.replay.coverage import ONE_REQUEST, recorded, recorded_by_layer
from tokentape.replay.elmoe3d.fit import calibrate
from tokentape.replay.elmoe3d.laws import che_hit_frac, touched, weights_of
from tokentape.replay.elmoe3d.points import as_points, points_of
from tokentape.replay.elmoe3d.tape import law_of, lru_miss_fracs, mean_accepted, side_by_side
from tokentape.replay.elmoe3d.timing import evaluate
from tokentape.replay.trace import DECODE


def test_points_against_plain_python():
    points = pl.concat(points_of(TABLE, PRINTED, hit_model=law) for law in ("paper_law", "physical"))
    found, slowly = evaluate(as_points(points, SETUP)), [one_by_one(p, SETUP) for p in points.iter_rows(named=True)]
    assert np.stack((found.phi_ar, found.phi_sd), axis=1) == pytest.approx(np.array(slowly))


def test_unions_against_draws():
    rng = np.random.default_rng(0)
    for n, k, exponent, n_tokens in ((64, 6, 0.42, 16), (32, 4, 0.84, 5), (128, 8, 1.33, 40)):
        weights = weights_of([(n, k, exponent)])
        chosen = rng.random((1500, n_tokens, n)) < -np.expm1(-weights[0])
        mean = chosen.any(axis=1).sum(axis=1).mean()
        assert touched(weights, np.array([float(n_tokens)]))[0] == pytest.approx(mean, rel=0.015)


def list_lru(events, n_slots, n_warm=0):
    """(hits, lookups) of a list; experts of an event hit where they are in it when the event starts."""
    held, hits, lookups = [], 0, 0
    for i, event in enumerate(events):
        unique = list(dict.fromkeys(reversed(event)))[::-1]  # in order of last mention
        if i >= n_warm:
            hits += sum(expert in held for expert in unique)
            lookups += len(unique)
        held = ([e for e in held if e not in unique] + unique)[-n_slots:] if n_slots else []
    return hits, lookups


def test_che_against_a_simulated_lru():
    """Independent references: within 0.04, but where a step touches more experts than fit, which a time of steps hardly tells."""
    rng = np.random.default_rng(1)
    for n, k, exponent in ((64, 6, 0.42), (128, 8, 1.33)):
        weights = weights_of([(n, k, exponent)])
        for batch in (1, 4, 16):
            seen = -np.expm1(-batch * weights[0])
            events = [rng.permutation(np.flatnonzero(rng.random(n) < seen)).tolist() for _ in range(1500)]
            for share in (0.25, 0.5, 0.75):
                hits, lookups = list_lru(events, int(share * n))
                found = che_hit_frac(weights, np.array([float(batch)]), np.array([share * n]))[0]
                fits = int(share * n) >= seen.sum()
                assert found == pytest.approx(hits / lookups, abs=0.04 if fits else 0.06), (n, batch, share)


def events_of(trace, batch):
    """Per layer, the experts of each step in the order looked up, by a slow walk over the requests."""
    rows = {}
    for row in np.flatnonzero(trace.pass_kind[trace.row_pass] == DECODE):
        key = int(trace.row_request[row]), int(trace.row_position[row])
        rows.setdefault(key, {})[int(trace.row_layer[row])] = trace.ids[trace.offsets[row] : trace.offsets[row + 1]].tolist()
    by_request = {}
    for request, position in sorted(rows):
        by_request.setdefault(request, []).append(rows[request, position])
    order = sorted(by_request)
    found = {layer: [] for layer in range(len(trace.geometry.moe_layers))}
    for first in range(0, len(order) // batch * batch, batch):
        members = [by_request[request] for request in order[first : first + batch]]
        for step in range(max(map(len, members))):
            for layer, events in found.items():
                events.append([e for member in members if step < len(member) for e in member[step][layer]])
    return found


def uneven(n_requests=5):
    """Requests of different lengths."""
    trace = make_trace(seed=3, n_requests=n_requests, n_decode=24)
    kept = trace.row_position < 10 + 6 + 4 * trace.row_request
    widths = np.diff(trace.offsets)[kept]
    ids = np.concatenate([trace.ids[trace.offsets[i] : trace.offsets[i + 1]] for i in np.flatnonzero(kept)])
    rows = {name: getattr(trace, name)[kept] for name in ("row_pass", "row_layer", "row_request", "row_position")}
    return replace(trace, **rows, ids=ids, offsets=np.concatenate(([0], np.cumsum(widths))))


@pytest.mark.parametrize(("batch", "n_warm"), [(1, 0), (2, 0), (2, 4), (3, 1), (5, 0)])
def test_lru_over_requests_side_by_side_against_a_list(batch, n_warm):
    trace = uneven()
    by_layer = events_of(trace, batch)
    steps = side_by_side(trace, batch)
    assert steps.event_pass[-1] + 1 == len(by_layer[0])
    expected = []
    for n_slots in range(GEOMETRY.n_experts + 1):
        counts = [list_lru(events, n_slots, n_warm) for events in by_layer.values()]
        expected.append(1.0 - sum(hits for hits, _ in counts) / sum(n for _, n in counts))
    found = lru_miss_fracs(steps, len(by_layer), GEOMETRY.n_experts, n_warm)
    assert found == pytest.approx(expected)
    assert np.all(np.diff(found) <= 0.0)  # more slots never hurt an LRU


def test_a_batch_larger_than_the_tape_and_no_step_to_count_are_refused():
    for batch in (0, 9):
        with pytest.raises(ValueError, match=f"decodes 5 requests; a batch of {batch}"):
            side_by_side(uneven(), batch)
    with pytest.raises(ValueError, match="leave none to count"):
        lru_miss_fracs(side_by_side(uneven(), 2), 3, GEOMETRY.n_experts, 10_000)


def test_tokens_of_one_request_share_experts():
    """Made-up requests share favourites, so there is no more within one than between; the union never exceeds what there is."""
    trace = make_trace(n_requests=6, n_decode=40)
    one, many = recorded(trace, ONE_REQUEST), recorded(trace, "decode")
    assert one.distinct[0] == many.distinct[0] == GEOMETRY.top_k
    assert one.n_tokens[-1] == 32
    assert np.all(one.distinct <= GEOMETRY.n_experts)
    assert len(recorded_by_layer(trace, ONE_REQUEST)) == 3
    with pytest.raises(KeyError):
        recorded(trace, "nothing")


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_calibration_recovers_what_made_the_table(level):
    """Without rounding; every row open."""
    rng = np.random.default_rng(5)
    laws = {}
    for model in MODELS:
        beta = float(rng.uniform(0.25, 0.6))
        exponent = 1.0 - beta if level == "L0" else float(rng.uniform(0.4, 1.2))
        laws[model] = ModelLaw(beta=beta, exponent=exponent, head_bytes=float(rng.uniform(2e8, 1.5e9)))
    truth = replace(PRINTED, laws=laws, speculation=Speculation(verify_tokens=4.2, draft_tokens=3.1, growth=0.83, fade=0.33))
    made = evaluate(as_points(points_of(TABLE, truth), SETUP))
    table = TABLE.with_columns(published_ar=made.phi_ar, published_sd=made.phi_sd)
    fit = calibrate(table, SETUP, level, "calibrate")
    assert fit.residual < 1e-10
    found = fit.constants
    for model in MODELS:
        ours, theirs = (astuple(of[model]) for of in (found.laws, laws))
        assert ours == pytest.approx(theirs, rel=1e-5)
    for name in ("verify_tokens", "draft_tokens", "growth", "fade"):
        assert getattr(found.speculation, name) == pytest.approx(getattr(truth.speculation, name), rel=1e-3)


def test_a_model_without_a_fitted_law_is_named():
    fit = load("elmoe3d-l1")
    with pytest.raises(ValueError, match="no hit law is fitted for mixtral-8x7b"):
        fit.constants.law("mixtral-8x7b")


def test_a_tape_tells_its_law():
    """Hot experts: the share of lookups that go to the hotter half, and an exponent above uniform."""
    trace = make_trace(n_requests=8, n_decode=60)
    law = law_of(trace)
    hottest = []
    for layer in range(3):
        rows = np.flatnonzero(trace.row_layer == layer)
        counts = np.bincount(np.concatenate([trace.ids[trace.offsets[r] : trace.offsets[r + 1]] for r in rows]), minlength=8)
        hottest.append(np.sort(counts)[::-1][:4].sum() / counts.sum())
    assert 0.5**law.beta == pytest.approx(np.mean(hottest))
    assert law.exponent > 0.3


def test_accepted_tokens_are_counted_once_per_round():
    rows = [(0, 0, 1, 3), (0, 0, 2, 3), (0, 1, 1, 1), (0, 1, 2, 1), (1, 0, None, 5)]
    rounds = pl.DataFrame(rows, schema=["request_id", "round", "layer", "n_accepted"], orient="row")
    assert mean_accepted(rounds) == 3.0
    with pytest.raises(ValueError, match="no round"):
        mean_accepted(rounds.head(0))
    assert evaluate(arrays(point(alpha=None, accepted_len=3.0))).accepted_len[0] == 3.0

"""ELMoE-3D against its paper, slow and obvious versions, and the paper's baselines: printed numbers, draws, lists, orderings."""

import re
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from elmoe3d_paper import GLM, GPT, MODELS, PRINTED, QWEN, SETUP, TABLE, arrays, point, with_fitted_heads
from refusing import refuses
from tapes import GEOMETRY, long_prompt, make_trace, peak_of

from bench.elmoe3d import one_by_one
from tokentape.hw import profile as profiles
from tokentape.hw.elmoe3d_constants import ModelLaw, Speculation, load
from tokentape.hw.sourced import exact
from tokentape.hw.spec import load as load_machine
from tokentape.hw.spec import shipped, with_values
from tokentape.replay.coverage import ONE_REQUEST, recorded, recorded_by_layer
from tokentape.replay.elmoe3d.checks import held_out
from tokentape.replay.elmoe3d.fit import IS_OPEN, calibrate
from tokentape.replay.elmoe3d.laws import che_hit_frac, weights_of
from tokentape.replay.elmoe3d.mapping import map_bytes
from tokentape.replay.elmoe3d.points import as_points, points_of
from tokentape.replay.elmoe3d.rows import evaluated, near_at
from tokentape.replay.elmoe3d.runs import ALL_THAT_MAY, baseline, ours, tokens_until_link_binds
from tokentape.replay.elmoe3d.tape import law_of
from tokentape.replay.elmoe3d.timing import evaluate, reads_of
from tokentape.replay.elmoe3d.work import partial_sums, routed_rows

PROFILE = profiles.load("elmoe3d")
NODES = {"verify_nodes": 16.0, "draft_nodes": 3.0}
PIM, LOGIC, NMP, XPU = (load_machine(f"elmoe3d-xpu{name}") for name in ("-pim", "-logicpim", "-nmp", ""))
NONE = exact(0.0, "left out")


def test_partial_sums_cross_a_link_while_slices_stream_in():
    assert tokens_until_link_binds(SETUP.models[QWEN][0], SETUP.machines["8"], PROFILE) == 51


def choices_of(points):
    """Share of a verification's choices that fall on the experts in HB, counted expert by expert, and the tokens' choices."""
    p, mapped = points, map_bytes(points)
    held = float((mapped.slice_share if p.is_sliced[0] else mapped.share)[0] * p.n_experts[0])
    chances = [1.0 - np.exp(-w) for w in p.weights[0]]
    inside = sum(chance * min(1.0, max(0.0, held - i)) for i, chance in enumerate(chances))
    return inside / sum(chances), float(p.batch[0] * p.verify_nodes[0] * round(sum(chances)))


def test_verification_shares_what_hb_holds_and_splits_what_ext_brings():
    p = arrays(point(QWEN, batch=16, **NODES))
    reads = reads_of(p, map_bytes(p))["verify"]
    rows = {row.name.partition(", ")[2]: row for row in routed_rows(p.groups[0], p, [reads])}
    n_bytes = {how: float(row.bytes.item() * p.n_layers[0]) for how, row in rows.items()}
    msb, lsb, missed = (n_bytes[how] for how in ("tensor parallel", "LSB slices, data parallel", "data parallel"))
    assert msb == lsb == pytest.approx(reads.hit_frac[0] * reads.expert_bytes[0])
    assert msb + lsb + missed == pytest.approx(reads.expert_bytes[0])
    assert [row.tier for row in rows.values()] == ["expert_cache", "expert_home", "expert_home"]
    (sums,) = partial_sums(p.groups[0], p, [reads])
    share, choices = choices_of(p)
    assert 0.5 < share < 1.0  # few experts, and most of what is chosen
    assert sums.bytes.item() == pytest.approx(choices * share * 4 * (2 * 768 + 2048))


@pytest.fixture
def with_links(tmp_path) -> str:
    """The profile of docs/elmoe3d.md: physical, and partial sums that cross the link beside the reads of HB."""
    (lane,) = re.findall(
        r"```toml\n(\[lane\.partial_sums\].*?)```", (Path(__file__).parents[2] / "docs" / "elmoe3d.md").read_text(), re.S
    )
    physical = (profiles.PROFILES / "physical.toml").read_text().replace('name = "physical"', 'name = "with_links"')
    step = physical.replace("fetch + hot |", "fetch + (hot | partial_sums) |").replace("hot + cold", "hot + partial_sums + cold")
    path = tmp_path / "with_links.toml"
    path.write_text(f"{step.replace('fetch | hot |', 'fetch | hot | partial_sums |')}\n{lane}")
    return str(path)


@pytest.mark.parametrize("model", MODELS)
def test_a_slow_link_holds_verification_up_where_it_is_counted(model, with_links):
    """As long as the partial sums of all that HB holds; the paper's numbers do not know of it, nor does the physical profile."""
    p = arrays(point(model, batch=16, verify_nodes=60.0, draft_nodes=3.0))
    key = "links.aggregation.peak_bytes_per_s"

    def seconds(profile, gb_per_s, **changed):
        machine = with_values(SETUP.machines["8"], {key: 1e9 * gb_per_s})
        found = evaluate(arrays(point(model, batch=16, verify_nodes=60.0, draft_nodes=3.0, **changed), machine=machine), profile)
        return found.verify.seconds[0], found.ar.seconds[0], found.phi_sd[0]

    share, choices = choices_of(p)
    g = SETUP.models[model][0]
    crossing = float(p.n_layers[0]) * choices * share * 4 * (2 * g.expert_intermediate + g.hidden) / 0.9
    (slow, *_), (slower, *_) = (seconds(with_links, of) for of in (4.0, 2.0))
    assert slower - slow == pytest.approx(crossing / 2e9 - crossing / 4e9)
    free, real, slowest = (seconds(with_links, of) for of in (1e6, 32.0, 4.0))
    assert free[0] <= real[0] <= slowest[0]
    assert free[2] > real[2] > slowest[2]  # drafts wait too
    for deaf in ("elmoe3d", "physical"):
        assert seconds(deaf, 1e6) == seconds(deaf, 4.0)


def outcome(fit, **changed):
    return evaluated(points_of(TABLE, fit, **changed), SETUP)


def test_only_rows_of_role_calibrate_are_fitted_on_and_refits_predict_the_others():
    roles = dict(TABLE.select("ar_claim", "role_ar").rows()) | dict(TABLE.select("sd_claim", "role_sd").rows())
    for name in ("elmoe3d-l0", "elmoe3d-l1"):
        assert {roles[claim] for claim in load(name).fitted_on} == {"calibrate"}
    assert "predict" in {roles[claim] for claim in load("elmoe3d-l1-all-open").fitted_on}
    made = {check["block"]: check["value"] for check in held_out(TABLE, SETUP, load("elmoe3d-l1").constants)}
    bars = {"fitted on 8 GB, of 4 GB": 0.10, "fitted on 4 GB, of 8 GB": 0.10, "fitted without gpt-oss-20b, of it": 0.15}
    for words, bar in bars.items():
        assert made[f"Phi_SD error, {words}, mean"] <= bar


def test_the_table_itself():
    assert set(TABLE.filter(~IS_OPEN).select("hb_gb", "model").rows()) == {(8, GLM), (8, GPT)}
    assert TABLE["alpha"].min() > 0
    assert TABLE.filter(pl.col("role_ar") == "calibrate").height == 12
    assert outcome(load("elmoe3d-l1").constants).filter(~IS_OPEN)["phi_ar"].min() > 1.0


def test_slices_win_where_hb_is_small_and_lose_where_experts_are_never_sliced():
    """GPT-OSS, whose experts are never sliced: no open row gains from speculation; a copy of INT8 experts leaves no cache."""
    found = outcome(load("elmoe3d-l1").constants)
    lost = found.filter(IS_OPEN, pl.col("model") == GPT, pl.col("scheme") == "Elastic-SD")
    assert lost["best_mode"].to_list() == ["ar"] * 5
    copied = found.filter(pl.col("scheme") == "Quant-SD", pl.col("model") != GPT)
    assert copied["resident_frac"].max() == copied["ar_hit_frac"].max() == 0.0
    # Figure 13, verification of Qwen in ms at L0.
    wanted = {(8, 1): (26.9, 46.4), (8, 16): (211.4, 211.8), (4, 16): (265.4, 254.7)}
    for (gb, batch), times in wanted.items():
        points = arrays(*(point(QWEN, scheme, gb, batch) for scheme in ("EAGLE3", "Elastic-SD")))
        found = evaluate(with_fitted_heads(points, (QWEN, QWEN)))
        assert 1e3 * found.verify.seconds == pytest.approx(times, rel=2e-3)


def test_a_missing_row_and_a_model_without_a_fitted_law_are_named():
    of_eagle = (pl.col("model") == QWEN) & (pl.col("role_ar") == "calibrate") & (pl.col("scheme") == "EAGLE3")
    refuses("qwen3-30b-a3b: needs open cells to calibrate on", calibrate, TABLE.filter(~of_eagle), SETUP)
    refuses("reproduces", calibrate, TABLE.with_columns(published_ar=pl.lit(40.0)), SETUP)
    unknown = TABLE.with_columns(model=pl.lit("mixtral-8x7b"))
    refuses("no hit law is fitted for mixtral-8x7b", points_of, unknown, PRINTED)


def test_points_against_plain_python():
    points = pl.concat(points_of(TABLE, PRINTED, hit_model=law) for law in ("paper_law", "physical"))
    found, slowly = evaluate(as_points(points, SETUP)), [one_by_one(p, SETUP) for p in points.iter_rows(named=True)]
    assert np.stack((found.phi_ar, found.phi_sd), axis=1) == pytest.approx(np.array(slowly))


def list_lru(events, n_slots):
    """(hits, lookups) of a list; experts of an event hit where they are in it when the event starts."""
    held, hits = [], 0
    for event in events:
        hits += sum(expert in held for expert in event)
        held = ([e for e in held if e not in event] + event)[-n_slots:] if n_slots else []
    return hits, sum(map(len, events))


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
    almost_none = che_hit_frac(weights_of([(128, 8, 0.0)]), np.array([16.0]), np.array([1e-9]))
    assert almost_none[0] == pytest.approx(1e-9 / 128, rel=1e-6)


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


def test_draws_of_a_long_tape_are_held_a_few_at_a_time():
    trace, ids = long_prompt(60_000)
    recorded(make_trace(), "prefill")  # compiles
    curve, peak = peak_of(lambda: recorded(trace, "prefill"))
    assert curve.n_tokens[-1] == 16_384
    assert (curve.distinct == ids.shape[1]).all()
    assert peak < 16 * ids.size


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_calibration_recovers_what_made_the_table(level):
    """Without rounding; every row open."""
    rng = np.random.default_rng(5)
    laws = {}
    for model in MODELS:
        beta = float(rng.uniform(0.25, 0.6))
        exponent = 1.0 - beta if level == "L0" else float(rng.uniform(0.4, 1.2))
        laws[model] = ModelLaw(beta=beta, exponent=exponent, own_table=bool(rng.integers(2)))
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


def of_scheme(scheme, nodes=NODES, machine=None):
    table = TABLE.filter(pl.col("hb_gb") == 8, pl.col("scheme") == scheme)
    return arrays(points_of(table, PRINTED, **nodes), machine=machine)


def best(runs):
    return np.minimum(runs["ar"].token_s, runs["sd"].token_s)


def ours_at(scheme, written=NONE, **changed):
    points = of_scheme(scheme, **changed)
    return ours(points, evaluate(points, PROFILE, with_joules=True), PROFILE, written)


def on(machine, scheme="EAGLE3", holds="dense", **changed):
    return baseline(of_scheme(scheme, machine=machine, **changed), holds, PROFILE)


def prior_at(ratio, holds="dense"):
    return np.min([best(on(machine, holds=holds)) for machine in (XPU, PIM, LOGIC, near_at(NMP, ratio))], axis=0)


@pytest.mark.parametrize(("ratio", "mean", "largest"), [(2, 2.5, 7.0), (3, 2.0, 4.7), (4, 1.6, 3.5)])
def test_best_prior_over_ours(ratio, mean, largest):
    """Rounded as printed."""
    over = prior_at(ratio) / best(ours_at("Elastic-SD"))
    assert (over.mean(), over.max()) == (pytest.approx(mean, abs=0.06), pytest.approx(largest, abs=0.06))


def test_hb_with_eagle_over_ours_needs_nodes_that_are_never_assumed():
    assert (best(ours_at("EAGLE3")) / best(ours_at("Elastic-SD"))).mean() == pytest.approx(1.35, abs=0.01)
    points = of_scheme("EAGLE3", {})
    found = evaluate(points, PROFILE, with_joules=True)
    for refused in (lambda: ours(points, found, PROFILE, NONE), lambda: baseline(points, "dense", PROFILE)):
        refuses("the paper gives no number of verified nodes", refused)


@pytest.mark.parametrize(
    ("pj_per_mac", "watts", "mean", "largest"),
    [(0.2, 0, 3.8, 6.5), (0.2, 5, 5.2, 9.7), (0.5, 0, 3.2, 6.1), (0.5, 5, 4.6, 9.3), (1.0, 5, 4.0, 8.7), (1.0, 10, 4.7, 10.1)],
)
def test_energy_of_the_xpu_over_ours(pj_per_mac, watts, mean, largest):
    """No links, no pool writes; rounded as printed."""
    own = {"engines.xpu.energy_pj_per_op": pj_per_mac / 2, "static_w": watts}
    mine = ours_at("Elastic-SD", machine=with_values(SETUP.machines["8"], {**own, "links.aggregation.energy_pj_per_bit": 0.0}))
    xpu = on(with_values(XPU, own), "Elastic-SD")["ar"]
    ar, sd, reference = (run.joules_per_token.sum(axis=0)[0] for run in (mine["ar"], mine["sd"], xpu))
    over = reference / np.where(mine["sd"].token_s < mine["ar"].token_s, sd, ar)
    assert (over.mean(), over.max()) == (pytest.approx(mean, abs=0.051), pytest.approx(largest, abs=0.051))


def test_no_baseline_is_slower_than_the_xpu_and_bandwidth_never_hurts():
    alone = on(XPU)
    near = [on(near_at(NMP, ratio), holds=holds) for ratio in (1, 4) for holds in ("dense", "experts")]
    for mode in ("ar", "sd"):
        for runs in (on(PIM), on(LOGIC), *near):
            assert np.all(runs[mode].seconds <= alone[mode].seconds * (1 + 1e-12))
    times = [on(near_at(NMP, ratio))["ar"].seconds for ratio in (1, 2, 3, 4, 8)]
    assert np.all(np.diff(times, axis=0) <= 1e-15)


@pytest.mark.parametrize("profile", ["elmoe3d", "physical"])
@pytest.mark.parametrize("name", shipped())
def test_every_machine_is_a_baseline_and_runs_the_design(name, profile):
    """Finite on all machines: what one lacks changes what is read where."""
    machine, costs = load_machine(name), profiles.load(profile)
    points = arrays(*(point(QWEN, scheme, batch=4, **NODES) for scheme in ("EAGLE3", "Elastic-SD")), machine=machine)
    found = evaluate(points, costs, with_joules=True)
    for run in (*baseline(points, "dense", costs).values(), *ours(points, found, costs, ALL_THAT_MAY).values()):
        total = run.joules.sum(axis=0)
        assert np.all(np.isfinite(run.seconds) & (run.seconds > 0.0))
        assert np.all((total[1] <= total[0] * (1 + 1e-12)) & (total[0] <= total[2] * (1 + 1e-12)))
    roles = machine.roles
    home, static = (machine.tiers[tier].peak_bytes_per_s.value for tier in (roles.expert_home, roles.weights_home))
    is_cold = bool(roles.near_compute) and np.all(found.mapping.share < 1.0)  # crosses a link, where the baseline computes there
    # elmoe3d-xpu-nmp: static weights in two of eight channels
    assert np.all(found.phi_ar >= 1.0 - 1e-12) or static < home or is_cold
    if machine.roles.expert_home == machine.roles.weights_home and not machine.roles.kv_cache:
        assert found.phi_ar == pytest.approx(1.0)  # all of it lies there already


def test_all_that_a_layer_misses_is_fetched_with_one_latency():
    costs, phone = profiles.load("physical"), load_machine("phone-lpddr5x-ufs4")
    machines = (with_values(phone, {"tiers.flash.latency_s": latency_s}) for latency_s in (0.0, 1.0))
    at_once, late = (evaluate(arrays(point(QWEN, "Elastic-SD", batch=1), machine=of), costs).ar for of in machines)
    assert late.seconds - at_once.seconds == pytest.approx(48.0 * (1.0 - late.hit_frac**late.experts))

"""Synthetic tapes: the generator against theory, misses against anchors, tapes against the contract, bad input in one line."""

import dataclasses
import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import typer
from refusing import raising, refuses
from typer.testing import CliRunner

from tokentape.capture.synthetic import calibrate, profiles, tape
from tokentape.capture.synthetic.generator import Generator
from tokentape.capture.synthetic.routes import Length, routes
from tokentape.capture.synthetic.tape import SynthesisSettings, synthesize
from tokentape.flows.commands import synthesize as commands_synthesize
from tokentape.hw.spec import load
from tokentape.policies import scoring
from tokentape.policies.lru import LRU
from tokentape.replay.experts import replay
from tokentape.replay.semantics import Semantics
from tokentape.replay.trace import trace_from_tables
from tokentape.warehouse import models
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.load import claims
from tokentape.warehouse.tape import BadTape, Store

DEEPSEEK, QWEN = "deepseek-v2-lite", "qwen1.5-moe-a2.7b"
MOE = tuple(model.name for model in models.shipped() if model.geometry.moe_layers)
BAR = 0.03  # of the anchors, absolute
SHORT = SynthesisSettings(requests=3, prompt=6, output=5)


def geometry_of(name: str) -> Geometry:
    return models.load(name).geometry


def contents(store: Store, trace_id: str) -> dict[str, pl.DataFrame]:
    opened = store.open(trace_id)
    return {name: opened.read(name) for name in opened.manifest.tables}


def assert_same_rows(a: dict[str, pl.DataFrame], b: dict[str, pl.DataFrame]) -> None:
    assert a.keys() == b.keys()
    assert all(a[name].equals(b[name]) for name in a)


def parts(generator: Generator, n_tokens: int, n_experts: int = 512) -> np.ndarray:
    """(T, E) logits of one layer over beta, less popularity: sd_u * c + n."""
    logits = generator.logits(0, 0, 0, n_tokens, 0, n_experts)
    return logits / generator.beta - generator.sd_b * generator.popularity(0, 0, n_experts)


def test_drift_and_noise_have_the_variance_and_the_correlations_of_theory() -> None:
    generator = Generator(beta=1.5, sd_b=0.5, sd_u=0.8, rho=0.6, popularity_df=4.0)
    x = parts(generator, 1000)
    variance = 0.8**2 + 1
    assert x.mean() == pytest.approx(0, abs=0.01)
    assert x.var() == pytest.approx(variance, rel=0.01)
    assert x[0].var() == pytest.approx(variance, rel=0.2)  # stationary from the first token
    for lag in (1, 2, 5):
        correlation = (x[lag:] * x[:-lag]).mean() / variance
        assert correlation == pytest.approx(0.8**2 * 0.6**lag / variance, abs=0.01)
    assert (x**3).mean() / variance**1.5 == pytest.approx(0, abs=0.02)
    assert (x[:, 1:] * x[:, :-1]).mean() == pytest.approx(0, abs=0.01)  # experts do not know of each other


def test_popularity_has_students_tails_and_a_longer_request_begins_as_the_shorter() -> None:
    b = np.concatenate([profiles.default_generator().popularity(seed, 0, 10_000) for seed in range(10)])
    # Quantiles of Student-t with 4 degrees of freedom: Abramowitz and Stegun, table 26.10.
    for level, quantile in ((0.75, 0.741), (0.95, 2.132), (0.995, 4.604)):
        assert np.quantile(b, level) == pytest.approx(quantile, rel=0.05)
        assert np.quantile(b, 1 - level) == pytest.approx(-quantile, rel=0.05)
    generator = profiles.default_generator()
    long = generator.logits(7, 3, 2, 30, 10, 16)
    assert np.array_equal(generator.logits(7, 3, 2, 11, 0, 16), long[:11])
    for seed, request, layer in ((8, 3, 2), (7, 4, 2), (7, 3, 1)):
        assert not np.array_equal(generator.logits(seed, request, layer, 40, 0, 16), long)
    same_seed = generator.popularity(7, 2, 16)
    assert np.corrcoef(same_seed, generator.logits(7, 5, 2, 400, 0, 16).mean(axis=0))[0, 1] > 0.9  # popularity outlives requests


def test_popularity_skews_the_choice_of_experts_and_beta_does_not_touch_it() -> None:
    geometry, length = geometry_of(DEEPSEEK), Length(200, 1)
    rule = ("softmax", {"top_k": 6, "norm_topk_prob": False}, geometry, 0, 0, length)

    def top_eighth(generator: Generator) -> float:
        made, _ = routes(generator, *rule)
        keys = (made.layer - 1).repeat(6) * 64 + made.expert_ids.ravel()
        counts = np.sort(np.bincount(keys, minlength=26 * 64).reshape(26, 64), axis=1)
        return counts[:, -8:].sum() / counts.sum()

    base = profiles.default_generator()
    shares = [top_eighth(dataclasses.replace(base, sd_b=sd_b)) for sd_b in (0.0, 0.3, 0.6)]
    assert shares[0] < 0.2 < 0.25 < shares[1] < shares[2]
    for beta in (0.5, 4.0):
        other = dataclasses.replace(base, beta=beta)
        assert np.array_equal(*(np.sort(routes(of, *rule)[0].expert_ids) for of in (base, other)))


@pytest.mark.parametrize("name", profiles.FITS)
def test_lru_misses_stay_within_the_bar_of_the_anchor(name: str) -> None:
    geometry, anchor = geometry_of(name), calibrate.anchor(claims().to_pylist(), profiles.FITS[name]["claim_id"])
    drawn = profiles.profile(name, geometry)
    missed = [calibrate.lru_miss_frac(drawn.generator, geometry, [seed], Length(500, 128)) for seed in range(3)]
    assert max(abs(m - anchor) for m in missed) <= BAR
    assert np.std(missed) < 0.02


def test_bisection_finds_what_made_the_misses_and_uniform_draws_miss_half() -> None:
    geometry = geometry_of(DEEPSEEK)
    flat = dataclasses.replace(profiles.default_generator(), sd_b=0.0, rho=0.0)
    missed = calibrate.lru_miss_frac(flat, geometry, [0, 1], Length(200, 300))
    assert missed == pytest.approx(0.5, abs=0.01)  # half of the experts are resident, whichever they are
    assert missed > calibrate.lru_miss_frac(dataclasses.replace(flat, rho=0.6), geometry, [0, 1], Length(200, 300)) + 0.005
    geometry, seeds, length = geometry_of("mixtral-8x7b"), [0], Length(60, 200)
    generator = profiles.default_generator()
    aim = calibrate.lru_miss_frac(dataclasses.replace(generator, sd_b=0.6), geometry, seeds, length)
    sd_b, missed = calibrate.calibrate(generator, geometry, aim, seeds, length)
    assert (sd_b, missed) == (pytest.approx(0.6, abs=0.01), pytest.approx(aim, abs=0.002))


@pytest.mark.parametrize("anchor", [0.0, 0.9])
def test_an_anchor_out_of_reach_and_no_decode_are_refused(anchor: float) -> None:
    with pytest.raises(ValueError, match=r"out of reach: sd_b from 0.0 to 4.0 gives 0\.\d+ to 0\.\d+"):
        calibrate.calibrate(profiles.default_generator(), geometry_of("mixtral-8x7b"), anchor, [0], Length(20, 40))
    refuses("2 or more", calibrate.lru_miss_frac, profiles.default_generator(), geometry_of(QWEN), [0], Length(5, 1))


def test_only_claims_to_calibrate_on_are_fitted_to() -> None:
    rows = claims().to_pylist()
    for name in profiles.FITS:
        fit = profiles.FITS[name]
        assert calibrate.anchor(rows, fit["claim_id"]) == fit["anchor_lru_miss_frac"]
        assert abs(fit["achieved_lru_miss_frac"] - fit["anchor_lru_miss_frac"]) < 0.001
    predicted = next(row["claim_id"] for row in rows if row["role"] == "predict")
    for claim_id, why in ((predicted, "its role is 'predict'"), ("nowhere", "no claim 'nowhere'")):
        refuses(why, calibrate.anchor, rows, claim_id)
    refuses("no value", calibrate.anchor, [{"claim_id": "x", "role": "calibrate", "value": None}], "x")


@pytest.mark.slow
@pytest.mark.parametrize("name", profiles.FITS)
def test_the_shipped_fits_are_what_calibration_finds(name: str) -> None:
    fit = profiles.FITS[name]
    aim = fit["anchor_lru_miss_frac"]
    found = calibrate.calibrate(profiles.default_generator(), geometry_of(name), aim, *profiles.calibration())
    assert found == pytest.approx((fit["sd_b"], fit["achieved_lru_miss_frac"]), abs=0.001)


def test_fitted_models_have_the_shape_they_were_fitted_at() -> None:
    deepseek, qwen = geometry_of(DEEPSEEK), geometry_of(QWEN)
    assert (deepseek.n_layers, deepseek.moe_layers, deepseek.n_experts, deepseek.top_k) == (27, tuple(range(1, 27)), 64, 6)
    assert (qwen.n_layers, qwen.moe_layers, qwen.n_experts, qwen.top_k) == (24, tuple(range(24)), 60, 4)
    for name in profiles.FITS:
        statistics = profiles.profile(name, geometry_of(name)).statistics
        assert statistics["is_calibrated"]
        assert statistics["parameters"]["sd_b"] == profiles.FITS[name]["sd_b"]
    other = profiles.profile(DEEPSEEK, qwen)  # a model of the user's own under a known name
    assert not other.statistics["is_calibrated"]
    assert "no fit" in other.statistics["note"]


@pytest.mark.parametrize("name", MOE)
def test_the_score_rule_is_the_one_a_capture_records(name: str) -> None:
    families = pytest.importorskip("tokentape.capture.families")
    geometry = geometry_of(name)
    drawn = profiles.profile(name, geometry)
    family = families.FAMILIES[re.sub("For(CausalLM|ConditionalGeneration)$", "", geometry.architecture)]
    assert drawn.score_rule == family.rule
    assert set(drawn.score_params) == {"top_k", *family.fixed, *family.attributes, *(["bias"] if family.bias else [])}
    assert all(drawn.score_params[key] == value for key, value in family.fixed.items())
    assert not drawn.statistics["score_rule_source"].startswith("assumed")


def test_what_a_config_of_one_s_own_says_of_its_router_counts(tmp_path: Path) -> None:
    """Kimi K2's class is DeepSeek-V3's, its router has no groups and another factor."""
    given = {"n_routed_experts": 12, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827}
    fields = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 9, "num_attention_heads": 4}
    fields |= {"hidden_size": 64, "num_hidden_layers": 2, "moe_intermediate_size": 32, "intermediate_size": 64, "kv_lora_rank": 8}
    fields |= {"first_k_dense_replace": 1, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, **given}

    def params(**others: Any) -> dict[str, Any]:
        (tmp_path / "config.json").write_text(json.dumps(fields | others))
        model = models.load(str(tmp_path / "config.json"))
        return profiles.profile(model.name, model.geometry, model.config).score_params

    said = {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827, "norm_topk_prob": False}
    assert {name: params(norm_topk_prob=False)[name] for name in said} == said
    for wrong, told in (({"n_group": 5}, "n_group=5, topk_group=1 of 12"), ({"n_group": "1"}, "n_group of the config is '1'")):
        refuses(told, params, **wrong)


@pytest.mark.parametrize("name", MOE)
def test_recorded_ids_and_weights_follow_from_the_recorded_scores(store: Store, name: str) -> None:
    trace_id = synthesize(name, geometry_of(name), SHORT, store)
    manifest, rows = store.open(trace_id).manifest, contents(store, trace_id)
    routing, scores = rows["routing"], rows["scores"]
    keys = ["request_id", "position", "layer"]
    assert routing[keys].equals(scores[keys])
    for layer in manifest.geometry.moe_layers:
        here = pl.col("layer") == layer
        recomputed = scoring.topk_from_scores(
            np.array(scores.filter(here)["scores"].to_list(), np.float32), manifest.score_rule, manifest.score_params, layer
        )
        assert recomputed[0].tolist() == routing.filter(here)["expert_ids"].to_list()
        assert np.array_equal(recomputed[1], np.array(routing.filter(here)["gate_weights"].to_list(), np.float32))


def test_weights_are_not_renormalised_and_unlisted_architectures_are_assumed(store: Store) -> None:
    for name in (DEEPSEEK, QWEN):
        trace_id = synthesize(name, geometry_of(name), SHORT, store)
        assert store.open(trace_id).manifest.score_params["norm_topk_prob"] is False
        sums = contents(store, trace_id)["routing"]["gate_weights"].list.sum()
        assert sums.max() < 0.999
        assert sums.min() > 0
    geometry = geometry_of("mixtral-8x7b").model_copy(update={"architecture": "NewMoeForCausalLM"})
    drawn = profiles.profile("new", geometry)
    assert (drawn.score_rule, drawn.score_params) == ("softmax", {"top_k": 2, "norm_topk_prob": False})
    assert drawn.statistics["score_rule_source"].startswith("assumed: NewMoeForCausalLM")


def test_equal_settings_give_the_same_tape_whatever_the_shards(tmp_path: Path) -> None:
    geometry, made = geometry_of(DEEPSEEK), []
    for shard_requests in (None, 1, 2):
        place = Store(str(tmp_path / str(shard_requests)))
        trace_id = synthesize(DEEPSEEK, geometry, SHORT, place, shard_requests=shard_requests)
        manifest = place.open(trace_id).manifest
        made.append((trace_id, contents(place, trace_id), manifest.statistics, manifest.rows))
        assert manifest.n_shards == {None: 1, 1: 3, 2: 2}[shard_requests]
    for trace_id, rows, statistics, counts in made[1:]:
        assert (trace_id, statistics, counts) == (made[0][0], made[0][2], made[0][3])
        assert_same_rows(rows, made[0][1])


def test_more_requests_and_no_scores_leave_the_rows_as_they_are(store: Store) -> None:
    geometry = geometry_of(QWEN)
    few = contents(store, synthesize(QWEN, geometry, SHORT, store))
    more = contents(store, synthesize(QWEN, geometry, dataclasses.replace(SHORT, requests=5), store))
    assert few.pop("passes").equals(more.pop("passes").head(3 * SHORT.output))
    assert_same_rows({name: rows.filter(pl.col("request_id") < 3) for name, rows in more.items()}, few)
    bare = contents(store, synthesize(QWEN, geometry, dataclasses.replace(SHORT, scores=False), store))
    del few["scores"], bare["passes"]
    assert_same_rows(bare, few)
    other = contents(store, synthesize(QWEN, geometry, dataclasses.replace(SHORT, seed=1), store))
    assert not other["routing"]["expert_ids"].equals(bare["routing"]["expert_ids"])


def test_rows_stand_in_the_order_executed_and_the_last_token_has_none(store: Store) -> None:
    geometry = geometry_of(DEEPSEEK)
    rows = contents(store, synthesize(DEEPSEEK, geometry, SHORT, store))
    n_inputs = SHORT.prompt + SHORT.output - 1
    assert rows["requests"]["n_output_tokens"].to_list() == [SHORT.output] * 3
    assert rows["tokens"].height == 3 * n_inputs
    assert rows["passes"]["n_tokens"].to_list() == 3 * [SHORT.prompt, 1, 1, 1, 1]
    assert rows["passes"]["kind"].to_list() == 3 * ["prefill", *["decode"] * 4]
    assert rows["routing"]["layer"].unique().sort().to_list() == list(range(1, 27))
    assert rows["routing"].height == 3 * n_inputs * 26
    ordered = rows["routing"].sort("pass_id", "layer", "position", maintain_order=True)
    assert ordered.equals(rows["routing"])
    joined = rows["routing"].join(rows["tokens"], on=["request_id", "position"])
    assert (joined["pass_id"] == joined["pass_id_right"]).all()
    assert rows["tokens"].filter(pl.col("phase") == "prefill").height == 3 * SHORT.prompt


@pytest.mark.parametrize("output", [0, 1])
def test_a_tape_of_prefill_only(store: Store, output: int) -> None:
    settings = dataclasses.replace(SHORT, output=output)
    trace_id = synthesize(QWEN, geometry_of(QWEN), settings, store)
    assert contents(store, trace_id)["passes"]["kind"].unique().to_list() == ["prefill"]
    assert store.open(trace_id).manifest.statistics["achieved"]["lru_miss_frac"] is None


def test_replay_sees_the_misses_that_the_manifest_states(store: Store) -> None:
    geometry = geometry_of(DEEPSEEK)
    trace_id = synthesize(DEEPSEEK, geometry, SynthesisSettings(requests=2, prompt=200, output=60, scores=False), store)
    rows, manifest = contents(store, trace_id), store.open(trace_id).manifest
    trace = trace_from_tables(trace_id, geometry, manifest.origin, rows["routing"], rows["passes"])
    half = sum(geometry.expert_bytes("int8-g32")) * geometry.n_experts // 2
    result = replay(trace, LRU(), load("phone-lpddr5x-ufs4"), Semantics("per-layer"), half)
    assert result.settings["origin"] == "synthetic"
    stated = manifest.statistics["achieved"]["lru_miss_frac"]
    assert 1 - result.metrics["hit_frac_decode"].value == pytest.approx(stated, abs=1e-12)


def test_the_manifest_says_what_was_fitted_and_what_was_not(store: Store) -> None:
    manifest = store.open(synthesize(DEEPSEEK, geometry_of(DEEPSEEK), SHORT, store)).manifest
    assert (manifest.origin, manifest.seed, manifest.model_id) == ("synthetic", 0, DEEPSEEK)
    told = manifest.statistics
    assert told["parameters"].keys() == told["sources"].keys() == {"beta", "sd_b", "sd_u", "rho", "popularity_df"}
    assert told["fit"]["anchor_lru_miss_frac"] == 0.28
    assert told["fit"]["claim_id"] in told["sources"]["sd_b"]
    assert all(source.startswith("assumed") for name, source in told["sources"].items() if name != "sd_b")
    assert told["achieved"]["n_lookups"] == 3 * 4 * 26 * 6
    unfitted = store.open(synthesize("mixtral-8x7b", geometry_of("mixtral-8x7b"), SHORT, store)).manifest.statistics
    assert not unfitted["is_calibrated"]
    assert "defaults" in unfitted["note"]
    assert "fit" not in unfitted


def test_memory_follows_the_shard_and_not_the_tape(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    geometry, settings = geometry_of("gpt-oss-20b"), SynthesisSettings(requests=2, prompt=40, output=10)
    monkeypatch.setattr(tape, "SHARD_VALUES", 2 * 49 * 24 * 32)  # two requests

    def peak_bytes(requests: int) -> int:
        tracemalloc.start()
        synthesize("gpt-oss-20b", geometry, dataclasses.replace(settings, requests=requests), store)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_bytes(2)  # first use: caches of libraries
    assert peak_bytes(12) < 1.3 * peak_bytes(4)


def test_a_stopped_run_leaves_nothing_and_a_killed_one_is_refused_and_made_again(store: Store) -> None:
    geometry = geometry_of(QWEN)
    with pytest.raises(KeyboardInterrupt):
        synthesize(QWEN, geometry, SHORT, store, stop := raising(KeyboardInterrupt()))
    assert store.trace_ids() == store.unfinished_ids() == []
    trace_id = synthesize(QWEN, geometry, SHORT, store)
    rows = contents(store, trace_id)
    store.fs.rm(store.trace_path(trace_id, "manifest.json"))
    refuses("no manifest", store.open, trace_id, error=BadTape)
    assert synthesize(QWEN, geometry, SHORT, store) == trace_id
    assert_same_rows(contents(store, trace_id), rows)
    assert synthesize(QWEN, geometry, SHORT, store, stop) == trace_id  # found, not drawn again


def test_the_command_prints_the_trace_id_and_notes_what_is_not_calibrated(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(commands_synthesize.synthesize)

    def run(*arguments: str):
        return CliRunner().invoke(app, [*arguments, "--store", str(tmp_path)])

    short = ("--requests", "1", "--prompt", "4", "--output", "3")
    done = run("--like", "DeepSeek-V2-Lite", *short)
    assert done.exit_code == 0, done.output
    assert Store(str(tmp_path)).trace_ids() == [done.stdout.strip()]
    assert "misses" in done.stderr
    assert "no fit" not in done.stderr
    bare = run("--like", "OLMoE-1B-7B", *short, "--no-scores")
    assert "olmoe-1b-7b has no fit" in bare.stderr
    assert not Store(str(tmp_path)).open(bare.stdout.strip()).has("scores")


def test_calibration_of_the_router_prints_shipped_beside_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate, "calibrate", lambda generator, geometry, aim, seeds, length: (0.123, aim))
    commands_synthesize.calibrate_router()
    shown = capsys.readouterr().out
    for name in profiles.FITS:
        line = next(line for line in shown.splitlines() if name in line)
        assert f"{profiles.FITS[name]['sd_b']:.3f}" in line
        assert "0.123" in line

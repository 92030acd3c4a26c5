"""Routing whose prompts foretell their decode: the published similarity, what placements hit on it, and what they must not."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from refusing import refuses

from tokentape.capture.importers.rows import no_widths
from tokentape.capture.synthetic import profiles, tabled
from tokentape.capture.synthetic.context import Context
from tokentape.capture.synthetic.counted import counted
from tokentape.capture.synthetic.routes import Length, routes
from tokentape.capture.synthetic.tape import SynthesisSettings, synthesize
from tokentape.flows.systems.cxl_ndp import routing as cxl_ndp_routing
from tokentape.policies.placement import Capacity
from tokentape.policies.placement.fixed import Oracle, PrefillGuided, RandomPlacement, ShuffledPrompts, StaticGlobal
from tokentape.replay.cxl_ndp.hits import hits_of, similarity_rows
from tokentape.replay.cxl_ndp.routing import in_batches
from tokentape.warehouse import load, models
from tokentape.warehouse.tape import Store

MIXTRAL = models.load("Mixtral-8x7B").geometry
STATISTICS = Path(__file__).resolve().parents[3] / "shared" / "data" / "routing_stats" / "olmoe_mixtral_routing_stats.json.gz"
TINY = no_widths("tiny", 3, moe_layers=(0, 2), n_experts=12, top_k=3)


@pytest.fixture(scope="module")
def mixtral():
    """64 sequences of Mixtral-8x7B's shape."""
    return cxl_ndp_routing.drawn(MIXTRAL, 64, seed=0)


def hit_frac(routing, placement, k, batch=1):
    return hits_of(routing, in_batches(routing.n_sequences, batch), placement, Capacity(k)).hit_frac


def test_prompt_and_decode_are_as_alike_as_published():
    """Specification 7: the claim that may be calibrated on, within .02; on the draws of the setting and on others."""
    fit = profiles.CONTEXT_FIT
    (claim,) = (row for row in load.claims().to_pylist() if row["claim_id"] == fit["claim_id"])
    assert claim["role"] == "calibrate"
    assert claim["value"] == fit["anchor_cosine"]
    lengths = {"n_prompt": fit["n_prompt"], "n_steps": fit["n_output"] - 1}

    def own_cosine(n_requests, seed):
        return similarity_rows(cxl_ndp_routing.drawn(MIXTRAL, n_requests, seed, **lengths))[0]["own_cosine"]

    reached = own_cosine(fit["n_requests"], fit["seed"])
    assert reached == pytest.approx(fit["achieved_cosine"], abs=1e-4)
    for seed in (0, 1, 2):
        other = own_cosine(32, seed)
        assert other == pytest.approx(claim["value"], abs=0.02)


@pytest.mark.parametrize(("k", "guided", "static", "oracle"), [(4, 0.688, 0.523, 0.784), (2, 0.404, 0.271, 0.512)])
def test_hit_shares_of_the_specification(mixtral, k, guided, static, oracle):
    """Specification 3. Static hits more, the fewer sequences share it: .523 is of a hundred or so."""
    assert hit_frac(mixtral, PrefillGuided(), k) == pytest.approx(guided, abs=0.015)
    assert hit_frac(mixtral, StaticGlobal(), k) == pytest.approx(static, abs=0.015)
    assert hit_frac(mixtral, Oracle(), k) == pytest.approx(oracle, abs=0.015)
    assert hit_frac(mixtral, RandomPlacement(), k) == pytest.approx(k / 8, abs=0.01)


def test_one_placement_for_sixteen_sequences_hits_little_more_than_chance(mixtral):
    assert hit_frac(mixtral, PrefillGuided(), 4, batch=16) == pytest.approx(0.55, abs=0.015)


@pytest.mark.parametrize(("model", "k"), [("Mixtral-8x7B", 4), ("Mixtral-8x7B", 2), ("Mixtral-8x22B", 2)])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_prefill_guided_beats_static_by_ten_points_and_stays_below_the_oracle(model, k, seed):
    """Done-when 8.3."""
    routing = cxl_ndp_routing.drawn(models.load(model).geometry, 48, seed)
    guided = hit_frac(routing, PrefillGuided(), k)
    assert guided >= hit_frac(routing, StaticGlobal(), k) + 0.10
    assert guided <= hit_frac(routing, Oracle(), k)


@pytest.mark.parametrize("k", [2, 4])
def test_other_prompts_hit_what_a_static_set_does(mixtral, k):
    """Specification 10: shuffling cuts the hit share to static, here to chance: nothing is popular beyond its sequence."""
    shuffled = hit_frac(mixtral, ShuffledPrompts(), k)
    assert shuffled == pytest.approx(k / 8, abs=0.01)
    assert shuffled <= hit_frac(mixtral, StaticGlobal(), k) + 0.01
    moved = replace(mixtral, decode_ids=np.roll(mixtral.decode_ids, 1, axis=0))
    assert hit_frac(moved, PrefillGuided(), k) == pytest.approx(k / 8, abs=0.01)
    assert abs(similarity_rows(mixtral)[0]["static_frac"]) < 0.05


@pytest.mark.parametrize("seed", [0, 5])
def test_a_tape_and_routing_without_one_are_the_same_draws(tmp_path, seed):
    store, settings = Store(str(tmp_path)), SynthesisSettings(requests=3, prompt=20, output=13, seed=seed)
    trace = synthesize("tiny", TINY, settings, store, drawn=profiles.context_profile("tiny", TINY), shard_requests=2)
    for weight in ("gate", "softmax"):
        taped = cxl_ndp_routing.of_tape(store, trace, weight)
        direct = cxl_ndp_routing.drawn(TINY, 3, seed, n_prompt=20, n_steps=12)
        assert np.array_equal(taped.decode_ids, direct.decode_ids)
        assert np.array_equal(taped.n_decode, direct.n_decode)
        assert np.array_equal(taped.prefill_counts, direct.prefill_counts)
        if weight == "gate":
            assert taped.prefill_weights == pytest.approx(direct.prefill_weights, rel=1e-6)
        else:  # probabilities among all experts: less than among the chosen
            assert (taped.prefill_weights <= direct.prefill_weights).all()
    assert store.open(trace).manifest.statistics["is_calibrated"] is False
    assert profiles.context_profile("Mixtral-8x7B", MIXTRAL).statistics["is_calibrated"] is True


def test_a_longer_decode_begins_as_the_shorter_and_another_sequence_is_another():
    generator = profiles.context_generator()
    long = generator.logits(7, 3, 2, 10, 40, 16)
    assert np.array_equal(generator.logits(7, 3, 2, 10, 15, 16), long[:25])
    assert np.array_equal(generator.logits(7, 3, 2, 10, 0, 16), long[:10])
    for other in ((8, 3, 2), (7, 4, 2), (7, 3, 1)):
        assert not np.array_equal(generator.logits(*other, 10, 40, 16), long)
    assert np.isfinite(long).all()


def test_the_parts_have_the_variance_that_their_parameters_say():
    """Gumbel noise alone has pi^2 / 6; a decode adds the wandering part to it."""
    still, wandering = Context(1e9, 0.0, 0.0, 0.8), Context(1e9, 0.0, 0.7, 0.8)
    noise = still.logits(0, 0, 0, 4_000, 4_000, 64)
    assert noise.var() == pytest.approx(np.pi**2 / 6, rel=0.02)
    drift = wandering.logits(0, 0, 0, 4_000, 4_000, 64) - noise
    assert not drift[:4_000].any()
    assert drift[4_000:].std() == pytest.approx(0.7, rel=0.03)
    follows = np.mean([np.corrcoef(c[1:], c[:-1])[0, 1] for c in drift[4_000:].T])
    assert follows == pytest.approx(0.8, abs=0.02)


# ---------------------------------------------------------------------------------------------------------------- tables


def write_counts(path, counts):
    path.write_bytes(gzip.compress(json.dumps({"models": {"tiny": counts}}).encode()))
    return f"{path}#models/tiny"


COUNTS = {"law": [[8, 4, 2, 1, 1, 0, 1, 1, 1, 1, 1, 1], [1] * 12], "code": [[0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5, 5], [1] * 12]}


def test_table_routing_draws_by_the_counts_of_a_requests_domain(tmp_path):
    made = tabled.load(write_counts(tmp_path / "counts.json.gz", COUNTS), TINY)
    found = counted(made, TINY.model_copy(update={"top_k": 1}), 0, 2, Length(20_000, 0))["prefill_counts"] / 20_000
    for request, domain in enumerate(("law", "code")):
        for place in (0, 1):
            row = np.array(COUNTS[domain][place], float)
            assert found[request, place] == pytest.approx(row / row.sum(), abs=0.012)
            assert not found[request, place][row == 0].any()  # never used, never drawn
    assert np.array_equal(made.logits(0, 2, 0, 5, 0, 12), made.logits(0, 2, 0, 5, 3, 12)[:5])
    assert np.isfinite(made.logits(0, 1, 0, 5, 0, 12)).all(), "scores of what is never used are numbers"


def test_loads_of_a_load_balancer_are_one_domain(tmp_path):
    """Two steps of all three layers; the dense one in the middle has none."""
    torch = pytest.importorskip("torch")
    steps = np.array([[COUNTS["law"][0], [0] * 12, [1] * 12], [[0] * 12, [0] * 12, COUNTS["code"][0]]])
    whole = (tuple(COUNTS["law"][0]), tuple(1 + n for n in COUNTS["code"][0]))
    np.save(tmp_path / "loads.npy", steps.sum(axis=0)[[0, 2]])
    (tmp_path / "loads.json").write_text(json.dumps({"logical_count": steps.tolist()}))
    torch.save({"rank": 0, "logical_count": torch.tensor(steps)}, tmp_path / "recorder.pt")
    for name in ("loads.npy", "loads.json", "recorder.pt"):
        assert tabled.load(str(tmp_path / name), TINY).counts == (whole,)


def test_bad_tables_and_names_are_told(tmp_path):
    """In refused_counts.json: the text of a table, and what is said of it."""
    for n, (text, words) in enumerate(json.loads(Path(__file__).with_name("refused_counts.json").read_text())):
        (tmp_path / f"{n}.json").write_text(text)
        refuses(words, tabled.load, str(tmp_path / f"{n}.json"), TINY)
    source = write_counts(tmp_path / "counts.json.gz", COUNTS).replace("tiny", "none")
    refuses("no counts at 'models/none'", tabled.load, source, TINY)
    (tmp_path / "broken.gz").write_bytes(gzip.compress(b"[]")[:10] + b"\x07" * 9)
    refuses("no counts", tabled.load, str(tmp_path / "broken.gz"), TINY)
    (tmp_path / "cut.pt").write_bytes(b"PK of nothing")
    refuses("not a torch file of plain tensors", tabled.load, str(tmp_path / "cut.pt"), TINY)
    refuses(r"none\.json", tabled.load, str(tmp_path / "none.json"), TINY, error=OSError)
    for wrong in (("drift", None), ("table", None), ("context", "x.json"), ("popular", "x.json")):
        refuses("routing", profiles.of_routing, wrong[0], "tiny", TINY, wrong[1], {})


@pytest.mark.skipif(not STATISTICS.is_file(), reason="the public routing statistics are not on this machine")
def test_public_statistics_of_domains_tell_a_prompt_more_than_popularity():
    """Six domains in turn: a prompt knows its own; of what it shares with its decode, most is not in other domains' prompts."""
    geometry = models.load("OLMoE-1B-7B").geometry
    profile = profiles.of_routing("table", "OLMoE-1B-7B", geometry, f"{STATISTICS}#models/olmoe/expert_counts", {})
    made = routes(profile.generator, profile.score_rule, profile.score_params, geometry, 0, 0, Length(4, 3))[0]
    assert made.expert_ids.shape == (16 * 6, 8)
    drawn = counted(profile.generator, geometry, 0, 12, Length(64, 65))
    routing = replace(cxl_ndp_routing.drawn(geometry, 12, n_prompt=4, n_steps=64), **drawn)
    assert similarity_rows(routing)[0]["static_frac"] < 0.5
    guided, static, drawn_at_random = (hit_frac(routing, p, 32) for p in (PrefillGuided(), StaticGlobal(), RandomPlacement()))
    assert guided > static > drawn_at_random

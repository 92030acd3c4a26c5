"""Hit shares and similarities: against Python one step at a time, closed cases, controls that must fail to predict; and their
rows add up to what they are made from.
"""

from dataclasses import replace

import numpy as np
import pytest
from cxl_ndp_tapes import random_routing
from refusing import refuses

from tokentape.policies.bits import BIT_RULES, assign, table_loss
from tokentape.policies.placement import PLACEMENTS, Capacity, hot_set, importance
from tokentape.policies.placement.fixed import Oracle, PrefillGuided, RandomPlacement, ShuffledPrompts, StaticGlobal
from tokentape.policies.placement.reactive import EMA, Balance, Never
from tokentape.replay.cxl_ndp import hits as over
from tokentape.replay.cxl_ndp.bit_losses import bit_loss_rows
from tokentape.replay.cxl_ndp.hits import hit_rows, hits_of, similarity_rows, use_rows
from tokentape.replay.cxl_ndp.routing import in_batches

OF_PROMPTS = [name for name, kind in PLACEMENTS.items() if kind.kind != "event"]  # without a cache beside them


def obvious_hits(routing, groups, placement, capacity):
    """(hits, moved) per group and layer, step by step."""
    seen = routing.seen(groups)
    start = importance(seen.prefill_counts, seen.prefill_weights)
    found = np.zeros((2, len(groups), routing.n_layers), int)
    for g, members in enumerate(groups):
        for layer in range(routing.n_layers):
            if placement.kind == "fixed":
                hot = capacity.hot(placement.scores(seen))[g, layer]
            else:
                hot = hot_set(start[g, layer], capacity.experts if placement.starts_placed else 0)
                shares = seen.prefill_counts[g, layer] / seen.prefill_counts[g, layer].sum()
                average = shares * len(members) * routing.top_k
                hot = hot.astype(np.uint8)
            for t in range(routing.n_steps):
                alive = [s for s in members if t < routing.n_decode[s]]
                if not alive:
                    break
                counts = np.bincount(routing.decode_ids[alive, t, layer].ravel(), minlength=routing.n_experts)
                assert counts.sum() == len(alive) * routing.top_k
                if placement.kind == "reactive":
                    found[1, g, layer] += placement.migrate(counts, average, hot, capacity.experts, placement.params())
                found[0, g, layer] += counts[hot.astype(bool)].sum()
    return found


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", OF_PROMPTS)
def test_hits_equal_one_step_at_a_time(name, batch):
    routing = random_routing(3)
    groups, place = in_batches(routing.n_sequences, batch), PLACEMENTS[name]() if name != "balance" else Balance(1.5, 0.25)
    for capacity in (Capacity(k, across) for k in (0, 2, 5) for across in {False, place.kind == "fixed"}):
        found = hits_of(routing, groups, place, capacity)
        hits, moved = obvious_hits(routing, groups, place, capacity)
        assert np.array_equal(found.hits, hits)
        assert np.array_equal(found.moved, moved)
        assert np.array_equal(found.selected.sum(axis=1), routing.n_decode[groups].sum(axis=1) * routing.n_layers * 2)
        assert np.array_equal(found.steps, routing.n_decode[groups].max(axis=1))
        per_step = [moved[:, layer].sum() / routing.n_decode[groups].max(axis=1).sum() for layer in range(routing.n_layers)]
        assert found.moves_per_step() == pytest.approx(per_step)
        assert found.by_layer() == pytest.approx(hits.sum(axis=0) / found.selected.sum(axis=0))


def test_no_decode_and_no_layers_in_common():
    routing = random_routing(0)
    silent = replace(routing, n_decode=np.zeros(6, np.int32), decode_ids=routing.decode_ids[:, :0])
    for placement in (PrefillGuided(), EMA(), Never()):
        found = hits_of(silent, in_batches(6, 1), placement, Capacity(2))
        assert np.isnan(found.hit_frac)
        assert np.isnan(found.by_layer()).all()
        assert hit_rows([found], (0, 1)) == []
    tapes, alone = [silent, routing], [routing]
    assert list(over.hits_over_seeds(tapes, {}, 2, 0.5, 2)) == list(over.hits_over_seeds(alone, {}, 2, 0.5, 2)) != []
    assert list(over.similarity_over_seeds(tapes, {})) == list(over.similarity_over_seeds(alone, {})) != []
    refuses("EMA moves experts layer by layer", hits_of, routing, in_batches(6, 1), EMA(), Capacity(2, across_layers=True))
    refuses("another group's prompt", hits_of, routing, np.arange(6)[None], ShuffledPrompts(), Capacity(2))


def test_uniform_routing_hits_k_of_e_whatever_the_placement():
    """Specification 10: nothing predicts it."""
    routing = random_routing(5, n_sequences=60, n_layers=4, n_experts=8, n_steps=80, n_prompt=60)
    for placement in (PrefillGuided(), StaticGlobal(), RandomPlacement(), ShuffledPrompts()):
        assert hits_of(routing, in_batches(60, 1), placement, Capacity(4)).hit_frac == pytest.approx(0.5, abs=0.02)
    assert hits_of(routing, in_batches(60, 1), Oracle(), Capacity(4)).hit_frac > 0.52


# ---------------------------------------------------------------------------------------------------------- similarity


def with_counts(prompts, decoded):
    """A routing of one layer, k = 1, with these counts (S, E)."""
    prompts, decoded = np.array(prompts), np.array(decoded)
    n_decode = decoded.sum(axis=1)
    ids = np.full((len(decoded), int(n_decode.max()), 1, 1), -1, np.int16)
    for s, counts in enumerate(decoded):
        ids[s, : n_decode[s], 0, 0] = np.repeat(np.arange(counts.size), counts)
    base = random_routing(0)
    return replace(
        base,
        layers=(0,),
        request_ids=np.arange(len(prompts)),
        prefill_counts=prompts[:, None].astype(np.int32),
        prefill_weights=prompts[:, None].astype(float),
        decode_ids=ids,
        n_decode=n_decode.astype(np.int32),
    )


def cosine(a, b):
    return float(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b))


def test_similarity_by_hand_and_of_one_sequence_which_has_no_control():
    """The third decodes nothing, and takes part in nothing; of two, all others are the one other."""
    prompts, decoded = [[3, 1, 0], [0, 2, 2], [1, 1, 4]], [[2, 2, 0], [0, 1, 3], [0, 0, 0]]
    mean, row = similarity_rows(with_counts(prompts, decoded))
    assert (mean.pop("layer"), row.pop("layer")) == (None, 0)
    assert mean == row
    assert row["own_cosine"] == pytest.approx(np.mean([cosine(prompts[s], decoded[s]) for s in range(2)]))
    others = np.mean([cosine(prompts[1], decoded[0]), cosine(prompts[0], decoded[1])])
    assert row["static_cosine"] == pytest.approx(row["shuffled_cosine"]) == pytest.approx(others)
    ones = np.ones(3)
    flat = [cosine(prompts[s], ones) * cosine(decoded[s], ones) for s in range(2)]
    assert row["flat_cosine"] == pytest.approx(np.mean(flat))
    assert row["n_requests"] == 2
    for one in ([[2, 2, 0]], [[0, 0, 0]]):
        assert similarity_rows(with_counts([[3, 1, 0]], one)) == []


def test_popularity_alone_and_context_alone_are_told_apart():
    rng = np.random.default_rng(0)
    taste = rng.dirichlet(np.ones(8))
    popular = similarity_rows(with_counts(rng.multinomial(400, taste, 40), rng.multinomial(400, taste, 40)))[0]
    assert popular["static_frac"] == pytest.approx(1.0, abs=0.02)
    own = rng.dirichlet(np.ones(8), 400)
    found = similarity_rows(with_counts(rng.multinomial(400, own), rng.multinomial(400, own)))[0]
    assert found["static_frac"] == pytest.approx(0.0, abs=0.02)
    assert found["own_cosine"] > 0.95
    assert found["shuffled_cosine"] == pytest.approx(found["flat_cosine"], abs=0.02)
    tapes = [with_counts([[3, 1], [3, 0]], [[3, 0], [3, 1]]), with_counts([[1, 0], [0, 1]], [[0, 1], [1, 0]])]
    assert [row["static_frac"] for row in over.similarity_over_seeds(tapes, {})] == [None, None]  # nothing of one's own is alike


def test_hit_and_similarity_rows_name_layers_and_their_mean():
    routing = replace(random_routing(2), layers=(4, 9))
    hits = hits_of(routing, in_batches(6, 1), PrefillGuided(), Capacity(2))
    rows = hit_rows([hits], routing.layers)
    assert [row["gpu_hit_frac"] for row in rows] == pytest.approx([hits.hit_frac, *hits.by_layer()])
    similar = similarity_rows(routing)
    assert [row["layer"] for row in rows] == [row["layer"] for row in similar] == [None, 4, 9]
    assert similar[0]["own_cosine"] == pytest.approx(np.mean([row["own_cosine"] for row in similar[1:]]))
    assert similar[0]["n_requests"] == (routing.n_decode > 0).sum()


@pytest.mark.parametrize("bin_steps", [1, 5, 100])
def test_use_adds_up_to_the_decode(bin_steps):
    routing = random_routing(4, n_steps=13)
    rows = use_rows(routing, np.array([0]), bin_steps)
    counts = np.zeros((routing.n_layers, routing.n_experts))
    for row in rows:
        steps = min(bin_steps, 13 - row["first_step"])
        counts[routing.layers.index(row["layer"]), row["expert"]] += row["use_frac"] * steps * routing.top_k
    assert counts == pytest.approx(routing.decode_counts()[0])
    by_bin = {}
    for row in rows:
        by_bin[row["layer"], row["first_step"]] = by_bin.get((row["layer"], row["first_step"]), 0.0) + row["use_frac"]
    assert list(by_bin.values()) == pytest.approx([1.0] * len(by_bin))
    refuses("bin of 0 steps", use_rows, routing, np.array([0]), 0)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_bit_losses_are_means_over_groups_of_sums_over_layers(across, weighted):
    routing, rng = random_routing(6), np.random.default_rng(0)
    losses = np.sort(rng.random((2, 5, 4)), axis=2)[..., ::-1].copy()
    scores = importance(routing.prefill_counts, routing.prefill_weights)
    hot = Capacity(2).hot(scores)
    share = rng.random(scores.shape) if weighted else None
    rows = {(row["layer"], row["rule"]): row for row in bit_loss_rows(losses, (0, 3), scores, hot, 2.0, across, share)}
    for name, rule in BIT_RULES.items():
        bits = assign(rule, losses, scores, hot, 2.0, across, share)
        told = [losses if share is None else losses * share[g][..., None] for g in range(6)]
        mean = np.mean([table_loss(table, b) for table, b in zip(told, bits, strict=True)])
        assert rows[None, name]["loss"] == pytest.approx(mean)
        assert rows[None, name]["loss"] == pytest.approx(rows[0, name]["loss"] + rows[3, name]["loss"])
        assert rows[None, name]["uniform_loss"] == rows[None, "uniform"]["loss"]
        assert rows[None, name]["optimum_loss"] == rows[None, "optimum"]["loss"] <= rows[None, name]["loss"] + 1e-12
    assert rows[None, "prefix_split"]["loss"] <= rows[None, "uniform"]["loss"] + 1e-12

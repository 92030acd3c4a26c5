"""Tapes as routing by phase: against row-by-row dictionaries, cut windows, and what is refused."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from cxl_ndp_tapes import GEOMETRY, make_routing, make_tables, read
from refusing import refuses

from tokentape.replay.cxl_ndp.routing import ENDED, in_batches, joined


def obvious(tables, weight="gate"):
    """{(request, layer): ({expert: (count, weight)}, [ids by step])} row by row."""
    passes, routing, scores = tables
    kinds = dict(zip(passes["pass_id"], passes["kind"], strict=True))
    found = {}
    for row, told in zip(routing.iter_rows(named=True), scores["scores"], strict=True):
        prompt, steps = found.setdefault((row["request_id"], row["layer"]), ({}, []))
        if kinds[row["pass_id"]] == "decode":
            steps.append(row["expert_ids"])
            continue
        shares = np.exp(np.array(told, float)) / np.exp(np.array(told, float)).sum()
        for expert, gate in zip(row["expert_ids"], row["gate_weights"], strict=True):
            count, total = prompt.get(expert, (0, 0.0))
            prompt[expert] = count + 1, total + (gate if weight == "gate" else shares[expert])
    return found


@pytest.mark.parametrize("weight", ["gate", "softmax"])
@pytest.mark.parametrize("seed", range(4))
def test_a_tape_equals_its_rows_one_by_one(seed, weight):
    tables = make_tables(seed, prompts=(5, 3, 7, 4, 6), decodes=(4, 0, 6, 1, 3), batch=1 + seed % 3)
    found = read(tables, weight_source=weight)
    for (request, layer), (prompt, steps) in obvious(tables, weight).items():
        place = GEOMETRY.moe_layers.index(layer)
        for expert in range(6):
            count, total = prompt.get(expert, (0, 0.0))
            assert found.prefill_counts[request, place, expert] == count
            assert found.prefill_weights[request, place, expert] == pytest.approx(total, rel=1e-6)
        assert found.n_decode[request] == len(steps)
        assert found.decode_ids[request, : len(steps), place].tolist() == [list(ids) for ids in steps]
        assert (found.decode_ids[request, len(steps) :, place] == ENDED).all()
    assert (found.n_sequences, found.n_steps, found.n_layers, found.top_k, found.n_experts) == (5, 6, 2, 2, 6)
    assert found.layers == (1, 3)
    counts = found.decode_counts()
    assert (counts.sum(axis=2) == found.n_decode[:, None] * 2).all()


def test_prompts_alone_decode_nothing_and_ids_without_weights_count():
    found = read(make_tables(0, decodes=(0, 0, 0)))
    assert found.decode_ids.shape == (3, 0, 2, 2)
    assert not found.decode_counts().any()
    passes, routing, scores = make_tables()
    found = read((passes, routing.with_columns(gate_weights=pl.lit(None, pl.List(pl.Float32))), scores))
    assert np.array_equal(found.prefill_counts, make_routing().prefill_counts)
    assert np.array_equal(found.prefill_weights, found.prefill_counts)


def test_what_is_refused():
    passes, routing, scores = make_tables()
    lacking = (pl.col("request_id") == 0) & (pl.col("layer") == 3)
    cut = pl.when(pl.int_range(pl.len()) == 4).then(pl.col("expert_ids").list.head(1)).otherwise("expert_ids")
    for words, table in (
        ("request 2 has no prompt rows", routing.filter((pl.col("request_id") < 2) | (pl.col("position") >= 7))),
        ("request 0 has prompt rows that some layers lack", routing.filter(~(lacking & (pl.col("position") == 1)))),
        ("request 0 has decode steps that some layers lack", routing.filter(~(lacking & (pl.col("position") == 6)))),
        ("request 0 has rows that do not name 2 experts", routing.with_columns(expert_ids=cut)),
    ):
        with pytest.raises(ValueError, match=words):
            read(
                (passes, table.with_columns(gate_weights=pl.col("gate_weights").list.head(pl.col("expert_ids").list.len())), None)
            )
    refuses("unknown", read, (passes, routing, scores), weight_source="logits")


def test_tapes_of_one_model_join_and_another_models_is_refused():
    routing = make_routing()
    routing.refuse_other_model(6, 2, "Tiny")
    refuses("over 6 experts per layer, Mixtral has 8", routing.refuse_other_model, 8, 2, "Mixtral")
    refuses("over 2 experts per token, OLMoE has 8", routing.refuse_other_model, 6, 8, "OLMoE")
    first, second = make_routing(0), make_routing(1, prompts=(4, 6), decodes=(9, 1))
    both = joined([first, second])
    assert both.n_steps == 9
    assert np.array_equal(both.decode_counts(), np.concatenate([first.decode_counts(), second.decode_counts()]))
    assert np.array_equal(both.prefill_weights, np.concatenate([first.prefill_weights, second.prefill_weights]))
    assert both.request_ids.tolist() == [0, 1, 2, 3, 4]
    refuses(r"MoE layers \(1, 2\), test has \(1, 3\)", joined, [first, replace(second, layers=(1, 2))])
    refuses("experts per layer", joined, [first, replace(second, prefill_counts=second.prefill_counts[..., :5])])


def test_batches_are_whole_in_tape_order_and_sums_of_their_members():
    assert in_batches(7, 3).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert in_batches(2, 1).tolist() == [[0], [1]]
    for wrong in ((2, 3), (2, 0)):
        refuses("batch", in_batches, *wrong)
    routing = make_routing(prompts=(4, 5, 6, 7), decodes=(2, 3, 0, 1))
    seen = routing.seen(in_batches(4, 2))
    assert np.array_equal(seen.prefill_counts[1], routing.prefill_counts[2] + routing.prefill_counts[3])
    assert seen.prefill_weights[0] == pytest.approx(routing.prefill_weights[:2].sum(axis=0))
    assert np.array_equal(seen.tape_counts, routing.prefill_counts.sum(axis=0) + routing.decode_counts().sum(axis=0))
    assert np.array_equal(replace(routing).seen(in_batches(4, 1)).decode_counts, routing.decode_counts())

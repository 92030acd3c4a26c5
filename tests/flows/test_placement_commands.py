"""tokentape decide place and bits on small tapes, and their rows in the warehouse."""

import numpy as np
import pytest
from command import Cli
from tiny_tape import N_LAYERS, write_losses

from tokentape.warehouse.results import read_rows
from tokentape.warehouse.tape import Store


@pytest.fixture
def losses(store: Store) -> str:
    """A tape of table losses beside `tiny-0001`, of the same geometry."""
    write_losses(store, "tiny-losses")
    return "tiny-losses"


def test_placements_of_a_tape(tokentape: Cli, store: Store) -> None:
    done = tokentape.ok("decide", "place", "tiny", "--capacity", "3 experts", "--batch", "1,2,9")
    assert "3 of a layer's 8 experts on the GPU" in done.out
    assert "left out: batches of more than the tape's 3 sequences" in done.err
    hits = read_rows(store, "cxl_ndp_hits")
    frac = {(row["placement"], row["batch"]): row["gpu_hit_frac"] for row in hits if row["layer"] is None}
    assert {batch for _, batch in frac} == {1, 2}
    assert ("shuffled_prompts", 2) not in frac  # one batch of two: no other prompt
    for batch in (1, 2):
        fixed = [frac[name, batch] for name in ("prefill_guided", "static_global", "random")]
        assert max(fixed) <= frac["oracle", batch]
        assert frac["never", batch] == 0.0
    assert len(hits) == 4 * len(frac)
    similar = read_rows(store, "cxl_ndp_similarity")
    assert [row["layer"] for row in similar] == [0, 1, 2, None]
    assert similar[-1]["own_cosine"] == pytest.approx(np.mean([row["own_cosine"] for row in similar[:-1]]))
    use = read_rows(store, "cxl_ndp_use")
    assert {row["request_id"] for row in use} == {0, 1}
    assert {row["first_step"] for row in use} == set(range(0, 32, 4))
    assert tokentape.sql("select count(*) as n from cxl_ndp_hits where placement = 'oracle'") == [{"n": 8}]


def test_parameters_and_capacities(tokentape: Cli, store: Store) -> None:
    for arguments in (
        ("--capacity", "50%", "--alpha", "0", "--placement", "prefill_guided,ema", "--beta", "0.5"),
        ("--capacity", "30kB", "--expert-format", "fp16", "--placement", "prefill_guided"),
        ("--scope", "global", "--capacity", "2 experts"),
        ("tiny-0001", "--capacity", "1 experts", "--placement", "shuffled_prompts"),
        ("--placement", "random", "--seed", "4"),
    ):
        tokentape.ok("decide", "place", "tiny", "--batch", "1", *arguments)
    found = {(row["placement"], row["hot_experts"]) for row in read_rows(store, "cxl_ndp_hits")}
    assert {("prefill_guided alpha=0", 4), ("ema beta=0.5", 4), ("prefill_guided", 2), ("random seed=4", 4)} <= found
    assert ("oracle, across layers", 2) in found
    assert "tiny-0001 + tiny-0001" in {row["source"] for row in read_rows(store, "cxl_ndp_hits")}
    assert not any(name.startswith("ema") and "across" in name for name, _ in found)


def test_bits_of_measured_losses(tokentape: Cli, store: Store, losses: str) -> None:
    tokentape.ok("decide", "precision", losses, "--method", "rtn", "--mean-bits", "2,2.5,3")
    rows = read_rows(store, "bit_losses")
    assert len(rows) == 3 * 5 * (1 + N_LAYERS)
    by_rule = {(row["rule"], row["mean_bits"], row["layer"]): row["loss"] for row in rows}
    for mean_bits in (2.0, 3.0):
        for layer in (None, *range(N_LAYERS)):
            lost = {rule: by_rule[rule, mean_bits, layer] for rule in ("optimum", "prefix_split", "uniform", "reversed")}
            assert lost["optimum"] <= lost["prefix_split"] <= lost["uniform"]
            assert lost["optimum"] <= lost["reversed"]
    for arguments in (
        ("--routing", "tiny-0001", "--capacity", "3 experts"),
        ("--routing", "tiny-0001", "--loss-weight", "prefill_share", "--scope", "global", "--alpha", "1"),
    ):
        tokentape.ok("decide", "precision", losses, "--method", "rtn", "--mean-bits", "2", *arguments)
    rankings = {(row["ranking"], row["hot_experts"]) for row in read_rows(store, "bit_losses")}
    assert rankings == {
        ("loss", 0),
        ("importance alpha=0.5, tiny-0001", 3),
        ("importance alpha=1, tiny-0001, across layers, prefill share", 4),
    }


def test_context_routing_is_drawn_and_placed(tokentape: Cli, store: Store) -> None:
    sizes = ("--requests", "6", "--prompt", "40", "--output", "31", "--no-scores", "--seed", "2")
    done = tokentape.ok("synthesize", "--like", "Mixtral-8x7B", "--routing", "context", *sizes)
    assert "nothing is known" not in done.err
    assert tokentape("decide", "place", done.out.strip(), "--batch", "1").code == 0
    frac = {row["placement"]: row["gpu_hit_frac"] for row in read_rows(store, "cxl_ndp_hits") if row["layer"] is None}
    assert frac["prefill_guided"] > frac["static_global"] + 0.05
    other = tokentape("synthesize", "--like", "OLMoE-1B-7B", "--routing", "context", *sizes)
    assert "nothing is known of this one" in other.err

"""Experts as large as an engine recorded them, layer by layer, and passes of several tokens: one number, whoever tells it."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from tapes import GEOMETRY, make_tables, make_trace

from tokentape.hw.spec import load, with_values
from tokentape.policies.bits import ByGate
from tokentape.policies.lru import LRU
from tokentape.policies.placement.fixed import PrefillGuided
from tokentape.policies.placement.missed import NearIfRare
from tokentape.policies.serving import Static
from tokentape.policies.slots import System
from tokentape.replay.experts import replay
from tokentape.replay.passes import tokens_of
from tokentape.replay.semantics import Semantics
from tokentape.replay.system.recorded import recorded
from tokentape.replay.system.run import Setting, run
from tokentape.replay.trace import trace_from_tables

SIZED = GEOMETRY.model_copy(update={"recorded_expert_bytes": (2000, 3000, 5400)})
ROOM = 40_000


def lru_system(**policies):
    given = {"schedule": Static(1), "residency": LRU(), **policies}
    return System("lru", given, {"residency": {"budget": f"{ROOM}b", "scope": "global"}})


@pytest.mark.parametrize(
    ("name", "tier", "n"), [("workstation-rtx4090-pcie4", "host", 2), ("phone-lpddr5x-ufs4", "dram", 3), ("h100", "hbm", 6)]
)
def test_a_replay_and_a_system_say_alike_what_no_cost_stands_for(name, tier, n):
    """Experts lie at home, all of them, whatever room their cache has; floats on integers; power; what is not measured."""
    small = with_values(load(name), {f"tiers.{tier}.capacity_bytes": 1e5, "max_w": 1e-6})
    tape = recorded(trace := make_trace(3, n_requests=1))
    ours = replay(trace, LRU(), small, Semantics("global"), ROOM, "bf16")
    made = run(tape, tape.requests(), lru_system(), small, Setting(expert_format="bf16"))
    told = [of.settings["outside_envelope"].replace(", whatever the cache holds", "").split("; ") for of in (ours, made)]
    first, second = ({tuple(sorted(said.replace(", ", ": ").split(": "))) for said in of} for of in told)
    assert first == second
    assert len(first) == n


@pytest.mark.parametrize(
    ("geometry", "policies"),
    [(SIZED, {}), (GEOMETRY, {"precision": ByGate()}), (GEOMETRY, {"place": NearIfRare()}), (SIZED, {"place": NearIfRare()})],
)
def test_what_is_fetched_is_the_same_by_token_prompt_and_iteration(geometry, policies):
    """Of requests that decode nothing, prompts fetch all."""
    trace = make_trace(5, geometry, n_decode=8)
    tape = recorded(trace, trace.told["gate"])
    requests = tape.requests()
    how = Setting(expert_format="recorded" if geometry is SIZED else "bf16")
    for n_output in (1, 6):
        asked = replace(requests, n_output_tokens=np.full(len(requests), n_output))
        made = run(tape, asked, lru_system(**policies), load("phone-lpddr5x-ufs4"), how)
        n_bytes = made.metrics["fetched_bytes_per_token"].value * n_output * len(requests)
        of_prompts = made.metrics["fetched_bytes_per_prompt_token"].value * requests.n_prompt_tokens.sum()
        assert n_bytes > 0
        assert made.timeline["backing_bytes"].sum() == pytest.approx(n_bytes, abs=len(made.timeline["backing_bytes"]))
        assert of_prompts == pytest.approx(n_bytes) if n_output == 1 else of_prompts < n_bytes


def test_a_pass_that_verifies_reads_the_cache_once_and_its_tokens_share_its_time():
    routing, passes = make_tables(2, n_requests=1, n_prompt=10, n_decode=6)
    of_three = (pl.col("pass_id") + 2) // 3  # the prompt, then three tokens at once, twice
    routing = routing.with_columns(of_three.cast(pl.UInt32)).sort("pass_id", "layer", "position")
    passes = pl.DataFrame(
        {"pass_id": [0, 1, 2], "kind": ["prefill", "verify", "verify"], "n_tokens": [10, 3, 3], "request_ids": [[0]] * 3}
    )
    trace = trace_from_tables("t", GEOMETRY, "synthetic", routing, passes)
    tokens = tokens_of(trace, Semantics("global"))
    assert tokens.decodes.tolist() == [0, 1, 1]
    assert tokens.nodes.tolist() == [1, 3, 3]
    assert tokens.context.tolist() == [0, 12, 15], "of the middle one, itself included"
    made = replay(trace, LRU(), load("h100"), Semantics("global"), ROOM, "bf16")
    decode_s = made.timeline["step_s"][1:].sum()
    assert made.request_metrics["tbt_mean_s"].tolist() == pytest.approx([decode_s / 6])
    assert made.metrics["decode_tokens_per_s"].value == pytest.approx(6 / decode_s)


def test_prompts_behind_decodes_and_requests_without_a_prefill():
    routing, passes = make_tables(2, n_requests=2)
    rest = passes.filter((pl.col("kind") == "decode") | (pl.col("pass_id") == 0))
    trace = trace_from_tables(
        "t", GEOMETRY, "synthetic", routing.filter(pl.col("pass_id").is_in(rest["pass_id"].implode())), rest
    )
    made = replay(trace, LRU(), load("h100"), Semantics("global"), ROOM, "bf16")
    assert np.isnan(made.request_metrics["ttft_s"]).tolist() == [False, True]
    routing, passes = make_tables(2, n_requests=1, n_prompt=4, n_decode=6)
    turns = passes.with_columns(kind=pl.when(pl.col("pass_id") == 4).then(pl.lit("prefill")).otherwise("kind"))
    with pytest.raises(
        ValueError, match="tape t: request 0 decodes before its prompt ends, as turns of a chat do; a system runs"
    ):
        recorded(trace_from_tables("t", GEOMETRY, "synthetic", routing, turns))


def test_a_hot_set_across_layers_counts_experts_of_one_size():
    tape = recorded(make_trace(3, SIZED, n_requests=1))
    system = System(
        "hot", {"schedule": Static(1), "place": PrefillGuided()}, {"place": {"budget": f"{ROOM}b", "across_layers": "true"}}
    )
    with pytest.raises(ValueError, match="across_layers counts experts, and this tape's differ in size by layer"):
        run(tape, tape.requests(), system, load("h100-cxl-ndp"), Setting(expert_format="recorded"))

"""The draft slot: recorded rounds in the loop, against plain Python, the expert engine and the clock."""

import numpy as np
import polars as pl
import pytest
from refusing import refuses
from tapes import GEOMETRY

from tokentape.hw import profile as profiles
from tokentape.hw.clock import clock
from tokentape.hw.spec import load
from tokentape.policies.lru import LRU
from tokentape.policies.serving import Chunked
from tokentape.policies.serving import Static as StaticBatches
from tokentape.policies.sliced import ROUTES
from tokentape.policies.slots import System
from tokentape.policies.speculation import POOLS, AsRecorded
from tokentape.replay.experts import look_up, make_cache
from tokentape.replay.passes import fits_of
from tokentape.replay.semantics import Semantics
from tokentape.replay.serving.run import Limits
from tokentape.replay.stream import stream
from tokentape.replay.system.breakdown import breakdown
from tokentape.replay.system.recorded import recorded
from tokentape.replay.system.run import Setting, run, simulate
from tokentape.replay.tokens import Tokens, blocks_of
from tokentape.replay.trace import trace_from_tables
from tokentape.replay.transformer import experts_of, steps_of

N_PROMPT, DEPTH = 6, 3
MADE_BY = {"draft": "elastic", "pool": "hotness", "pool_frac": 0.5, "bits": 4, "static": "slices"}


def tables_of(seed=0, n_requests=3, n_rounds=6, n_experts=8, top_k=2):
    """Chains of DEPTH drafts by nodes 1, 2, ..., the first few of which are accepted; the tables of a speculative tape."""
    rng = np.random.default_rng(seed)
    rows = {"routing": [], "passes": [], "rounds": [], "node_routing": []}

    def a_pass(kind, request, n_tokens):
        rows["passes"].append({"pass_id": len(rows["passes"]), "kind": kind, "n_tokens": n_tokens, "request_ids": [request]})
        return len(rows["passes"]) - 1

    def experts(n):
        return np.sort([rng.choice(n_experts, top_k, replace=False) for _ in range(n)]).tolist()

    for request in range(n_requests):
        at = a_pass("prefill", request, N_PROMPT)
        for layer in GEOMETRY.moe_layers:
            of = {"request_id": request, "layer": layer, "pass_id": at}
            rows["routing"] += [of | {"position": p, "expert_ids": e} for p, e in enumerate(experts(N_PROMPT))]
        position = N_PROMPT
        for number in range(n_rounds):
            n_accepted, of = int(rng.integers(0, DEPTH + 1)), {"request_id": request, "round": number}
            rows["rounds"] += [of | {"layer": layer, "n_accepted": n_accepted} for layer in GEOMETRY.moe_layers]
            for depth in range(DEPTH):
                here = of | {
                    "phase": "draft",
                    "node": depth,
                    "position": position + depth,
                    "pass_id": a_pass("draft", request, 1),
                }
                rows["node_routing"] += [here | {"layer": m, "expert_ids": experts(1)[0]} for m in GEOMETRY.moe_layers]
            at = a_pass("verify", request, DEPTH + 1)
            for layer in GEOMETRY.moe_layers:
                for node, chosen in enumerate(experts(DEPTH + 1)):
                    here = {
                        "request_id": request,
                        "layer": layer,
                        "position": position + node,
                        "pass_id": at,
                        "expert_ids": chosen,
                    }
                    rows["node_routing"].append(here | {"round": number, "phase": "verify", "node": node})
                    rows["routing"] += [here] * (node <= n_accepted)
            position += 1 + n_accepted
    return {name: pl.DataFrame(of) for name, of in rows.items()}


def opened(tables, cut=False):
    """The trace and the tape; cut: its nodes are those of the accepted path alone."""
    trace = trace_from_tables("test", GEOMETRY, "synthetic", tables["routing"], tables["passes"])
    nodes = tables["node_routing"]
    if cut:
        of_round = tables["rounds"].select("request_id", "round", "n_accepted").unique()
        nodes = nodes.join(of_round, on=["request_id", "round"]).filter(pl.col("node") <= pl.col("n_accepted"))
    return trace, recorded(trace, drafted=(MADE_BY, {"rounds": tables["rounds"], "node_routing": nodes}))


def system(schedule, draft, percent=50, max_seqs=1):
    options = {"residency": {"budget": f"{percent}%"}, "schedule": {"max_seqs": str(max_seqs)}}
    return System("test", {"schedule": schedule, "draft": draft, "residency": LRU()}, options)


@pytest.mark.parametrize("seed", range(4))
def test_cut_to_the_accepted_path_lookups_are_those_of_the_expert_engine(seed) -> None:
    trace, tape = opened(tables_of(seed), cut=True)
    wanted, semantics = stream(trace, Semantics("global")), Semantics("global")
    made = simulate(tape, tape.requests(), system(StaticBatches(1), AsRecorded()), load("h100"), logs=wanted.keys.size)
    size = made.slots.budget_bytes
    assert np.array_equal(made.slots.log_keys, wanted.keys)
    assert np.array_equal(made.slots.log_hits, look_up(make_cache(trace, LRU(), semantics, size, "bf16", 0), wanted, semantics))


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_rejected_nodes_are_looked_up_too(batch) -> None:
    """An LRU as a list: in an event the nodes of all requests, distinct, by last mention."""
    tables = tables_of(batch)
    _, tape = opened(tables)
    made = simulate(tape, tape.requests(), system(StaticBatches(batch), AsRecorded(), max_seqs=batch), load("h100"), record=True)
    chosen: dict[tuple[int, int, int], list[int]] = {}
    for row in tables["node_routing"].filter(pl.col("phase") == "verify").iter_rows(named=True):
        chosen.setdefault((row["request_id"], row["round"], row["layer"]), []).extend(row["expert_ids"])
    prompts = {}
    for row in tables["routing"].filter(pl.col("position") < N_PROMPT).iter_rows(named=True):
        prompts.setdefault((row["request_id"], row["layer"]), []).extend(row["expert_ids"])
    used, lookups, hits = [], 0, 0
    for first in range(0, 3, batch):
        group = range(first, min(first + batch, 3))
        for number in range(-1, 6):
            for layer in GEOMETRY.moe_layers:
                mentions = [e for r in group for e in (prompts[r, layer] if number < 0 else chosen[r, number, layer])]
                keys = [(layer, e) for e in dict.fromkeys(reversed(mentions))][::-1]
                lookups, hits = lookups + len(keys), hits + sum(key in used for key in keys)
                used = ([key for key in used if key not in keys] + keys)[-12:]
    total = made.slots.of_iteration.sum(axis=0)
    assert total[:2].tolist() == [lookups, hits]
    accepted = tables["rounds"].unique(["request_id", "round"])["n_accepted"].sum()
    assert made.serving.n_accepted == accepted
    assert made.serving.n_decoded == 18, "a round per iteration and request"


def test_drafts_take_room_in_chunks_and_blocks_and_restarts_decode_plainly() -> None:
    _, tape = opened(tables_of(5, n_requests=6, n_rounds=12))
    setting = Setting(limits=Limits(kv_blocks=14, block_tokens=4))
    made = simulate(tape, tape.requests(), system(Chunked(9), AsRecorded(), 100, 4), load("h100"), setting, record=True).serving
    assert made.n_restarts.sum() > 0
    assert 0 < made.n_accepted < tape.rounds.n_accepted.sum()
    its = made.iterations
    assert np.all((its["n_prefill"] + (1 + DEPTH) * its["n_decode"])[its["n_prefill"] > 0] <= 9 + DEPTH * its["n_decode"].max())
    result = run(tape, tape.requests(), system(Chunked(9), AsRecorded(), 100, 4), load("h100"), setting)
    assert "decoded plainly until its next recorded round" in result.settings["outside_envelope"]


@pytest.mark.parametrize(
    "name", [pytest.param("h100x2", marks=pytest.mark.slow), "workstation-rtx4090-pcie4", "phone-lpddr5x-ufs4"]
)
def test_drafting_costs_what_the_clock_says_of_its_passes(name) -> None:
    machine, tables = load(name), tables_of(7, n_requests=1, n_rounds=1)
    _, tape = opened(tables)
    silent = dict(tables, node_routing=tables["node_routing"].filter(pl.col("phase") == "verify"))
    if name != "workstation-rtx4090-pcie4":  # its fetches are explained in tests/flows/test_system_commands.py
        shares = breakdown(tape, tape.requests(), system(Chunked(64), AsRecorded()), machine)
        assert sum(share.frac for share in shares) == pytest.approx(1.0, rel=1e-9)
        assert sum(share.j_frac for share in shares) == pytest.approx(1.0, rel=1e-9)
        assert next(share.decision for share in shares if share.item == "draft") == "draft"
    seconds = [
        simulate(of, of.requests(), system(Chunked(64), AsRecorded()), machine, record=True).serving.iterations["seconds"][1]
        for of in (tape, opened(silent)[1])
    ]
    blocks, passes = blocks_of(GEOMETRY, by_layer=True), 0.0
    for depth in range(DEPTH):
        nodes = tables["node_routing"].filter((pl.col("phase") == "draft") & (pl.col("node") == depth))
        active = nodes.sort("layer")["expert_ids"].list.len().to_numpy()[None].astype(float)
        n_bytes = active * 4 / 16 * 2.0 * GEOMETRY.expert_params
        experts = experts_of(GEOMETRY, machine, blocks, 1.0, active, active, n_bytes)
        work = steps_of(GEOMETRY, machine, Tokens(decodes=1, context=N_PROMPT + 1 + depth), experts, blocks, "int4")
        passes += float(clock(work, machine, profiles.load("physical"), fits_of(machine, "int4")).seconds.value[0])
    assert seconds[0] - seconds[1] == pytest.approx(passes, rel=1e-9)


def test_what_a_tape_did_not_draft_is_refused_in_one_line() -> None:
    tables = tables_of()
    trace, tape = opened(tables)
    plain = recorded(trace)
    cases = [
        (plain, AsRecorded(), "tape test has no rounds of drafts; capture one with --draft, or leave the draft slot out"),
        (tape, POOLS["lru"](), "drafted with pool hotness, .* under lru cannot be replayed; .* --draft elastic --pool lru$"),
    ]
    for of, draft, said in cases:
        refuses(said, simulate, of, of.requests(), system(StaticBatches(1), draft), load("h100"))
    routed = System("test", {"schedule": StaticBatches(1), "draft": AsRecorded(), "route": ROUTES["cache_prior"]()})
    refuses(r"a router changes them; leave route or draft out|no scores", simulate, tape, tape.requests(), routed, load("h100"))
    named = system(StaticBatches(1), POOLS["hotness"]())
    assert simulate(tape, tape.requests(), named, load("h100")).serving.n_accepted > 0
    nodes = tables["node_routing"].filter((pl.col("round") != 2) | (pl.col("phase") == "draft"))
    refuses("request 0, round 2: the tape has no routing of its verified nodes", opened, dict(tables, node_routing=nodes))

"""A speculative tape replayed: what was recorded comes out again exactly; other pools as the proxies say."""

import numpy as np
import polars as pl
import pytest
from refusing import refuses

pytest.importorskip("torch")

from tokentape.capture import models
from tokentape.capture.run import CaptureSettings, capture
from tokentape.capture.speculation.settings import DraftSettings
from tokentape.hw.spec import load
from tokentape.policies.slots import system_of
from tokentape.policies.speculation import POOLS
from tokentape.replay.elmoe3d.events import of_tape, pool_hits, texts_of
from tokentape.replay.rounds import RoundTape, accepted_lengths
from tokentape.replay.system.drafts import ROUNDS, VERIFIED
from tokentape.replay.system.recorded import recorded as dense
from tokentape.replay.system.run import simulate
from tokentape.replay.trace import trace_from_tables
from tokentape.warehouse.tape import Store

pytestmark = pytest.mark.skipif(
    not (models.EMBEDDED_PATH / "model.safetensors").is_file(), reason="the embedded model's weights are not in this checkout"
)

MASS = "captured_mass_frac"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """recorded(temperature=..., **draft) -> tape and its tables."""
    store = Store(str(tmp_path_factory.mktemp("tapes")))

    def record(temperature=0.0, batch=2, **draft):
        lengths = {"max_requests": 3, "max_prompt_tokens": 48, "max_new_tokens": 12}
        settings = CaptureSettings(
            "embedded", "math", **lengths, batch_size=batch, temperature=temperature, seed=3, speculation=DraftSettings(**draft)
        )
        tape = store.open(capture(settings, store))
        return tape, {name: tape.read(name) for name in tape.manifest.tables}

    return record


def opened(tape, tables):
    m = tape.manifest
    return RoundTape(tape.trace_id, tape.geometry, m.settings, m.score_rule, m.score_params, tables)


DRAFTS = [
    {},
    {"width": 3, "verify_nodes": 5, "pool_frac": 0.3},
    {"temperature": 1.0},
    {"temperature": 1.2, "width": 3, "pool": "lru"},
    {"draft": "quant", "depth": 3},
    {"draft": "ngram", "temperature": 0.7},
    {"draft": "eagle", "temperature": 0.7, "width": 2},
]


@pytest.mark.parametrize("draft", DRAFTS, ids=str)
def test_accepted_lengths_come_out_again(recorded, draft):
    _, tables = recorded(**draft)
    ours = accepted_lengths(tables)
    theirs = tables["rounds"].unique(["request_id", "round"]).sort("request_id", "round")
    assert ours["n_accepted"].to_list() == theirs["n_accepted"].to_list()
    blind = {**tables, "acceptance": tables["acceptance"].with_columns(is_accepted=pl.lit(False))}
    assert accepted_lengths(blind).equals(ours)  # the flags are not what it reads


@pytest.mark.parametrize("draft", [{"width": 3, "verify_nodes": 5, "pool_frac": 0.3}, {"draft": "ngram"}], ids=str)
def test_the_loop_accepts_what_was_accepted(recorded, draft):
    """Every round once, whatever the schedule; and the bytes of rejected nodes beside those of the accepted path alone."""
    tape, tables = recorded(**draft)
    trace = trace_from_tables(tape.trace_id, tape.geometry, "captured", tables["routing"], tables["passes"])
    of = dense(trace, drafted=(tape.manifest.settings["speculation"], tables))
    lengths = accepted_lengths(tables)
    for system in (system_of("lru_offload", {"draft": "recorded"}), system_of("layered", {"draft": "recorded"})):
        made = simulate(of, of.requests(), system, load("workstation-rtx4090-pcie4"))
        rounds, verified = made.slots.drafted[-1][[ROUNDS, VERIFIED]]
        assert rounds == len(lengths)
        assert verified == tables["rounds"].unique(["request_id", "round"])["n_verified"].sum()
        clipped = tables["rounds"].filter(pl.col("bonus_token_id").is_null()).unique(["request_id", "round"]).height
        assert made.serving.n_accepted == lengths["n_accepted"].sum() - clipped, "a last round's accepted draft ends the output"


def test_changed_tokens_are_noticed_and_tapes_without_pools_refused(recorded):
    _, tables = recorded()
    changed = tables["acceptance"].with_columns(draft_token_id=pl.col("draft_token_id") + 1)
    ours = accepted_lengths({**tables, "acceptance": changed})
    assert ours["n_accepted"].sum() < tables["rounds"].unique(["request_id", "round"])["n_accepted"].sum()
    refuses("no pools; capture one", opened, *recorded(draft="quant", depth=3))


@pytest.mark.parametrize("pool", [name for name in POOLS if name != "oracle"])  # whose rehearsals are not on the tape
def test_recorded_pools_come_out_again(recorded, pool):
    of = {"hotness": DRAFTS[1], "lru": DRAFTS[3]}  # captured already
    tape, tables = recorded(**of.get(pool, {"pool": pool, "pool_frac": 0.3, "width": 2}))
    found = opened(tape, tables).replay()
    assert found.fidelity == "exact"
    layers = tape.geometry.moe_layers
    for row in tables["rounds"].iter_rows(named=True):
        key = (row["request_id"] // 2, row["round"], layers.index(row["layer"]))
        assert [ids.tolist() for ids in found.pools[key]] == [row[name] for name in ("pool", "hotness", "next_pool", "entered")]


@pytest.mark.parametrize("batch", [1, 2])
def test_pools_of_elmoe3ds_events_are_those_that_the_tape_recorded(recorded, batch):
    tape, tables = recorded(batch=batch)
    trace = trace_from_tables(tape.trace_id, tape.geometry, "captured", tables["routing"], tables["passes"])
    rounds = of_tape(trace, texts_of(trace), tables, batch)
    slots = len(tables["rounds"]["pool"][0])
    hits, entered = pool_hits(rounds, slots)
    place = {layer: i for i, layer in enumerate(tape.geometry.moe_layers)}
    of = tables["rounds"].with_columns(group=pl.col("request_id") // batch).unique(["group", "round", "layer"])
    keys = of.select("group", "round").unique().sort("group", "round").rows()
    assert len(keys) == len(entered)
    told = dict.fromkeys(keys, 0)
    for group, number, layer, pool, new in of.select("group", "round", "layer", "pool", "entered").iter_rows():
        at = keys.index((group, number))
        seen = np.flatnonzero(rounds.verify[at, place[layer]])
        assert set(np.flatnonzero(hits[at, place[layer]])) == set(seen) & set(pool)
        told[group, number] += len(new)
    assert entered.tolist() == list(told.values())
    accepted = tables["rounds"].unique(["request_id", "round"])
    assert rounds.tokens.sum() == accepted["n_accepted"].sum() + accepted.height


def test_proxies_know_the_whole_and_hotness_captures_more_than_chance(recorded):
    half = opened(*recorded(pool_frac=0.5))
    replay = half.replay
    found = [replay(pool_frac=frac) for frac in (0.25, 0.5, 0.75, 1.0)]
    assert [f.fidelity for f in found] == ["approximate", "exact", "approximate", "approximate"]
    for name in found[0].proxies:
        values = [f.proxies[name] for f in found]
        assert values == sorted(values)
        assert values[-1] == pytest.approx(1.0)
    mass = {pool: replay(pool, 0.375).proxies[MASS] for pool in ("random", "hotness", "oracle")}
    assert mass["random"] < mass["hotness"] <= mass["oracle"]
    half.pool = "oracle"  # as if it had been recorded so
    assert replay().fidelity == "approximate"


def test_the_proxy_of_another_pool_is_near_the_live_one(recorded):
    """The approximation, measured: what a live run with the other pool saw."""
    from_half = opened(*recorded(pool_frac=0.5, bits=0)).replay(pool_frac=0.25)
    live = opened(*recorded(pool_frac=0.25, bits=0)).replay()
    assert from_half.proxies == pytest.approx(live.proxies, abs=0.06)

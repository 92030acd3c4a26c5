"""Systems inside a live model: slots compose, those without strength change nothing, replay decides what the loop does."""

from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import every_family
import numpy as np
import pytest
import torch
from refusing import refuses
from test_kv_cache import requests
from tiny_families import build

from tokentape.capture import models
from tokentape.capture.live.attention import KV
from tokentape.capture.live.loop import Request, Sampling, decode
from tokentape.capture.live.slots import Inside
from tokentape.capture.live.storage import Leaking, Rotated
from tokentape.capture.live.system import SystemTried, evaluate_system
from tokentape.capture.measure import geometry
from tokentape.capture.run import CaptureSettings, capture
from tokentape.capture.speculation.drafters import NgramDrafter, drafter_of
from tokentape.capture.speculation.settings import DraftSettings
from tokentape.flows import system_runs
from tokentape.hw import spec
from tokentape.policies.kv import KV_POLICIES
from tokentape.policies.kv.importance import AEP, AERP
from tokentape.policies.kv.refresh import BitRates, Intervals
from tokentape.policies.kv.storage import QuaRot
from tokentape.policies.kv.streaming import Full
from tokentape.policies.lru import LRU
from tokentape.policies.placement.fixed import PrefillGuided
from tokentape.policies.placement.missed import NearIfRare
from tokentape.policies.serving import Chunked, Layered
from tokentape.policies.sliced import BUDGETS, PRECISIONS, ROUTERS, SlicedCache, SliceMoE
from tokentape.policies.slots import System, of_table, system_of
from tokentape.policies.speculation import Hotness
from tokentape.policies.speculation.tree import Shape
from tokentape.replay.capacity import bytes_of
from tokentape.replay.system.run import Setting, simulate
from tokentape.warehouse.tape import Store

GREEDY = Sampling()
HALF = {"budget": "50%"}
# What the five systems decide, and what each is without strength.
SLOTS = {
    "layered": ({"schedule": Layered(n_max=4, n_lg_rule="fixed")}, {"schedule": Layered(n_max=4, n_lg_rule="fixed")}),
    "kelle": ({"kv": AERP(12, sink=2), "refresh": Intervals()}, {"kv": KV_POLICIES["full"]()}),
    "slicemoe": (
        {"route": SliceMoE(ROUTERS["cache_prior"](0.5), SlicedCache(4, 2), budget=BUDGETS["hard"](0.1), free_steps=1)},
        {"route": SliceMoE(precision=PRECISIONS["high-bit"]())},
    ),
    "cxl_ndp": ({"place": PrefillGuided()}, {"place": PrefillGuided()}),
    "elmoe3d": ({"draft": Hotness(), "residency": LRU()}, {"draft": Hotness(), "residency": LRU()}),
    "near_compute": ({"place": NearIfRare(), "residency": LRU()}, {"place": NearIfRare(), "residency": LRU()}),
}
PAIRS = [pair for pair in combinations(SLOTS, 2) if not SLOTS[pair[0]][0].keys() & SLOTS[pair[1]][0].keys()]
CONTEND = {("slicemoe", name) for name in ("cxl_ndp", "elmoe3d", "near_compute")} | {("cxl_ndp", "elmoe3d")}  # of the pairs


def tried(*names, is_weak=False, **policies):
    filled = {slot: policy for name in names for slot, policy in SLOTS[name][is_weak].items()} | policies
    system = System("made up", filled, {"residency": HALF, "place": HALF, "schedule": {"max_seqs": "3"}})
    return SystemTried(system, "made up", {}, bytes_of, scheme=None if is_weak else "amat", n_items=2, decode_tokens=12)


@pytest.fixture(scope="module")
def prompts(loaded):
    texts = ("def greet(name):\n    return", "Tom has 12 apples and buys 30 more. How many", "import os\n")
    return [Request(i, tuple(loaded.tokenizer(t)["input_ids"]), 6) for i, t in enumerate(texts)]


@pytest.fixture(scope="module")
def plain(loaded, prompts):
    return [o.output_ids for o in decode(loaded.model, prompts, GREEDY, frozenset(), loaded.pad_id)]


def generated(loaded, run, batch):
    with run.inside(loaded, 0) as inside:
        return [o.output_ids for o in decode(loaded.model, batch, GREEDY, frozenset(), loaded.pad_id, inside)], inside


@pytest.mark.embedded
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_every_pair_that_does_not_contend_runs_and_without_strength_changes_nothing(loaded, prompts, plain, pair):
    if pair in CONTEND:
        refuses("filled twice", tried, *pair)
        return
    assert generated(loaded, tried(*pair, is_weak=True), prompts)[0] == plain
    outputs, inside = generated(loaded, tried(*pair), prompts)
    assert [len(ids) for ids in outputs] == [6, 6, 6]
    assert inside.measured


@pytest.mark.embedded
@pytest.mark.parametrize(("third", "policies"), [
    ("slicemoe", {"draft": Hotness()}), ("cxl_ndp", {}),
    pytest.param("slicemoe", {}, marks=pytest.mark.slow),
    pytest.param("cxl_ndp", {"draft": Hotness()}, marks=pytest.mark.slow),
])  # fmt: skip
def test_three_and_elastic_drafts_run_together(loaded, prompts, plain, third, policies):
    names = ("layered", "kelle", third)
    assert generated(loaded, tried(*names, is_weak=True, **policies), prompts)[0] == plain
    _, inside = generated(loaded, tried(*names, **policies), prompts)
    kv = next(slot for slot in inside.slots if isinstance(slot, KV))
    assert 0 < kv.measured["kv_bytes"] <= 4 * 2 * 12 * 64 * 2 * 2
    assert kv.totals["tokens"] == 3 * 5
    if third == "slicemoe":
        assert 0 < inside.measured["miss_frac"] < 1


@pytest.mark.embedded
def test_quality_of_a_system_has_its_interval_against_the_plain_model(loaded, tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_text("".join(f'{{"question": "{i}+{i}=", "answer": "{2 * i}"}}\n' for i in range(2, 5)))
    run = replace(tried("kelle", is_weak=True), n_items=3)
    row, against = evaluate_system(loaded, str(path), run)
    assert (against.difference, against.low, against.high) == (0.0, 0.0, 0.0)
    assert row["accuracy"] == against.plain


@pytest.mark.embedded
def test_a_seed_has_items_of_its_own_or_is_refused_as_windows_beyond_the_context_are(loaded, tmp_path):
    path, run = tmp_path / "few.jsonl", replace(tried("kelle", is_weak=True), n_items=4)
    path.write_text("".join(f'{{"question": "{i}+{i}=", "answer": "{2 * i}"}}\n' for i in range(6)))
    assert evaluate_system(loaded, str(path), run, 1)[0]["n_items"] == 2
    longer = replace(run, prompt_tokens=loaded.source.context)
    for name, of, seed, words in ((path, run, 2, "has 6 items, none for seed 2"), ("code", longer, 0, "exceed the context")):
        refuses(words, evaluate_system, loaded, str(name), of, seed)
    path.write_text(path.read_text() + '{"question": "7"}\n')
    refuses("1 of 7 items have no answer", evaluate_system, loaded, str(path), run, 1)


@pytest.mark.embedded
@pytest.mark.parametrize("names", [("kelle", "slicemoe"), pytest.param(("kelle",), marks=pytest.mark.slow)], ids="+".join)
def test_on_text_a_system_loses_and_has_no_plain_model_beside_it(loaded, tmp_path, names):
    text = tmp_path / "text.txt"
    text.write_text("for i in range(10):\n    print(i)\n" * 60)
    row, against = evaluate_system(loaded, str(text), replace(tried(*names, draft=Hotness()), prompt_tokens=24))
    assert against is None
    assert row["kl"] > 0
    assert row["n_tokens"] == 2 * 11


@pytest.mark.parametrize(("name", "shape"), [
    pytest.param(name, shape, marks=[pytest.mark.slow] * ((i + n) % 2))
    for i, shape in enumerate((Shape(4), Shape(3, 3, 5))) for n, name in enumerate(("Qwen3Moe", "DeepseekV3", "GptOss"))
])  # fmt: skip
def test_drafts_over_an_evicting_cache_that_keeps_all_are_plain_decoding(name, shape):
    model, batch = build(name), requests((9, 12), 14)
    plain = [decode(model, [r], GREEDY, frozenset(), 0, with_nll=True)[0] for r in batch]
    settings = DraftSettings(depth=shape.depth, width=shape.width, verify_nodes=shape.verify_nodes)
    rounds = []
    with Inside(model, KV(model, AEP(None)), drafter=drafter_of(type("Of", (), {"model": model}), settings)) as inside:
        found = decode(model, batch, GREEDY, frozenset(), 0, inside, on_round=rounds.append)
    assert [o.output_ids for o in found] == [o.output_ids for o in plain]
    for ours, theirs in zip(found, plain, strict=True):
        np.testing.assert_allclose(ours.nll, theirs.nll, atol=1e-4)
    assert sum(r.n_accepted for r in rounds) > 0


@pytest.mark.parametrize("policy", [AEP(8, sink=1), AERP(6, sink=1)], ids=["aep", "aerp"])
@pytest.mark.parametrize("name", ["Qwen3Moe", "DeepseekV3", "Mistral"])
def test_without_a_draft_tokens_that_can_be_taken_back_evict_as_others_do(name, policy):
    """The n-gram drafter has nothing to say of a text without repeats: rounds of one token."""
    model, batch = build(name), [Request(0, tuple(range(3, 15)), 12, forced=tuple(range(20, 32)))]
    model.set_attn_implementation("eager")
    direct, tentative = KV(model, policy), KV(model, policy)
    with Inside(model, direct) as inside:
        theirs = decode(model, batch, GREEDY, frozenset(), 0, inside, with_logits=True)[0].logits
        kept = [layer.positions() for layer in direct.current.layers]
    with Inside(model, tentative, drafter=NgramDrafter(97, Shape(2))) as inside:
        ours = decode(model, batch, GREEDY, frozenset(), 0, inside, with_logits=True)[0].logits
        found = [layer.positions() for layer in tentative.current.layers]
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert all(np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(found, kept, strict=True))
    assert tentative.measured == direct.measured


@pytest.mark.embedded
def test_chunks_of_a_prompt_keep_what_the_whole_prompt_keeps(loaded, prompts):
    """Nothing is evicted before a prompt is whole, and attention that chunks pay adds up to that of the prompt."""
    whole, chunked = (tried("kelle", refresh=None, schedule=s) for s in (Layered(), Chunked(5)))
    (a, inside_a), (b, inside_b) = (generated(loaded, run, prompts) for run in (whole, chunked))
    assert a == b
    assert inside_a.measured == pytest.approx(inside_b.measured)


@pytest.fixture(scope="module")
def recall(tmp_path_factory):
    """A store and its tape."""
    store = Store(str(tmp_path_factory.mktemp("recall") / "store"))
    return store, capture(CaptureSettings("embedded", "recall", max_requests=4, max_new_tokens=12, device="cpu"), store)


def same_lookups(loaded, store, trace_id, system):
    """Replay and model look up the same, one by one, and hit the same; what both counted."""
    tape = system_runs.tape_of(store, trace_id, None)
    machine = spec.load("h100-cxl-ndp")
    replayed = simulate(tape, tape.requests(), system, machine, Setting(expert_format="bf16"), logs=1 << 16, record=True)

    tokens = Store(store.uri).open(trace_id).read("tokens")
    batch = []
    for i, n in enumerate(tape.n_prompt):
        ids = tokens.filter(tokens["request_id"] == i).sort("position")["token_id"].to_list()
        batch.append(Request(i, tuple(ids[:n]), len(ids) - n + 1, forced=(*ids[n:], 0)))
    run = SystemTried(system, "mine", {}, bytes_of)
    _, inside = generated(loaded, run, batch)
    (slot,) = inside.slots
    n_experts = slot.n_experts
    keys = np.concatenate([index * n_experts + k[~near] for index, k, near, _ in slot.log])
    hits = np.concatenate([hit for *_, hit in slot.log])
    n = keys.size
    assert np.array_equal(replayed.slots.log_keys[:n], keys)
    assert np.array_equal(replayed.slots.log_hits[:n], hits)
    assert slot.totals["n_lookups"] == n == int(replayed.slots.of_iteration[:, 0].sum())
    assert slot.totals["n_away"] == int(replayed.slots.of_iteration[:, 2].sum())
    return slot.totals


@pytest.mark.embedded
@pytest.mark.parametrize("schedule", ["static", "orca", "layered", "chunked"])
def test_a_policy_from_a_file_decides_in_replay_what_it_decides_in_the_model(loaded, recall, schedule):
    """docs/examples/my_placement.py beside an LRU cache: the same lookups and hits, one by one, and as many experts away."""
    store, trace_id = recall
    cut = {"chunked": "schedule.chunk_tokens=48", "layered": "schedule.n_max=3"}.get(schedule)
    changes = {"schedule": schedule} | dict([cut.split("=")] if cut else []) | {"schedule.max_seqs": "3"}
    system = system_of("docs/examples/my_system.toml", changes)
    assert same_lookups(loaded, store, trace_id, system)["n_away"] > 0


@pytest.mark.parametrize(("family", "changes"), [
    ("DeepseekV3", {"residency": "lru"}),
    ("Qwen3Moe", {"residency": "hysteresis", "place": "near_if_rare", "schedule": "static", "schedule.max_seqs": "3"}),
])  # fmt: skip
def test_experts_in_a_routers_own_order_and_events_without_lookups_count_as_on_a_tape(model_folder, store, family, changes):
    settings = CaptureSettings(
        model_folder(family), "math", max_requests=4, max_prompt_tokens=12, max_new_tokens=16, temperature=1.0
    )
    system = system_of("lru_offload", changes | {"residency.budget": "50%", "residency.scope": "global"})
    loaded = models.load(models.find(settings.model), "cpu")
    assert same_lookups(loaded, store, capture(replace(settings, device="cpu"), store), system)["n_lookups"] > 0


@pytest.mark.embedded
def test_room_is_the_same_in_bytes_and_experts_and_nothing_looked_up_misses_nothing(loaded, prompts):
    n_bytes = 8 * sum(geometry(loaded.model).expert_bytes("recorded"))
    for budget in (f"{n_bytes}B", f"{8 * len(geometry(loaded.model).moe_layers)} experts"):
        run = SystemTried(system_of("prefill_guided", {"place.budget": budget}), "hot", {}, bytes_of)
        assert run.inside(loaded).slots[0].policy.hot == 8
    _, inside = generated(loaded, SystemTried(system_of("ktransformers"), "near", {}, bytes_of), prompts)
    assert inside.measured["miss_frac"] == 0


def test_what_cannot_run_inside_a_model_is_refused_in_one_line(loaded):
    for policies, words in (
        ({"residency": system_of("lru_offload", {"residency": "belady"}).residency}, "runs over a tape"),
        ({"prefetch": system_of("lru_prefetch").prefetch, "residency": LRU()}, "slot prefetch: it moves experts in time"),
        ({"residency": system_of("lru_offload", {"residency": "gate-weighted"}).residency}, "reads gate of lookups"),
        ({"precision": system_of("prefill_guided_3bit").precision, "place": NearIfRare()}, "add place = prefill_guided"),
        ({"precision": system_of("prefill_guided_3bit").precision, "place": PrefillGuided()}, "give --param losses=TRACE"),
    ):
        refuses(words, tried(**policies).inside, loaded)
    for system, words in (
        (system_of("shared_room"), "slot residency: share_kv is heeded over a tape only"),
        (system_of("prefill_guided", {"place.across_layers": "true"}), "slot place: across_layers is heeded over a tape only"),
        (system_of("lru_offload", {"residency.scope": "gobal"}), "residency.scope 'gobal' is unknown"),
        (system_of("lru_offload", {"residency.budget": "1 experts"}), "is below one layer's event, top-k = 4"),
        (system_of("lru_offload", {"schedule.max_seqs": "0"}), "schedule.max_seqs 0 must be a whole number of at least 1"),
        (system_of("no_offload", {"place": "near_if_rare"}), "none is missing; add residency"),
        (system_of("slicemoe", {"place": "near_if_rare"}), "placements move whole experts; leave place out"),
        (system_of("slicemoe", {"residency.scope": "per-layer"}), "leave residency.scope out"),
    ):
        refuses(words, SystemTried(system, "mine", {}, bytes_of).inside, loaded)
    for name in ("slicemoe", "lru_offload"):
        run = SystemTried(system_of(name), "mine", {}, bytes_of)
        refuses("how many bytes they are cannot be told", run.inside, SimpleNamespace(model=every_family.build("dbrx")))
    slot = SystemTried(of_table("mine", {"kv": {"policy": "random", "seed": 5}}), "mine", {}, bytes_of).kv(loaded, 2)
    assert slot.policy.seed == 7  # a seed of its own moves on with that of the run


@pytest.mark.parametrize(("given", "policy", "storage"), [
    ({"refresh": {"policy": "2drp"}}, Full(), Leaking(BitRates.of(Intervals()))),
    ({"refresh": {"policy": "uniform", "interval_us": 900.0}, "kv": {"policy": "aep", "budget": 12, "storage": "fp16"}},
     AEP(12), Leaking(BitRates.of(Intervals.uniform(900.0)), "fp16")),
    ({"kv": {"storage": "int16-twos", "rate": "1e-3", "resample": "true"}},
     Full(), Leaking(BitRates.uniform(1e-3), "int16-twos", resample=True)),
    ({"kv": {"storage": "quarot", "bits": 3}}, Full(), Rotated(QuaRot(3))),
])  # fmt: skip
def test_storage_and_refresh_of_a_systems_file_run_inside_the_model(loaded, given, policy, storage):
    slot = SystemTried(of_table("mine", given), "mine", {}, bytes_of, n_items=2, decode_tokens=12).kv(loaded, 0)
    assert (slot.policy, slot.storage) == (policy, storage)


@pytest.mark.parametrize(("given", "words"), [
    ({"refresh": {"policy": "2drp"}, "kv": {"storage": "quarot"}}, "quarot loses no bits"),
    ({"refresh": {"policy": "2drp"}, "kv": {"storage": "int16", "rate": "0"}}, "slot refresh: kv.rate says already"),
    ({"kv": {"storage": "int8"}}, "storage 'int8' is unknown"),
    ({"kv": {"policy": "h2o", "budget": 8, "bits": 2}}, "slot kv: bits has no effect on storage plain"),
])  # fmt: skip
def test_storage_that_cannot_be_is_refused_before_a_model_is_loaded(given, words):
    refuses(words, SystemTried, of_table("mine", given), "mine", {}, bytes_of)

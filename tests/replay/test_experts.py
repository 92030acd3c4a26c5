"""The expert engine: conservation, determinism, the LRU curve against single replays, peers, and an engine's own records."""

import csv
import itertools
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from refusing import refuses
from tapes import GEOMETRY, make_tables, make_trace

from bench.peer import peer_miss_ratio
from tokentape.capture.importers.bigmoe import import_bigmoe
from tokentape.hw.spec import load
from tokentape.policies.cache import ExpertCache
from tokentape.policies.residency import CACHES, Static
from tokentape.replay import trace as trace_file
from tokentape.replay.capacity import parse_capacity, total_expert_bytes
from tokentape.replay.curve import lru_curve, stack_distances
from tokentape.replay.experts import look_up, looked_up, make_cache, replay, replay_all_capacities
from tokentape.replay.result import tables_of
from tokentape.replay.semantics import CHOICES, Semantics
from tokentape.replay.stream import stream
from tokentape.replay.trace import trace_from_tables, without_rows
from tokentape.replay.verify import verify
from tokentape.warehouse.tape import Store

PHONE = load("phone-lpddr5x-ufs4")
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces" / "bigmoeonedge"
EVERY_SEMANTICS = [
    Semantics(**words)
    for words in (dict(zip(CHOICES, chosen, strict=True)) for chosen in itertools.product(*CHOICES.values()))
    if words["lookup"] == "atomic" or words["recency"] == "list-order"
]

KINDS = {"": ("prefill", "decode"), "_prefill": ("prefill",), "_decode": ("decode",)}


def total(passes, name):
    return sum(float(p[name]) for p in passes)


@pytest.mark.parametrize("every", [18, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(CACHES))
def test_conservation_and_determinism(name, every):
    trace, same = make_trace(seed=3), make_trace(seed=3)
    capacity = parse_capacity("60%", trace.geometry, "int8-g32")
    size = trace.geometry.expert_bytes("int8-g32")[0]
    at = list(CACHES).index(name)
    for n, semantics in enumerate(EVERY_SEMANTICS):
        if n % every != at % every:  # a policy or six for each; whether it hits is the oracle's question, in tests/policies
            continue
        result = replay(trace, CACHES[name](), PHONE, semantics, capacity)
        m = {key: metric.value for key, metric in result.metrics.items()}
        assert m["backing_bytes"] == (m["n_lookups"] - m["n_hits"]) * size
        line = result.timeline
        assert line["n_lookups"].sum() == m["n_lookups"]
        assert line["backing_bytes"].sum() == m["backing_bytes"]
        assert np.isclose(line["step_s"].sum(), m["total_s"])
        assert np.isclose(line["energy_j"].sum(), m["total_energy_j"])
        assert np.isclose(result.request_metrics["request_energy_j"].sum(), m["total_energy_j"])
        assert np.all(line["step_s"] >= line["backing_bytes"] / PHONE.tiers["flash"].peak_bytes_per_s.value)
        assert np.all(np.diff(line["start_s"]) > 0)
        for metric in result.metrics.values():
            if metric.low is not None:
                assert metric.low <= metric.value <= metric.high
        if n % 4 != at % 4:
            continue
        again = replay(same, CACHES[name](), PHONE, semantics, capacity)
        for table, rows in tables_of({"id": result}, "test", {"id": None}).items():
            assert rows.equals(tables_of({"id": again}, "test", {"id": None})[table]), table


@pytest.mark.parametrize("capacity", ["20%", "100%"])  # of one of them some parts of the tape miss nothing
@pytest.mark.parametrize("fetching", CHOICES["fetching"])
def test_a_tape_costs_the_same_part_by_part(fetching, capacity, monkeypatch):
    found = []
    for cells in (trace_file.CELLS, 3 * 5):  # all at once; five passes of three layers
        monkeypatch.setattr(trace_file, "CELLS", cells)
        trace = make_trace(seed=3)
        room = parse_capacity(capacity, trace.geometry, "int8-g32")
        found.append(replay(trace, CACHES["lru"](), PHONE, Semantics("global", fetching=fetching), room))
    assert len([*trace.parts]) == 13
    whole, parts = found
    assert {name: metric.value for name, metric in parts.metrics.items()} == pytest.approx(
        {name: metric.value for name, metric in whole.metrics.items()}, rel=1e-12
    )
    for name, values in whole.timeline.items():
        assert values.tolist() == (parts.timeline[name].tolist() if name == "kind" else pytest.approx(parts.timeline[name]))


@pytest.mark.parametrize("start", CHOICES["start"])
@pytest.mark.parametrize("name", CACHES)
def test_a_tape_is_looked_up_the_same_part_by_part(name, start, monkeypatch):
    found = []
    for cells in (trace_file.CELLS, 3 * 5):
        monkeypatch.setattr(trace_file, "CELLS", cells)
        trace = make_trace(seed=3)
        room = parse_capacity("40%", trace.geometry, "int8-g32")
        parts = looked_up(trace, CACHES[name](), Semantics("global", start=start), room, "int8-g32", 5)
        found.append(np.concatenate([of for *_, of in parts], axis=1))
    assert np.array_equal(*found)


@pytest.mark.parametrize("prefill", CHOICES["prefill"])
def test_a_tape_that_is_read_part_by_part_gives_the_same_bytes(prefill, monkeypatch):
    routing, passes = make_tables(seed=3)
    for cells, tokens in ((3 * 5, 7), (1 << 16, 1 << 16)):
        monkeypatch.setattr(trace_file, "CELLS", cells)
        monkeypatch.setattr(trace_file, "TOKENS", tokens)
        whole = made_of(trace_from_tables("t", GEOMETRY, "synthetic", routing, passes), prefill)
        for n in (1, 11, len(routing)):
            frames = partial(routing.iter_slices, n)
            assert made_of(without_rows("t", GEOMETRY, "synthetic", passes, frames), prefill) == whole


def made_of(trace, prefill):
    room = parse_capacity("40%", trace.geometry, "int8-g32")
    result = replay(trace, CACHES["lru"](), PHONE, Semantics("global", prefill=prefill), room)
    return tables_of({"id": result}, "test", {"id": None})


def test_metrics_and_requests_are_what_the_passes_add_up_to():
    trace = make_trace(seed=3)
    result = replay(trace, CACHES["lru"](), PHONE, Semantics("global"), parse_capacity("60%", trace.geometry, "int8-g32"))
    passes = [{name: values[i] for name, values in result.timeline.items()} for i in range(trace.pass_ids.size)]
    by_kind = {kind: [p for p in passes if p["kind"] in kinds] for kind, kinds in KINDS.items()}
    expected = {
        **{f"hit_frac{kind}": total(of, "n_hits") / total(of, "n_lookups") for kind, of in by_kind.items()},
        "decode_step_s": total(by_kind["_decode"], "step_s") / len(by_kind["_decode"]),
        "decode_step_p99_s": np.quantile([p["step_s"] for p in by_kind["_decode"]], 0.99),
        "decode_energy_j_per_token": total(by_kind["_decode"], "energy_j") / total(by_kind["_decode"], "n_tokens"),
        "decode_tokens_per_s": total(by_kind["_decode"], "n_tokens") / total(by_kind["_decode"], "step_s"),
        "prefill_s": total(by_kind["_prefill"], "step_s"),
    }
    assert {name: result.metrics[name].value for name in expected} == pytest.approx(expected, rel=1e-12)
    said, all_experts = result.settings, trace.n_keys * trace.geometry.expert_bytes("int8-g32")[0]
    assert said["capacity_frac"] == pytest.approx(said["capacity_bytes"] / all_experts)
    assert said["capacity_experts"] == pytest.approx(said["capacity_frac"] * trace.n_keys)
    rate = result.metrics["decode_tokens_per_s"]
    assert rate.low < rate.value < rate.high

    bounds = trace.member_offsets
    members = [trace.members[bounds[i] : bounds[i + 1]] for i in range(len(passes))]
    for i, request in enumerate(result.request_metrics["request_id"]):
        mine = [(p, len(of)) for p, of in zip(passes, members, strict=True) if request in of]
        decoded = [p["step_s"] for p, _ in mine if p["kind"] == "decode"]
        found = {name: values[i] for name, values in result.request_metrics.items()}
        assert found["ttft_s"] == pytest.approx(sum(p["step_s"] for p, _ in mine if p["kind"] == "prefill"))
        assert found["tbt_mean_s"] == pytest.approx(np.mean(decoded))
        assert found["request_energy_j"] == pytest.approx(sum(p["energy_j"] / batch for p, batch in mine))


@pytest.mark.parametrize("lookup", CHOICES["lookup"])
@pytest.mark.parametrize("start", CHOICES["start"])
@pytest.mark.parametrize("scope", CHOICES["scope"])
def test_the_curve_equals_one_replay_per_capacity(scope, start, lookup):
    trace = make_trace(seed=7, n_decode=40)
    semantics = Semantics(scope, lookup=lookup, start=start)
    layers, experts = len(GEOMETRY.moe_layers), GEOMETRY.n_experts
    curve = lru_curve(stream(trace, semantics), semantics, layers, experts)
    size = trace.geometry.expert_bytes("fp16")[0]
    for capacity, hits in zip(curve.capacity_experts, curve.n_hits, strict=True):
        if scope == "per-layer" and capacity < GEOMETRY.top_k * layers:
            continue  # refused by the engine: hits would depend on the order within a token
        result = replay(trace, CACHES["lru"](), PHONE, semantics, int(capacity) * size, "fp16")
        assert result.metrics["n_hits"].value == hits, capacity
    assert np.all(np.diff(curve.n_hits) >= 0)
    rows = tables_of({"id": replay_all_capacities(trace, semantics)}, "test", {"id": None})["curves"].to_pylist()
    assert [row["value"] for row in rows if row["metric"] == "n_hits"] == curve.n_hits.tolist()


@pytest.mark.parametrize("per_event", [1, 3])
def test_stack_distances_equal_a_plain_stack_where_the_axis_is_renumbered(per_event):
    """8,000 lookups of 1,300 keys: three blocks of positions, filled and renumbered more than once."""
    rng, n_keys = np.random.default_rng(per_event), 1300
    drawn = [np.unique(np.minimum(rng.geometric(0.003, per_event), n_keys) - 1) for _ in range(8000 // per_event)]
    keys, found = np.concatenate(drawn).astype(np.int32), np.zeros(n_keys + 1, np.int64)
    offsets = np.cumsum([0, *map(len, drawn)]) if per_event > 1 else np.zeros(0, np.int64)
    stack_distances(keys, offsets, n_keys, found)
    stack, expected = [], np.zeros(n_keys + 1, np.int64)  # last used first
    for event in (of.tolist() for of in drawn):
        for key in event:
            expected[stack.index(key) + 1 if key in stack else 0] += 1
        stack = event[::-1] + [key for key in stack if key not in event]
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("scope", CHOICES["scope"])
def test_recency_within_an_event_is_the_caches(scope):
    """In either order it is held to an oracle in tests/policies."""
    trace, made = make_trace(seed=11, n_decode=60), []
    for recency in CHOICES["recency"]:
        semantics = Semantics(scope, recency=recency)
        cache = make_cache(trace, CACHES["lru"](), semantics, 9 * trace.geometry.expert_bytes("fp16")[0], "fp16", 0)
        result = replay(trace, CACHES["lru"](), PHONE, semantics, 9 * trace.geometry.expert_bytes("fp16")[0], "fp16")
        made.append((cache.hits_first, result.settings["recency"], result.metrics["n_hits"].value))
    assert [of[:2] for of in made] == [(False, "list-order"), (True, "hits-first")]
    assert made[0][2] != made[1][2]


def test_a_curve_of_hits_first_or_of_what_is_kept_is_refused():
    only = ({"recency": "hits-first"}, "list-order only; leave lru_curve out"), ({"overflow": "keep"}, "overflow evict only")
    for words, said in only:
        refuses(said, replay_all_capacities, make_trace(), Semantics("global", **words))


def decode_like_keys(seed, n_tokens=3000, n_layers=6, n_experts=32, k=4, sticky=0.5):
    rng = np.random.default_rng(seed)
    previous, keys = [rng.choice(n_experts, k, replace=False) for _ in range(n_layers)], []
    for _ in range(n_tokens):
        for layer in range(n_layers):
            fresh = rng.choice(n_experts, k, replace=False)
            kept = previous[layer][rng.random(k) < sticky]
            previous[layer] = np.concatenate((kept, fresh[~np.isin(fresh, kept)]))[:k]
            keys.append(previous[layer] + layer * n_experts)
    return np.concatenate(keys).astype(np.int32)


TRACES = {
    "zipf": lambda: (np.minimum(np.random.default_rng(1).zipf(1.2, 60_000), 500) - 1).astype(np.int32),
    "decode": lambda: decode_like_keys(2),
    "scan-and-loop": lambda: (np.arange(60_000) % 150 + np.random.default_rng(3).integers(0, 60, 60_000)).astype(np.int32),
}


@cache
def made_once(trace):
    return TRACES[trace]()


@pytest.mark.parametrize("trace", list(TRACES))
@pytest.mark.parametrize("policy", ["lru", "lfu", "sieve", "slru", "s3-fifo", "arc", "gdsf", "belady"])
def test_miss_ratios_equal_libcachesim(policy, trace):
    pytest.importorskip("libcachesim")
    keys = made_once(trace)
    n_keys = int(keys.max()) + 1
    for share in (0.1, 0.4):
        smallest = 20 if policy == "s3-fifo" else 8  # below, libCacheSim's small queue holds nothing and all misses
        capacity = max(smallest, int(share * n_keys))
        cache = ExpertCache(
            CACHES[policy](), np.ones(n_keys, np.int64), np.zeros(n_keys, np.int32), np.array([capacity], np.int64)
        )
        ours = 1.0 - cache.advance(keys).mean()
        assert round(ours, 6) == round(peer_miss_ratio(keys, policy, capacity), 6)


CURVES = {
    "lru": ("lru", "global"),
    "belady": ("belady", "global"),
    "lfu": ("lfu-lifetime", "global"),
    "layer": ("lru", "per-layer"),
    "layerlfu": ("lfu-lifetime", "per-layer"),
}


@pytest.mark.skipif(not SHARED.exists(), reason="the BigMoeOnEdge traces are not beside the project")
@pytest.mark.parametrize(
    ("name", "n_rows", "n_hits", "n_lookups"), [("qwen", 36864, 29597, 39526), ("gemma", 23040, 18872, 24578)]
)
def test_an_engines_own_residency_and_published_curves(name, n_rows, n_hits, n_lookups, tmp_path):
    store = Store(str(tmp_path))
    tape = store.open(import_bigmoe(SHARED / f"{name}.route.csv", store))
    routing = tape.read("routing")
    trace = trace_from_tables(tape.trace_id, tape.geometry, "imported", routing, tape.read("passes"))
    recorded = routing["residency"].explode().to_numpy().astype(np.uint8)
    found = verify(trace, recorded, 4000 * 2**20)
    assert (found.n_decode_rows, found.n_agree, found.n_hits, found.n_lookups) == (n_rows, n_rows, n_hits, n_lookups)
    n_compared = 0
    for row in csv.DictReader((SHARED / f"{name}-curve.csv").open()):
        if row["policy"] not in CURVES:
            continue
        policy, scope = CURVES[row["policy"]]
        semantics = Semantics(scope, overflow="keep")
        got = replay(trace, CACHES[policy](), PHONE, semantics, int(row["budget_mib"]) * 2**20, "recorded").metrics
        assert f"{100 * got['hit_frac'].value:.3f}" == row["hit_pct_cum"], row
        assert f"{100 * got['hit_frac_decode'].value:.3f}" == row["hit_pct_decode"], row
        assert f"{got['backing_bytes'].value / 2**20:.1f}" == row["read_mib"], row
        n_compared += 1
    assert n_compared == 55


def test_negative_verify_notices_a_wrong_budget_and_a_flipped_row():
    trace = make_trace()
    geometry = trace.geometry.model_copy(update={"recorded_expert_bytes": (100, 100, 100)})
    trace = make_trace(geometry=geometry)
    semantics = Semantics("global", overflow="keep")
    lookups = stream(trace, semantics)
    cache = ExpertCache(
        CACHES["lru"](), np.full(24, 100, np.int64), np.zeros(24, np.int32), np.array([1200], np.int64), keep_overflow=True
    )
    hits = cache.advance(lookups.keys, lookups.offsets)
    recorded = np.zeros(trace.ids.size, np.uint8)
    is_decode = np.repeat(trace.pass_kind[trace.row_pass] == 1, np.diff(trace.offsets))
    recorded[is_decode] = hits[np.repeat(trace.pass_kind[lookups.event_pass] == 1, np.diff(lookups.offsets))]
    assert verify(trace, recorded, 1200).first_difference is None
    assert verify(trace, recorded, 1000).first_difference is not None
    recorded[np.flatnonzero(is_decode)[17]] ^= 1
    found = verify(trace, recorded, 1200)
    assert (found.first_difference, found.n_decode_rows - found.n_agree) == (17, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("50%", 0.5), ("12 experts", 0.5), ("24experts", 1.0), ("0.0001 GB", None), ("64KiB", None)],
)
def test_capacities_as_people_write_them(text, expected):
    total = total_expert_bytes(GEOMETRY, "fp16")
    got = parse_capacity(text, GEOMETRY, "fp16")
    assert got == {"0.0001 GB": 10**5, "64KiB": 65536}.get(text, round(total * (expected or 0)))


@pytest.mark.parametrize(("text", "message"), [("0%", "zero"), ("5 apples", "unit 'apples' is unknown")])
def test_bad_capacities_are_named(text, message):
    refuses(message, parse_capacity, text, GEOMETRY, "fp16")


def test_static_sees_no_profile_before_its_window_has_passed():
    trace = make_trace(seed=5, n_requests=1, n_prompt=4, n_decode=100)
    semantics, size = Semantics("global"), trace.geometry.expert_bytes("fp16")[0]
    lookups = stream(trace, semantics)
    window = round(0.5 * (lookups.offsets.size - 1))
    first = lookups.offsets[window]
    hits = {
        frac: look_up(make_cache(trace, Static(frac), semantics, 8 * size, "fp16", 0), lookups, semantics)
        for frac in (0.5, 0.999, 1.0)
    }
    assert hits[0.5][:first].tolist() == hits[0.999][:first].tolist()  # before any window ends both are the same cache
    assert hits[1.0][:first].sum() > hits[0.5][:first].sum()  # the oracle knows from the start
    assert hits[0.5][first:].mean() > hits[0.999][first:].mean()


@pytest.mark.parametrize("frac", [0.25, 0.5, 1.0])
def test_static_counts_its_share_of_the_events_to_the_last_of_them(frac):
    trace, semantics = make_trace(seed=5, n_requests=1, n_prompt=4, n_decode=5), Semantics("global")
    lookups = stream(trace, semantics)
    cache = make_cache(trace, Static(frac), semantics, 8 * trace.geometry.expert_bytes("fp16")[0], "fp16", 0)
    look_up(cache, lookups, semantics)
    events = [lookups.keys[a:b] for a, b in itertools.pairwise(lookups.offsets)]
    assert len(events) == 6 * 3
    counted = np.concatenate(events[: round(frac * len(events))])
    assert cache.profile.tolist() == [np.count_nonzero(counted == key) for key in range(trace.n_keys)]


def test_overlapped_fetches_are_never_slower_and_do_not_depend_on_the_lookup_rule():
    """Where all hits agree, serial and atomic lookup cost the same: the rule decides hits, not how reads are queued."""
    trace = make_trace()
    everything = total_expert_bytes(trace.geometry, "int4")
    seconds = [
        replay(trace, CACHES["lru"](), PHONE, Semantics("global", lookup=lookup), everything, "int4").metrics["total_s"].value
        for lookup in CHOICES["lookup"]
    ]
    assert seconds[0] == seconds[1]
    trace = make_trace()
    blocking, overlapped = (
        replay(trace, CACHES["lru"](), PHONE, Semantics("global", fetching=fetching), 10**5).metrics
        for fetching in CHOICES["fetching"]
    )
    assert overlapped["total_s"].value < blocking["total_s"].value
    assert overlapped["n_hits"] == blocking["n_hits"]

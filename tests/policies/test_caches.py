"""Cache policies against an obvious oracle, properties of the literature, golden counts, and where a method must lose."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import WITH_MEMORY, gate_of, obvious_hits
from refusing import refuses

from tokentape.policies.cache import ExpertCache
from tokentape.policies.residency import CACHES, LRU, GateWeighted, Hysteresis, RandomVictim, Static
from tokentape.policies.scan_resistant import Sieve

DETERMINISTIC = [name for name in CACHES if name != "random"]
BOUNDS = ["belady", "belady-bypass"]


def flat(events, first=0):
    """Keys, bounds and gates of events, which are counted from `first`."""
    keys = np.array([k for event in events for k in event], np.int32)
    gates = np.array([gate_of(first + now, k) for now, event in enumerate(events) for k in event], np.float32)
    return keys, np.concatenate(([0], np.cumsum([len(event) for event in events]))).astype(np.int64), gates


def run(policy, events, sizes, capacity, *, serial=False, profile=None, n_layers=1, **options):
    """Hits of one global cache over events (lists of keys)."""
    sizes = np.asarray(sizes, np.int64)
    cache = ExpertCache(
        CACHES[policy]() if isinstance(policy, str) else policy,
        sizes,
        np.zeros(sizes.size, np.int32),
        np.array([capacity], np.int64),
        profile=profile,
        n_layers=n_layers,
        **options,
    )
    keys, offsets, gates = flat(events)
    return cache.advance(keys, None if serial else offsets, gates), cache


def random_events(rng, n_events, n_keys, k):
    """Events of k distinct keys with the skew and the recency that routing has."""
    weights = 1.0 / np.arange(1, n_keys + 1)
    events, previous = [], np.zeros(0, np.int64)
    for _ in range(n_events):
        boost = weights.copy()
        boost[previous] *= 4
        previous = rng.choice(n_keys, k, replace=False, p=boost / boost.sum())
        events.append(previous.tolist())
    return events


@cache
def events_of(seed):
    return random_events(np.random.default_rng([seed, 0]), 60, 12, 1 + seed % 4)


tapes = st.integers(0, 199).map(lambda seed: (np.random.default_rng([seed, 1]), events_of(seed)))


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("policy", DETERMINISTIC)
@given(tape=tapes, capacity=st.integers(4, 14), unit=st.booleans(), keep=st.booleans(), engine=st.booleans())
@settings(max_examples=30, deadline=None)
def test_lookups_equal_the_oracle_event_by_event(policy, serial, tape, capacity, unit, keep, engine):
    """Atomic ones in either recency, whether what does not fit leaves or is kept; one by one neither plays a part."""
    rng, events = tape
    events = [[key] for event in events for key in event] if serial else events
    sizes = np.ones(12, np.int64) if unit else rng.integers(1, 4, 12)
    profile = rng.integers(0, 5, 12).astype(float)
    options = {} if serial else {"keep_overflow": keep, "hits_first": engine}
    hits, cache = run(policy, events, sizes, capacity - serial, serial=serial, profile=profile, **options)
    assert hits.tolist() == obvious_hits(policy, events, sizes, capacity - serial, profile, **options)
    if policy not in BOUNDS and not options.get("keep_overflow"):
        assert sizes[cache.resident].sum() == cache.used[0] <= capacity


@pytest.mark.parametrize("policy", WITH_MEMORY)
@given(tape=tapes, capacity=st.integers(4, 20), unit=st.booleans(), keep=st.booleans())
@settings(max_examples=30, deadline=None)
def test_where_layers_take_turns_the_oracle_agrees(policy, tape, capacity, unit, keep):
    rng, events = tape
    events = [[k + 12 * (now % 3) for k in event] for now, event in enumerate(events)]
    sizes = np.ones(36, np.int64) if unit else rng.integers(1, 4, 36)
    hits, _ = run(policy, events, sizes, capacity, keep_overflow=keep, n_layers=3)
    assert hits.tolist() == obvious_hits(policy, events, sizes, capacity, None, keep, n_layers=3)


def test_gates_that_halve_are_those_of_the_definition():
    """Masses at one time, each halved since its last use, and not the order that the rank keeps instead."""
    rng = np.random.default_rng(3)
    events = random_events(rng, 300, 12, 3)
    hits, _ = run(GateWeighted(half_life_passes=7.0), events, np.ones(12), 5)
    mass, used, resident, found = {}, {}, set(), []
    for now, event in enumerate(events):
        found += [int(k in resident) for k in event]
        for k in event:
            mass[k] = mass.get(k, 0.0) * 0.5 ** ((now - used.get(k, -1)) / 7) + gate_of(now, k)
            used[k] = now
        resident |= {*event}
        while len(resident) > 5:
            resident.remove(min(resident - {*event}, key=lambda k: mass[k] * 0.5 ** ((now - used[k]) / 7)))
    assert hits.tolist() == found


def test_pins_hold_until_the_count_falls_below_the_lower_threshold():
    """Four uses pin expert 0; a scan does not drive it out for the 16 log2(3.9 / 2) = 15 events that it takes to fall to 2."""
    policy, scan = Hysteresis(upper=3.0, lower=2.0, half_life_passes=16.0), [[1 + i % 8] for i in range(40)]
    stays = [run(policy, [[0]] * 4 + scan[:n] + [[0]], np.ones(9), 4, serial=True)[0][-1] for n in range(4, 30)]
    assert run("lru", [[0]] * 4 + scan[:4] + [[0]], np.ones(9), 4, serial=True)[0][-1] == 0
    assert stays == sorted(stays, reverse=True)
    assert 8 < sum(stays) < 20
    events = random_events(np.random.default_rng(0), 200, 12, 2)
    never, lru = (run(name, events, np.ones(12), 5)[0].tolist() for name in (Hysteresis(upper=1e9, lower=1.0), "lru"))
    assert never == lru


@given(tape=tapes, cut=st.integers(0, 60), capacity=st.integers(4, 14), keep=st.booleans())
@settings(max_examples=50, deadline=None)
def test_all_that_is_resident_goes_by_a_profile_from_the_moment_it_is_there(tape, cut, capacity, keep):
    rng, events = tape
    sizes, profile = rng.integers(1, 4, 12), rng.integers(0, 5, 12).astype(float)
    hits, cache = run("static", events[:cut], sizes, capacity, keep_overflow=keep)
    cache.see(profile)
    hits = [*hits, *cache.advance(*flat(events[cut:]))]
    assert hits == obvious_hits("static", events, sizes, capacity, profile, keep, n_profiled=cut)


@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize("policy", ["lru", "lfu"])
@given(tape=tapes, capacity=st.integers(9, 20), unit=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_experts_of_one_size_are_looked_up_faster_and_to_the_same_state(policy, serial, tape, capacity, unit):
    """Two caches of six, in calls long and short: what is kept between them is as it would be had the sizes differed."""
    events = [sorted(event, key=lambda key: key // 6) for event in tape[1]]
    events = [part for event in events for part in ([k for k in event if k < 6], [k for k in event if k > 5]) if part]
    cache_of, rooms = np.repeat([0, 1], 6).astype(np.int32), np.array([capacity * unit // 2, capacity * unit], np.int64)
    fast, general = (ExpertCache(CACHES[policy](), np.full(12, unit, np.int64), cache_of, rooms) for _ in range(2))
    general.is_even = False
    for part in (events[:3], events[3:-9], events[-9:]):
        keys = np.array([k for event in part for k in event], np.int32)
        bounds = None if serial else np.concatenate(([0], np.cumsum([len(e) for e in part]))).astype(np.int64)
        assert fast.advance(keys, bounds).tolist() == general.advance(keys, bounds).tolist()
        assert (fast.resident == general.resident).all()
        assert (fast.used == general.used).all()


@pytest.mark.parametrize("policy", ["lru", "lfu", *BOUNDS])
def test_many_experts_are_looked_up_faster_and_to_the_same_hits(policy):
    """Trees of several levels, and more events between two uses than Belady's ring holds at first."""
    rng = np.random.default_rng(0)
    cache_of, rooms = np.repeat([0, 1], [5000, 77]).astype(np.int32), np.array([4500, 20], np.int64)
    weights = 1.0 / np.arange(1, cache_of.size + 1) ** 0.5
    keys = rng.permutation(cache_of.size)[rng.choice(cache_of.size, 60_000, p=weights / weights.sum())].astype(np.int32)
    fast, general = (ExpertCache(CACHES[policy](), np.ones(cache_of.size, np.int64), cache_of, rooms) for _ in range(2))
    general.is_even = False
    hits = fast.advance(keys)
    assert hits.tolist() == general.advance(keys).tolist()
    assert 0.5 < hits.mean() < 0.95


@pytest.mark.parametrize("policy", ["lru", "lfu", *BOUNDS])
def test_a_cache_with_room_for_more_than_there_is_misses_each_expert_once(policy):
    cache = ExpertCache(CACHES[policy](), np.ones(4, np.int64), np.zeros(4, np.int32), np.array([2**62]))
    assert cache.advance(np.tile(np.arange(4, dtype=np.int32), 9)).tolist() == [0] * 4 + [1] * 32


def test_recency_within_an_event_decides_whom_lru_evicts_and_what_a_larger_one_holds():
    """Key 1 is found and key 0 loaded: in the list 1 stands behind 0; an engine that appends what it loads has 0 behind 1."""
    events = [[1], [0, 1], [2], [0]]
    assert run("lru", events, np.ones(3), 2)[0].tolist() == [0, 0, 1, 0, 0]
    assert run("lru", events, np.ones(3), 2, hits_first=True)[0].tolist() == [0, 0, 1, 0, 1]
    # So there is no stack, and no curve of every capacity from one pass: replay/curve.py refuses it.
    events = [[0], [1], [2], [3], [0, 1, 2], [4], [5], [0]]  # key 0 is loaded behind 1 and 2, or found before them
    last = [[run("lru", events, np.ones(6), c, hits_first=first)[0][-1] for c in (3, 4)] for first in (False, True)]
    assert last == [[0, 0], [1, 0]]


@pytest.mark.parametrize("policy", list(CACHES))
@pytest.mark.parametrize("serial", [True, False])
@given(tape=tapes, capacity=st.integers(4, 12))
@settings(max_examples=30, deadline=None)
def test_nothing_beats_belady_at_equal_sizes(policy, serial, tape, capacity):
    """Belady without bypass bounds the policies that take every missed expert in, with bypass all of them."""
    rng, events = tape
    if serial:
        events = [[key] for event in events for key in event]
    profile = rng.integers(0, 5, 12).astype(float)
    hits, bound, bypass_bound = (
        run(name, events, np.ones(12), capacity, serial=serial, profile=profile)[0].sum() for name in (policy, *BOUNDS)
    )
    assert hits <= bypass_bound
    assert hits <= bound or policy in ("static", "belady-bypass")


@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize("n", [17, 65, 300])
def test_lru_as_a_rank_equals_the_queue_in_caches_whose_room_changes(n, serial):
    """The ranked kernel with rank = now is an LRU; so a user's rank function is held to the same oracle."""
    rng, sizes = np.random.default_rng(n), np.random.default_rng(1).integers(1, 9, 2 * n)
    layer, share = (np.arange(2 * n) // n).astype(np.int32), np.array([sizes[:n].sum(), sizes[n:].sum()])
    caches = [ExpertCache(policy, sizes, layer, share // 2) for policy in (RankedLRU(), CACHES["lru"]())]
    for frac in (0.5, 1.0, 0.1, 0.8):
        keys = np.concatenate([rng.choice(n, 5, replace=False) + n * (e % 2) for e in range(2 * n)]).astype(np.int32)
        events = None if serial else np.arange(0, keys.size + 1, 5)
        for one in caches:
            one.room((frac * share).astype(np.int64) + 40)
        ranked, queue = (one.advance(keys, events) for one in caches)
        np.testing.assert_array_equal(ranked, queue)
        np.testing.assert_array_equal(caches[0].resident, caches[1].resident)
        assert 0 < queue.sum() < queue.size


@dataclass(frozen=True)
class RankedLRU:
    """What a user writes: fields are parameters, `rank` is plain Python."""

    kind: ClassVar[str] = "ranked"
    bypass: ClassVar[bool] = False
    is_bound: ClassVar[bool] = False
    profile_frac: ClassVar[float] = 0.0

    def params(self):
        return np.zeros(0)

    @staticmethod
    def rank(of):
        return of.now


def test_golden_hits_of_one_fixed_tape():
    """400 events of 4 of 32 experts; `make golden` prints them to paste after a deliberate change."""
    assert golden_counts() == tomllib.loads(Path(__file__).with_name("golden_hits.toml").read_text(encoding="utf-8"))


def golden_counts():
    events = random_events(np.random.default_rng(20), 400, 32, 4)
    profile = np.bincount([k for event in events[:40] for k in event], minlength=32).astype(float)
    return {
        name: [int(run(name, events, np.ones(32), capacity, profile=profile)[0].sum()) for capacity in (4, 8, 16, 24)]
        for name in CACHES
    }


def test_negative_a_loop_larger_than_the_cache_defeats_lru_and_fifo():
    """Layer order floods a global LRU: below one cycle it hits exactly nothing, while random victims and Belady still hit."""
    events = [[key] for _ in range(50) for key in range(10)]
    hits = {name: int(run(name, events, np.ones(10), 9, serial=True, profile=np.arange(10.0))[0].sum()) for name in CACHES}
    assert hits["lru"] == 0
    assert hits["fifo"] == 0
    assert hits["random"] > 0
    assert hits["belady"] > hits["random"]


def test_negative_frequency_and_probation_lose_where_use_moves_or_comes_again_late():
    """In-cache LFU keeps yesterday's experts: after a change of topic LRU wins."""
    first, second = [[k] for _ in range(60) for k in range(4)], [[k] for _ in range(60) for k in range(4, 9)]
    events = first + second
    late = slice(len(first), None)
    lru, _ = run("lru", events, np.ones(9), 5, serial=True)
    lfu, _ = run("lfu", events, np.ones(9), 5, serial=True)
    assert lru[late].sum() > 200
    assert lfu[late].sum() < 10
    # Every expert twice, half a cache apart: LRU still has it, a small queue or a quarter of the room no longer does.
    events = [[key % 100] for i in range(3000) for key in (i, i - 6)]
    hits = {name: run(name, events, np.ones(100), 20, serial=True)[0].mean() for name in ("lru", "s3-fifo", "slru")}
    assert hits["lru"] > 0.49
    assert hits["slru"] < 0.75 * hits["lru"]
    assert hits["s3-fifo"] < 0.25 * hits["lru"]


def test_negative_what_a_policy_remembers_misleads_it():
    """Against LRU: a set that moves, and a layer that needs room while another floods the cache."""
    moved = [[k] for _ in range(60) for k in range(4)] + [[k] for _ in range(4) for k in range(4, 9)]
    flooded = [[key] for i in range(60) for key in (i % 3 if i > 9 else 0, 6 + i % 6)]
    for policy, events, capacity, n_layers in (
        ("lfru", moved, 5, 1), ("gdsf", moved, 5, 1), ("hysteresis", moved, 5, 1), ("gate-weighted", moved, 5, 1),
        ("least-stale", flooded, 6, 2),
    ):  # fmt: skip
        lru, ours = (
            run(name, events, np.ones(12), capacity, serial=True, n_layers=n_layers)[0][-20:].sum() for name in ("lru", policy)
        )
        assert ours < lru, policy
    # Stretches of a set that fits follow a scan that repeats what has just left: frequent ones take the room of the
    # recent.
    rng = np.random.default_rng(0)
    tapes = [[[int(key)] for key in rng.integers(0, 14, 400) + 14 * (i % 3)] for i in range(12)]
    events = [event for tape in tapes for event in tape]
    assert run("lru", events, np.ones(42), 14, serial=True)[0].sum() > run("arc", events, np.ones(42), 14, serial=True)[0].sum()


def test_random_victims_follow_the_seed_and_nothing_else():
    events = random_events(np.random.default_rng(1), 200, 12, 2)
    a, b, c = (run(RandomVictim(), events, np.ones(12), 5, seed=seed)[0] for seed in (3, 3, 4))
    assert a.tolist() == b.tolist()
    assert a.tolist() != c.tolist()


def test_caches_of_different_layers_do_not_touch():
    """Two caches side by side give what each gives alone; of seven experts, so that the second begins at no power of two."""
    rng = np.random.default_rng(5)
    one, two = random_events(rng, 80, 7, 2), random_events(rng, 80, 7, 2)
    keys = np.array([k for a, b in zip(one, two, strict=True) for k in a + [x + 7 for x in b]], np.int32)
    cache_of = (np.arange(14) // 7).astype(np.int32)
    for name in CACHES:
        if name in ("random", *set(WITH_MEMORY) - {"gdsf"}):  # one generator, one clock of events
            continue
        profile = np.tile(np.arange(7.0), 2)
        both = ExpertCache(CACHES[name](), np.ones(14, np.int64), cache_of, np.full(2, 4, np.int64), profile=profile)
        hits = both.advance(keys, np.arange(0, keys.size + 1, 2, dtype=np.int64)).reshape(-1, 2, 2)
        for side, events in enumerate((one, two)):
            alone, _ = run(name, events, np.ones(7), 4, profile=profile[:7])
            assert hits[:, side].ravel().tolist() == alone.tolist(), name


def test_bad_input_is_named():
    refuses("below one expert", run, "lru", [[0]], [5], 4)
    refuses("has no `promote`", run, Incomplete(), [[0]], [1], 1)
    with pytest.raises(ValueError, match=r"Fifth\.which is 4; it must be SIEVE, SLRU, S3_FIFO or ARC"):
        run(type("Fifth", (Sieve,), {"which": 4})(), [[0]], [1], 1)
    refuses("seed -1", run, "random", [[0]], [1], 1, seed=-1)
    refuses("2\\^64 - 1", run, "random", [[0]], [1], 1, seed=2**64)
    cache = ExpertCache(CACHES["belady"](), np.ones(2, np.int64), np.zeros(2, np.int32), np.array([1], np.int64))
    cache.advance(np.array([0], np.int32))
    refuses("reads the future", cache.advance, np.array([0], np.int32))


class Incomplete:
    kind = "queue"
    is_bound = False


def ranked_by(name, rank, how=staticmethod, **more):
    """A policy of one's own of that name."""
    rank.__qualname__ = f"{name}.rank"
    return type(name, (RankedLRU,), {"rank": how(rank), **more})()


def test_a_rank_of_the_wrong_form_is_named_with_the_reason():
    """Or one without what it reads, that does not compile or gives no numbers; nothing beside the parameters is read."""
    no_number = ranked_by("NoNumber", lambda of: np.sqrt(1.0 - of.n_total))
    for policy, says in (
        (ranked_by("Positional", lambda now, n_cached, params: now), r"Positional.rank takes 3 arguments; write rank\(of\)"),
        (ranked_by("Untold", lambda of: of.gate + of.score), r"reads of.gate, .* needs = \('gate',\)"),
        (ranked_by("Word", lambda of: of.gate, needs="gate"), r"needs is 'gate'; it must be a tuple .* as \('gate',\)"),
        (ranked_by("Bad", lambda of: undefined + of.now), "Bad.rank does not .* NameError: name 'undefined'"),  # noqa: F821
        (ranked_by("NoMethod", lambda of: of.now, lambda rank: rank), "NoMethod.rank does not compile .* @staticmethod above it"),
        (
            ranked_by("Misspelt", lambda of: of.n_lookups),
            "Misspelt.rank does not compile with numba: Unknown attribute 'n_lookups'",
        ),
        (ranked_by("Draws", lambda of: np.random.random()), "Draws.rank draws at random, so that no two runs"),  # noqa: NPY002
        (ranked_by("Table", lambda of: of.now, params=lambda self: np.zeros((2, 2))), r"Table.params has shape \(2, 2\)"),
    ):
        refuses(says, run, policy, [[0]], [1], 1)
    cache = run("gate-weighted", [[0]], [1], 1)[1]
    refuses("reads each lookup's gate; 0 of 1 are told", cache.advance, np.zeros(1, np.int32))
    refuses("out of bounds", run, ranked_by("Outside", lambda of: of.params[3]), [[0]], [1], 1, error=IndexError)
    assert run(no_number, [[0], [1]], np.ones(2), 2)[0].tolist() == [0, 0]
    refuses("policy NoNumber ranked experts NaN 2 times", run, no_number, [[0], [1], [0], [1]], np.ones(2), 2)
    every_other = ranked_by("EveryOther", lambda of: of.now, params=lambda self: np.arange(6)[::2])
    assert run(every_other, [[0], [1], [0]], np.ones(2), 2)[0].tolist() == [0, 0, 1]


@pytest.mark.parametrize("name", [name for name, kind in CACHES.items() if kind.kind != "future"])
def test_an_expert_larger_than_its_cache_is_streamed_where_lookups_come_one_by_one(name):
    cache = ExpertCache(CACHES[name](), np.full(2, 10), np.zeros(2, np.int32), np.array([5]), keep_overflow=True)
    told = np.ones(5, np.float32)
    assert not cache.advance(np.array([0, 0, 0, 1, 1], np.int32), None, told, told).any()


def test_policies_hold_no_instances_and_bounds_say_so():
    assert all(isinstance(kind, type) for kind in CACHES.values())
    assert [name for name, kind in CACHES.items() if kind().is_bound] == BOUNDS
    assert Static(profile_frac=1.0).is_bound
    assert not LRU().is_bound

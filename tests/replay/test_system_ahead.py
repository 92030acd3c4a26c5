"""Experts fetched ahead in the loop: against plain Python over drawn tapes, at its bounds, and where it must lose."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from refusing import refuses
from tapes import GEOMETRY, make_trace

from tokentape.hw import profile as profiles
from tokentape.hw.clock import clock
from tokentape.hw.profile import ENDS
from tokentape.hw.spec import load
from tokentape.hw.work import Rows
from tokentape.policies.placement import PLACEMENTS
from tokentape.policies.prefetch import PREFETCHERS, Prefetcher
from tokentape.policies.residency import CACHES
from tokentape.policies.serving import Chunked, Layered
from tokentape.policies.serving import Static as StaticBatches
from tokentape.policies.sliced import ROUTES
from tokentape.policies.slots import System, of_table
from tokentape.replay.passes import fits_of
from tokentape.replay.system import events as ev
from tokentape.replay.system.breakdown import breakdown
from tokentape.replay.system.recorded import recorded
from tokentape.replay.system.run import Setting, run, simulate
from tokentape.replay.tokens import Tokens, blocks_of
from tokentape.replay.transformer import experts_of, steps_of

MACHINE, N_PROMPT, N_DECODE = "workstation-rtx4090-pcie4", 5, 16
DOCS = Path(__file__).parents[2] / "docs" / "systems.md"
EXPERTS, LAYERS = GEOMETRY.n_experts, len(GEOMETRY.moe_layers)


@dataclass(frozen=True)
class Neighbours(Prefetcher):
    """A person's own, in plain Python: the expert beside each that is used."""

    @staticmethod
    def predict(layer, target, tokens, weights, memory, params, scores):
        for e in range(tokens.size):
            scores[(e + 1) % tokens.size] += tokens[e]


class NoNumber(Neighbours):
    @staticmethod
    def predict(layer, target, tokens, weights, memory, params, scores):
        scores[3] = np.nan


POLICIES = (*PREFETCHERS.values(), Neighbours)


def tape_of(seed, batch, geometry=GEOMETRY):
    trace = make_trace(seed, geometry, n_requests=2 * batch, n_prompt=N_PROMPT, n_decode=N_DECODE)
    return recorded(trace, np.random.default_rng(seed).uniform(0.1, 1.0, trace.ids.size))


def system_of(prefetch, batch=1, room="12 experts", scope="global", cache="lru", **more):
    policies = {"schedule": StaticBatches(batch), "residency": CACHES[cache](), "prefetch": prefetch, **more}
    options = {"residency": {"budget": room, "scope": scope}, "schedule": {"max_seqs": str(batch)}}
    return System("test", {slot: policy for slot, policy in policies.items() if policy is not None}, options)


class Plain:
    """One cache of whole experts: [key, lookups since it entered, when last], the first leaves first. at: the event."""

    def __init__(self, name, room):
        self.name, self.room, self.held, self.clock, self.used_in = name, room, {}, 0, {}

    def turn(self, key, at):
        """Whether this pass used it, and how near its layer's next turn is, one just passed the last; then the least recent."""
        return self.used_in[key] == at // LAYERS, -((key[0] - at - 1) % LAYERS), self.held[key][1]

    def look_up(self, keys, at):
        hits = [key in self.held for key in keys]
        others = [key for key in self.held if key not in keys]
        for key in keys:
            self.clock += 1
            is_hit = key in self.held
            count = self.held[key][0] + 1 if is_hit else 1
            if is_hit and self.name == "lru":
                del self.held[key]
            self.held[key], self.used_in[key] = (count, self.clock), at // LAYERS
        orders = {"lfu": lambda key: self.held[key], "least-stale": lambda key: self.turn(key, at)}
        order = orders.get(self.name, list(self.held).index)
        for group in (sorted(others, key=order), sorted(keys, key=order)):
            for key in group[: max(0, len(self.held) - self.room)]:
                del self.held[key]
        return hits


def stretches(policy, tape, first):
    """Numbers of layers and experts that each of a profile's parts took."""
    parts = np.array_split(np.arange(first), policy.n_matrices)
    return [(tape.ids[rows] + EXPERTS * np.arange(LAYERS)[:, None]).ravel().astype(int) for rows in parts]


def foretold(policy, tape, layer, rows, counts):
    """Experts of the target layer by rising score."""
    target, first = (layer + policy.distance) % LAYERS, round(policy.profile_frac * int(tape.first[-1]))
    asking = [row for row in rows if row >= first or policy.is_bound]
    tokens, weights, scores = np.zeros(EXPERTS), np.zeros(EXPERTS), np.zeros(EXPERTS)
    for row in asking:
        for e, gate in zip(tape.ids[row, layer], tape.gates[row, layer], strict=True):
            tokens[e] += 1
            weights[e] += gate
    name = type(policy).__name__
    if name == "Oracle":
        scores = np.bincount(tape.ids[rows, target].ravel(), minlength=EXPERTS).astype(float)
    elif name == "Popularity":
        counts[layer] += tokens
        scores = counts[target].copy()
    elif name == "Neighbours":
        scores = np.roll(tokens, 1)
    elif name == "ActivationMatrix":
        counts *= policy.keep_frac if layer == 0 else 1.0
        counts[layer] += weights if policy.by_gate else tokens
        each = [np.bincount(row, minlength=EXPERTS * LAYERS) for row in stretches(policy, tape, first)]
        alike = [(counts.ravel() @ one) / max(1e-300, np.sqrt((one**2).sum())) for one in each]
        if max(alike) > 0.0:
            scores = each[int(np.argmax(alike))].reshape(LAYERS, EXPERTS)[target].astype(float)
    else:
        table = np.zeros((EXPERTS, EXPERTS))
        for row in range(first):
            for e in tape.ids[row, layer]:
                for other in tape.ids[row, target]:
                    table[e, other] += 1
        for e in range(EXPERTS):
            scores = scores + (weights if policy.by_gate else tokens)[e] * (table[e] / max(1, table[e].sum()))
    if target <= layer:
        return []
    most = policy.n or (EXPERTS if name == "Oracle" else np.count_nonzero(tokens))
    best = sorted(np.flatnonzero(scores > 0), key=lambda e: (-scores[e], e))[:most]
    return [(target, int(e)) for e in best[::-1]]


def plainly(tape, policy, batch, room, scope, cache):
    """Per event: layer, the experts it looked up with their tokens, hits, and how many were fetched ahead in it. And experts
    fetched ahead, asked for after it, evicted before, and never asked for."""
    shared = [Plain(cache, room)] * LAYERS
    caches = shared if scope == "global" else [Plain(cache, room // LAYERS) for _ in range(LAYERS)]
    counts, unused, events, n = np.zeros((LAYERS, EXPERTS)), set(), [], dict.fromkeys(("ahead", "used", "evicted"), 0)
    for first in range(0, 2 * batch, batch):
        for step in [range(N_PROMPT), *([N_PROMPT + i] for i in range(N_DECODE))]:
            rows = [int(tape.first[r]) + i for r in range(first, first + batch) for i in step]
            for layer in range(LAYERS):
                chosen = [(layer, int(e)) for row in rows for e in tape.ids[row, layer]]
                own = list(dict.fromkeys(chosen[::-1]))[::-1]
                told, now = foretold(policy, tape, layer, rows, counts), len(events)
                if scope == "global":
                    hits = caches[layer].look_up(told + own, now)
                else:
                    hits = (caches[told[0][0]].look_up(told, now) if told else []) + caches[layer].look_up(own, now)
                fetched = [key for key, is_hit in zip(told, hits, strict=False) if not is_hit and key in caches[key[0]].held]
                n["evicted"] += sum(key in unused for key in fetched)
                n["ahead"] += len(fetched)
                unused |= set(fetched)
                for key, is_hit in zip(own, hits[len(told) :], strict=True):
                    n["used" if is_hit else "evicted"] += key in unused
                    unused.discard(key)
                events.append((layer, {key: chosen.count(key) for key in own}, hits[len(told) :], len(fetched)))
    return events, n, len(unused)


@pytest.mark.parametrize(("policy", "scope", "cache"), [
    pytest.param(policy, scope, cache, marks=[pytest.mark.slow] * ((i + j + n) % 3 > 0))
    for i, policy in enumerate(POLICIES)
    for j, scope in enumerate(("global", "per-layer"))
    for n, cache in enumerate(("lru", "fifo", "lfu", "least-stale"))
])  # fmt: skip
def test_every_lookup_is_what_plain_python_says(policy, scope, cache) -> None:
    rng, first = np.random.default_rng(0), 2 * ("lru", "fifo", "lfu", "least-stale").index(cache)
    for seed in range(first, first + 4):
        batch, room, n, distance = int(rng.integers(1, 4)), int(rng.integers(6, 16)), int(rng.integers(0, 4)), seed % 2 + 1
        more = {"profile_frac": (0.2, 0.5, 1.0)[seed % 3], "by_gate": seed % 2 == 0} if hasattr(policy, "by_gate") else {}
        made_of, tape = policy(n=n, distance=distance, **more), tape_of(seed, batch)
        events, counted, n_left = plainly(tape, made_of, batch, room, scope, cache)
        hits = [hit for *_, of, _ in events for hit in of]
        system = system_of(made_of, batch, f"{room} experts", scope, cache)
        made = simulate(tape, tape.requests(), system, load(MACHINE), Setting(expert_format="int8-g32"), logs=len(hits))
        assert made.slots.log_hits.tolist() == hits, seed
        assert made.slots.log_keys.tolist() == [m * EXPERTS + e for m, own, *_ in events for _, e in own]
        ahead, used = made.total(ev.FORETOLD), made.total(ev.USED)
        assert (ahead, used) == (counted["ahead"], counted["used"])
        assert ahead == used + counted["evicted"] + n_left, "all that was fetched was used, or evicted, or is there yet"
        assert made.slots.fetched == ahead + len(hits) - sum(hits)


@pytest.mark.parametrize("distance", [1, 2])
@pytest.mark.parametrize("end", ENDS)
def test_an_iteration_costs_what_the_clock_says_of_layers_beside_which_experts_come(end, distance) -> None:
    geometry = GEOMETRY.model_copy(update={"n_layers": 3, "moe_layers": (0, 1, 2), "expert_intermediate": 4096, "hidden": 512})
    machine, tape, batch = load(MACHINE), tape_of(3, 2, geometry), 2
    physical = tomllib.loads((profiles.PROFILES / "physical.toml").read_text())
    beside = {
        key: text.replace("lookahead(prefetch, ", "layers(prefetch | ")
        for key, text in physical.items()
        if key.startswith("step")
    }
    profile = profiles.of_data(physical | beside, "test")
    policy = PREFETCHERS["transitions"](profile_frac=0.3, distance=distance)
    events, *_ = plainly(tape, policy, batch, 9, "global", "lru")
    system = system_of(policy, batch, "9 experts")
    made = simulate(tape, tape.requests(), system, machine, end=end, record=True).serving.iterations["seconds"]
    blocks, fits, n_bytes = blocks_of(geometry, by_layer=True), fits_of(machine, "bf16"), 2.0 * geometry.expert_params
    of = {"tier": "expert_home", "target": "expert_cache", "blocks": blocks.moe}
    n_ahead = 0
    for at in range(N_DECODE + 1):
        step = events[at * LAYERS : (at + 1) * LAYERS]
        active, chosen, missed, ahead = (
            np.array([values], float)
            for values in zip(*((len(own), sum(own.values()), len(hits) - sum(hits), n) for _, own, hits, n in step), strict=True)
        )
        beside = (ahead + (distance == 2) * np.roll(ahead, 1)) / distance  # none is for the layers after the last
        rows = [
            Rows(kind="fetch", bytes=missed * n_bytes, count=1.0 * (missed > 0), **of),
            Rows(kind="prefetch", bytes=beside * n_bytes, count=1.0 * (ahead > 0), **of),
            *experts_of(geometry, machine, blocks, chosen / geometry.top_k, active, chosen, active * n_bytes, True),
        ]
        if at > 0:  # that of the prompts has rows of its own
            load_of = Tokens(decodes=batch, context=N_PROMPT + at)
            cost = clock(steps_of(geometry, machine, load_of, tuple(rows), blocks), machine, profile, fits)
            assert made[at] == pytest.approx(float(getattr(cost.seconds, end)[0]), rel=1e-9), at
            n_ahead += ahead.sum()
    assert n_ahead > 5


@pytest.mark.parametrize("schedule", [StaticBatches(3), Chunked(4), Layered(20, 2, "fixed")])
def test_who_sees_the_next_layer_waits_for_nothing_behind_the_first_where_two_layers_fit(schedule) -> None:
    tape = tape_of(1, 3)
    system = system_of(PREFETCHERS["oracle"](), 3, f"{2 * EXPERTS} experts", schedule=schedule)
    made = simulate(tape, tape.requests(), system, load(MACHINE), Setting(expert_format="int8-g32"))
    missed = made.slots.totals[:, ev.LOOKUPS :: ev.N_OF_PHASE] - made.slots.totals[:, ev.HITS :: ev.N_OF_PHASE]
    assert missed[0].sum() > 0
    assert missed[1:].sum() == 0 or isinstance(schedule, Layered), "where a prompt's layers go on, no event is before them"
    assert made.total(ev.USED) == made.total(ev.FORETOLD) > 0


def test_where_nothing_foretells_routing_prefetching_over_a_full_link_loses() -> None:
    """Routing drawn evenly: the link that misses wait for carries what nobody asked for, too."""
    geometry = GEOMETRY.model_copy(update={"n_experts": 32, "expert_intermediate": 2048, "hidden": 512})
    rng = np.random.default_rng(0)
    tape = recorded(make_trace(0, geometry, n_requests=2, n_decode=20))
    tape.ids[:] = rng.permuted(np.tile(np.arange(32), (*tape.ids.shape[:2], 1)), axis=2)[..., :2]
    results = {}
    for name in (None, "popularity", "transitions", "oracle"):
        system = system_of(name and PREFETCHERS[name](n=8), 1, "16 experts")
        results[name] = run(tape, tape.requests(), system, load(MACHINE))
    total_s = {name: result.metrics["total_s"].value for name, result in results.items()}
    assert total_s["oracle"] < total_s[None] < min(total_s["popularity"], total_s["transitions"])
    metrics = results["popularity"].metrics
    assert metrics["prefetch_wasted_bytes"].value > 0.8 * metrics["prefetched_bytes"].value
    assert metrics["total_energy_j"].value > results[None].metrics["total_energy_j"].value
    assert "prefetched_bytes" not in results[None].metrics
    assert [result.settings["is_bound"] for result in results.values()] == [False, False, False, True]
    shares = breakdown(tape, tape.requests(), system_of(PREFETCHERS["popularity"](n=8), 1, "16 experts"), load(MACHINE))
    (ahead,) = (share for share in shares if share.item == "experts fetched ahead")
    assert (ahead.decision, ahead.seconds.value > 0) == ("prefetch", True)
    assert sum(share.seconds.value for share in shares) == pytest.approx(total_s["popularity"], rel=1e-9)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"residency": None}, "prefetch fetches into a cache, and there is none; add residency"),
        ({"residency": None, "place": PLACEMENTS["prefill_guided"]()}, "PrefillGuided says what lies in the fast tier"),
        ({"residency": None, "route": ROUTES["slicemoe"]()}, "SliceMoE admits slices by a miss budget of its own"),
        ({"residency": CACHES["belady"]()}, "a bound needs a fixed schedule of lookups"),
        ({"route": ROUTES["max_rank"]()}, "Oracle cannot see what the next layer takes"),
    ],
)
def test_what_prefetching_does_not_go_with_is_refused_in_one_line(changed, said) -> None:
    tape = tape_of(0, 1)
    refuses(said, simulate, tape, tape.requests(), system_of(PREFETCHERS["oracle"](), **changed), load(MACHINE))


def test_the_policy_of_the_docs_runs_from_a_file(tmp_path) -> None:
    (text,) = (block for block in DOCS.read_text().split("```python\n") if "class Beside" in block)
    (tmp_path / "my.py").write_text(text.partition("```")[0])
    own = of_table("own", {"prefetch": {"policy": f"{tmp_path / 'my.py'}:Beside", "n": "3"}})
    assert own.told()["prefetch"] == f"{tmp_path / 'my.py'}:Beside n=3 distance=1"
    tape, counted = tape_of(0, 1), []
    for policy in (own.prefetch, Neighbours(3)):
        made = simulate(tape, tape.requests(), system_of(policy), load(MACHINE))
        counted.append((made.total(ev.HITS), made.total(ev.FORETOLD), made.total(ev.USED)))
    assert counted[0] == counted[1] > (0, 0, 0)


def test_a_profile_that_counts_nothing_fetched_ahead_is_refused_and_so_is_what_lies_too_far() -> None:
    tape = tape_of(0, 1)
    with pytest.raises(ValueError, match="profile expert_stream has no lane of kind prefetch"):
        simulate(tape, tape.requests(), system_of(Neighbours()), load(MACHINE), Setting(profile="expert_stream"))
    with pytest.raises(ValueError, match=f"prefetch.distance {LAYERS}: nothing lies so far ahead in {LAYERS} MoE layers"):
        simulate(tape, tape.requests(), system_of(Neighbours(distance=LAYERS)), load(MACHINE))
    assert simulate(tape, tape.requests(), system_of(Neighbours(distance=LAYERS - 1)), load(MACHINE)).total(ev.FORETOLD) > 0
    with pytest.raises(FloatingPointError, match="predict scored an expert NaN"):
        simulate(tape, tape.requests(), system_of(NoNumber()), load(MACHINE))
    refuses("profile_frac 2.0 in 0..1", type("Whole", (Neighbours,), {"profile_frac": 2.0}))

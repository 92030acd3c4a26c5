"""The loop against replay/experts: the same tape, cache and lookups, one by one."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from refusing import refuses
from tapes import GEOMETRY, make_trace

from tokentape.hw.profile import ENDS
from tokentape.hw.spec import load, shipped
from tokentape.policies.bits import ByGate
from tokentape.policies.cache import needs_of
from tokentape.policies.protocol import GIVEN, Ranked
from tokentape.policies.residency import CACHES, LRU, GateWeighted
from tokentape.policies.serving import Static as StaticBatches
from tokentape.policies.sliced.cache_prior import CachePrior
from tokentape.policies.slots import System
from tokentape.replay.experts import look_up, make_cache, replay
from tokentape.replay.scores import Scores
from tokentape.replay.semantics import Semantics
from tokentape.replay.stream import stream
from tokentape.replay.system.recorded import recorded
from tokentape.replay.system.run import Setting, run, simulate

MACHINE = load("workstation-rtx4090-pcie4")
SETTING = Setting(expert_format="int8-g32")


def system(policy, scope, percent, batch=1):
    options = {"residency": {"budget": f"{percent}%", "scope": scope}, "schedule": {"max_seqs": str(batch)}}
    return System("test", {"schedule": StaticBatches(batch), "residency": policy}, options)


@dataclass(frozen=True)
class MostScored(Ranked):
    needs: ClassVar[tuple[str, ...]] = ("gate", "score")

    @staticmethod
    def rank(of):
        of.memory[0] += of.gate * of.score
        return of.memory[0]


def told(trace):
    """The trace with made-up gate weights and scores of its entries, and the scores of all experts."""
    rng, n = np.random.default_rng(trace.ids.size), trace.row_layer.size
    values = rng.standard_normal((n, trace.geometry.n_experts)).astype(np.float32)
    chosen = values[np.repeat(np.arange(n), np.diff(trace.offsets)), trace.ids]
    gates = rng.integers(1, 99, trace.ids.size).astype(np.float32) / 128
    return replace(trace, told={"gate": gates, "score": chosen}), Scores(values, values)


@pytest.mark.parametrize("percent", [50, 70])
@pytest.mark.parametrize("scope", ["global", "per-layer"])
@pytest.mark.parametrize("policy", [*(policy() for policy in CACHES.values()), MostScored()], ids=[*CACHES, "scored"])
def test_every_lookup_is_that_of_the_expert_engine(policy, scope, percent) -> None:
    semantics = Semantics(scope)
    for seed in (percent, percent + 1):
        trace, scores = told(make_trace(seed, n_requests=4, n_prompt=7, n_decode=30))
        size = round(sum(trace.geometry.expert_bytes("int8-g32")) * 8 * percent / 100)
        wanted = stream(trace, semantics, needs_of(policy))
        hits = look_up(make_cache(trace, policy, semantics, size, "int8-g32", 0), wanted, semantics)
        tape = recorded(trace, trace.told["gate"], scores=scores if needs_of(policy) else None)
        made = simulate(tape, tape.requests(), system(policy, scope, percent), MACHINE, SETTING, logs=wanted.keys.size)
        assert np.array_equal(made.slots.log_keys, wanted.keys)
        assert np.array_equal(made.slots.log_hits, hits), seed


def test_of_an_event_the_largest_gate_and_score_are_told():
    trace, _ = told(make_trace(1, n_requests=2, n_prompt=7, n_decode=3))
    rows, keys = np.repeat(np.arange(trace.row_layer.size), np.diff(trace.offsets)), stream(trace, Semantics("global"), GIVEN)
    for name in GIVEN:
        largest = dict[tuple[int, int], float]()
        for row, e, value in zip(rows.tolist(), trace.ids.tolist(), trace.told[name].tolist(), strict=True):
            at = (int(trace.row_pass[row]), int(trace.row_layer[row]) * trace.geometry.n_experts + e)
            largest[at] = max(largest.get(at, -np.inf), value)
        passes = np.repeat(keys.event_pass, np.diff(keys.offsets)).tolist()
        assert [largest[at] for at in zip(passes, keys.keys.tolist(), strict=True)] == keys.told[name].tolist()


def test_a_policy_that_reads_what_the_tape_or_the_loop_lacks_is_refused_in_one_line():
    trace, scores = told(make_trace(0))
    bare, gated, full = recorded(trace), *(recorded(trace, trace.told["gate"], scores=of) for of in (None, scores))
    by_gate, by_score = (system(policy(), "global", 50) for policy in (GateWeighted, MostScored))
    twice = system(type("Twice", (MostScored,), {"needs": (), "profile_frac": 2.0})(), "global", 50)
    routed = replace(by_gate, policies=by_gate.policies | {"route": CachePrior()})
    for tape, of, words in (
        (bare, by_gate, "system test: GateWeighted reads gate of lookups, and tape test holds no gates; record"),
        (gated, by_score, "MostScored reads gate and score of lookups, and tape test holds no scores"),
        (gated, twice, "Twice.profile_frac is 2.0; it must lie in 0..1"),
        (full, routed, "leave route and draft out"),
    ):
        refuses(words, simulate, tape, tape.requests(), of, MACHINE, SETTING)


@pytest.mark.parametrize(("expert_format", "machines"), [
    pytest.param("bf16", shipped(), marks=pytest.mark.slow), ("int8-g32", shipped()[::2]), ("recorded", shipped()[1::2]),
], ids=["bf16", "int8-g32", "recorded"])  # fmt: skip
def test_every_pass_costs_what_its_iteration_does(expert_format, machines) -> None:
    """All lookups of a fixed schedule at once, and the loop: seconds of each pass, and in all with joules at every end, on every
    machine, on every other of experts as large as an engine recorded them, layer by layer."""
    geometry = GEOMETRY.model_copy(update={"recorded_expert_bytes": (2000, 3000, 5400)})
    trace = make_trace(0, geometry, n_requests=3)
    tape, size = recorded(trace), round(sum(geometry.expert_bytes(expert_format)) * 8 * 0.5)
    for name in machines:
        machine = load(name)
        if geometry.n_heads % machine.n_devices:
            continue
        wanted = replay(trace, CACHES["lru"](), machine, Semantics("global"), size, expert_format)
        setting = Setting(expert_format=expert_format)
        made = run(tape, tape.requests(), system(CACHES["lru"](), "global", 50), machine, setting)
        assert made.timeline["step_s"].tolist() == pytest.approx(wanted.timeline["step_s"].tolist(), rel=1e-12), name
        for metric in ("total_s", "total_energy_j"):
            found, told_by = ([getattr(of.metrics[metric], end) for end in ENDS] for of in (made, wanted))
            assert found == pytest.approx(told_by, rel=1e-12), (name, metric)


@pytest.mark.parametrize(
    ("high_until", "low_until", "low_bits"), [(0.6, 0.9, 4.0), (0.0, 0.0, 4.0), (0.3, 0.5, 2.0), (1.0, 1.0, 4.0)]
)
def test_widths_by_gate_are_those_written_out(high_until, low_until, low_bits):
    """In a room for all experts: a set of copies with their widths, event by event."""
    rule = ByGate(high_until, low_until, low_bits)
    trace, _ = told(make_trace(2, n_requests=1, n_prompt=5, n_decode=20))
    tape = recorded(trace, trace.told["gate"])
    made = simulate(tape, tape.requests(), by_gate_system(rule), MACHINE, replace(SETTING, expert_format="bf16"))
    copies, fetched = dict[tuple[int, int], float](), 0.0
    n_prompt, n_all = int(tape.n_prompt[0]), int(tape.first[1])
    for rows in [range(n_prompt), *([row] for row in range(n_prompt, n_all))]:
        for m in range(tape.ids.shape[1]):
            asked = dict[int, float]()
            for row in rows:
                gates, above = tape.gates[row, m], 0.0
                for e, gate in zip(tape.ids[row, m].tolist(), gates, strict=True):
                    if e < 0:
                        continue
                    is_low = above <= low_until * gates.sum() or (m, e) in copies
                    w = 1.0 if above <= high_until * gates.sum() else low_bits / 16 if is_low else 0.0
                    asked[e], above = max(asked.get(e, 0.0), w), above + gate
            for e, w in asked.items():
                if w > copies.get((m, e), 0.0):
                    fetched += w
                    copies[m, e] = w
    assert made.slots.fetched == pytest.approx(fetched)
    lru = simulate(tape, tape.requests(), system(LRU(), "global", 100), MACHINE, replace(SETTING, expert_format="bf16"))
    assert (made.slots.fetched == lru.slots.fetched) == (high_until == 1.0)


def by_gate_system(rule, **policies):
    plain = system(LRU(), "global", 100)
    return replace(plain, policies={**plain.policies, "precision": rule, **policies})


def test_widths_by_gate_need_gates_and_a_cache_of_recorded_choices():
    trace, scores = told(make_trace(2, n_requests=1, n_prompt=5, n_decode=3))
    tape, rule = recorded(trace, trace.told["gate"], scores=scores), ByGate()
    no_cache = System("test", {"schedule": StaticBatches(1), "precision": rule})
    averaged = replace(by_gate_system(rule), options={"precision": {"mean_bits": "3"}})
    for of, at, words in (
        (by_gate_system(rule), recorded(trace), "holds none"), (no_cache, tape, "add residency"),
        (by_gate_system(rule, route=CachePrior()), tape, "leave route"), (averaged, tape, "no mean width"),
    ):  # fmt: skip
        refuses(words, simulate, at, at.requests(), of, MACHINE, SETTING)

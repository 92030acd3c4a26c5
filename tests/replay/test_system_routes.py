"""Routers in the loop: SliceMoE against its controller, in batches against a budget, a router of one's own, what is refused."""

import dataclasses

import numpy as np
import pytest
from refusing import refuses
from sliced_tape import GEOMETRY, sliced_trace

from tokentape.hw.spec import load
from tokentape.policies.resolve import resolve
from tokentape.policies.serving import SCHEDULERS
from tokentape.policies.sliced import BUDGETS, PRECISIONS, ROUTERS, WARMUPS, Controller, SlicedCache, SliceMoE
from tokentape.policies.sliced.ranking import Router
from tokentape.policies.slots import System, system_of
from tokentape.replay.scores import scores_from_choices, scores_from_table
from tokentape.replay.system import events as ev
from tokentape.replay.system.recorded import recorded
from tokentape.replay.system.routes import slices_of
from tokentape.replay.system.run import Setting, run, simulate

XPU = load("slicemoe-xpu")


@pytest.fixture(scope="module")
def taped():
    trace, table, routing = sliced_trace(n_requests=4)
    return trace, scores_from_table(trace, table, "softmax", {}), routing["gate_weights"].explode().to_numpy()


@pytest.fixture(scope="module")
def tape(taped):
    return recorded(taped[0], scores=taped[1])


def sliced(policy, share=0.4, batch=1, schedule="orca"):
    options = {"schedule": {"max_seqs": str(batch)}, "residency": {"budget": f"{share:.0%}"}}
    return System("test", {"schedule": SCHEDULERS[schedule](), "route": policy}, options)


def composed(seed):
    """Every router, budget, precision and warm-up in turn."""
    rng = np.random.default_rng(seed)
    similarity = {"similarity": np.round(rng.random((3, 16, 16)).astype(np.float32), 1)}
    name = list(ROUTERS)[seed % len(ROUTERS)]
    budget = [BUDGETS["none"](), BUDGETS["hard"](0.1), BUDGETS["soft"](0.1)][seed % 3 if name == "cache_prior" else seed % 2]
    cache = SlicedCache(lsb_policy=("on_pressure", "after_use")[seed % 2])
    precision, warmup = (list(kinds.values())[(seed // 5) % 4]() for kinds in (PRECISIONS, WARMUPS))
    return SliceMoE(ROUTERS[name](**similarity if name == "buddy" else {}), cache, precision, budget, warmup, seed % 8)


@pytest.mark.parametrize("seed", range(40))
def test_one_sequence_is_served_as_the_controller_serves_it(taped, seed):
    """All eight arrays; the controller is checked against a dictionary (tests/policies/test_sliced_cache.py)."""
    trace, scores, _ = taped
    policy, tape = composed(seed), recorded(trace, scores=scores)
    made = simulate(tape, tape.requests(), sliced(policy), XPU, Setting(seed=seed)).slots
    controller = Controller(policy, 3, 16, 4, *slices_of(GEOMETRY, policy.cache), made.budget_bytes, seed)
    for request in range(4):
        rows = trace.row_request == request
        prompt = trace.row_position < 8
        for part, serve in ((rows & prompt, controller.prefill), (rows & ~prompt, controller.decode)):
            wanted = serve(trace.row_layer[part], scores.values[part], scores.gates[part])
            for field in dataclasses.fields(wanted):
                found = getattr(made.events, field.name)[tape.row_of[part]]
                assert np.array_equal(found, getattr(wanted, field.name)), (request, field.name)
            if serve == controller.prefill:
                controller.end_prefill()


@pytest.mark.parametrize("schedule", ["orca", "chunked", "layered"])
def test_a_budget_holds_request_by_request_in_a_batch(schedule):
    trace, table, _ = sliced_trace(n_requests=6, n_decode=150)
    tape = recorded(trace, scores=scores_from_table(trace, table, "softmax", {}))
    policy = SliceMoE(budget=BUDGETS["hard"](0.03), warmup=WARMUPS["last_layer"](), free_steps=0)
    free = dataclasses.replace(policy, budget=BUDGETS["none"]())
    high = sum(slices_of(GEOMETRY, policy.cache))
    missed = []
    for of in (policy, free):
        made = simulate(tape, tape.requests(), sliced(of, 0.3, 3, schedule), XPU).slots
        flash = made.events.flash_bytes.reshape(-1, 3).sum(axis=1)[~tape.is_prompt].reshape(6, -1).sum(axis=1)
        missed.append(flash / (150 * 3 * 4 * high))
    assert np.all(missed[0] <= 0.035)
    assert missed[1].min() > 0.06


def test_what_a_batch_shares_is_looked_up_and_fetched_once(tape):
    one, two = (simulate(tape, tape.requests(order=[0] * n), sliced(SliceMoE(), batch=n), XPU, record=True).slots for n in (1, 2))
    for column in (ev.LOOKUPS, ev.HITS):
        assert np.array_equal(one.totals[:, column], two.totals[:, column])
    assert one.fetched == two.fetched
    assert two.totals[:, ev.TOKEN_EXPERTS].sum() == 2 * one.totals[:, ev.TOKEN_EXPERTS].sum()


@pytest.mark.parametrize("expert_format", ["int8-g32", "recorded"])
def test_fetched_slices_are_what_the_clock_moves(taped, expert_format):
    """Serial fetches of the paper's profile: seconds fall by the fetched bytes over the Flash's rate if all slices are held,
    however large the experts were where they were recorded."""
    trace, scores, _ = taped
    sized = trace.geometry.model_copy(update={"recorded_expert_bytes": (70_000, 70_000, 90_000)})
    tape = recorded(dataclasses.replace(trace, geometry=sized), scores=scores)
    setting = Setting(profile="slicemoe", expert_format=expert_format)
    policy = SliceMoE(precision=PRECISIONS["high-bit"](), warmup=WARMUPS["last_layer"]())
    few, all_held = (simulate(tape, tape.requests(), sliced(policy, share), XPU, setting) for share in (0.3, 1.0))
    high = sum(slices_of(GEOMETRY, policy.cache))
    moved = (few.slots.fetched - all_held.slots.fetched) * high
    assert moved > 0
    assert few.serving.end_s - all_held.serving.end_s == pytest.approx(moved / 1.25e9, rel=1e-9)
    assert few.slots.fetched * high == pytest.approx(few.slots.events.flash_bytes.sum())


OWN = '''
from dataclasses import dataclass

import numpy as np

from tokentape.policies.sliced.ranking import Router


@dataclass(frozen=True)
class Near(Router):
    """A resident expert stands in for a missing one whose value is within `slack`."""

    slack: float = 1.0

    def params(self, n_layers, n_experts):
        return np.array([self.slack])

    @staticmethod
    def choose(layer, values, gates, natural, resident, phase, params, work, ids):
        for i in range(values.shape[0]):
            for j in range(ids.shape[1]):
                ids[i, j] = natural[i, j]
            for j in range(ids.shape[1]):
                for e in range(values.shape[1]):
                    is_free = resident[e] and not resident[ids[i, j]] and values[i, e] >= values[i, ids[i, j]] - params[0]
                    for other in range(ids.shape[1]):
                        is_free = is_free and ids[i, other] != e
                    if is_free:
                        ids[i, j] = e
'''


def test_a_router_of_ones_own_from_a_file_reroutes_to_what_is_resident(taped, tape, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    given = {"residency.budget": "40%", "schedule.max_seqs": "2"}
    stock, none, own = (
        simulate(tape, tape.requests(), system_of("lru_offload", given | route), XPU)
        for route in ({}, {"route": f"{file}:Near", "route.slack": "0"}, {"route": f"{file}:Near", "route.slack": "0.8"})
    )
    assert np.array_equal(stock.slots.totals, none.slots.totals)
    slack_0 = system_of("lru_offload", given | {"route": f"{file}:Near", "route.slack": "0"})
    assert "open loop" not in run(tape, tape.requests(), slack_0, XPU).settings["outside_envelope"]
    assert own.total(ev.HITS) / own.total(ev.LOOKUPS) > stock.total(ev.HITS) / stock.total(ev.LOOKUPS)
    assert np.array_equal(recorded(taped[0]).ids, tape.ids), "the tape's own choices stay"
    assert isinstance(resolve("route", f"{file}:Near", {}), Router)


@pytest.mark.parametrize("chosen", ["ids[i, j] = 500", "ids[i, j] = -2", "ids[i, j] = 0", "ids[i, 99] = j", "ids[i, j] = 1 // j"])
def test_a_choice_that_cannot_be_is_refused_and_not_read_as_memory(tape, tmp_path, chosen):
    file = tmp_path / "own.py"
    file.write_text(OWN.replace("ids[i, j] = natural[i, j]", chosen))
    with pytest.raises(IndexError if "//" not in chosen else ZeroDivisionError):
        simulate(tape, tape.requests(), system_of("lru_offload", {"route": f"{file}:Near", "residency.budget": "40%"}), XPU)


@pytest.mark.parametrize("name", ["cache_prior", "max_rank"])
def test_shipped_routers_work_beside_any_cache(tape, name):
    given = {"residency.policy": "lfu", "residency.budget": "40%"}
    stock = simulate(tape, tape.requests(), system_of("lru_offload", given), XPU)
    made = simulate(tape, tape.requests(), system_of("lru_offload", given | {"route": name}), XPU)
    assert made.slots.fetched < stock.slots.fetched
    told = run(tape, tape.requests(), system_of("lru_offload", given | {"route": name}), XPU).settings["outside_envelope"]
    assert "open loop: rerouted tokens" in told


def test_what_cannot_be_had_is_one_line(taped):
    trace, scores, gates = taped
    bare, chosen, full = (recorded(trace, scores=each) for each in (None, scores_from_choices(trace, gates), scores))
    requests = bare.requests()
    refuses("holds neither scores nor gate weights", simulate, bare, requests, system_of("slicemoe"), XPU)
    refuses("chosen experts only; system slicemoe may route to any", simulate, chosen, requests, system_of("slicemoe"), XPU)
    assert run(chosen, requests, system_of("slicemoe", {"route.router": "lru"}), XPU).metrics["hit_frac"].value > 0
    refuses("placements move whole experts", simulate, full, requests, system_of("slicemoe", {"place": "near_if_rare"}), XPU)
    layers_apart = system_of("slicemoe", {"residency.scope": "per-layer"})
    refuses("slices of all layers share one cache", simulate, full, requests, layers_apart, XPU)
    with pytest.raises(ValueError, match="routers change them"):
        simulate(full, requests, system_of("lru_offload", {"residency.policy": "belady", "route": "cache_prior"}), XPU)
    broken = dataclasses.replace(scores, values=np.where(np.arange(16) < 13, np.float32(np.nan), scores.values))
    told = "request 0, position 0, MoE layer 0 has fewer than 4"
    refuses(told, simulate, recorded(trace, scores=broken), requests, system_of("slicemoe"), XPU)

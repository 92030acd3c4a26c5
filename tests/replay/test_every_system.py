"""Every shipped system on every machine, over tapes that record less and more: it runs, or names the decision that is missing."""

import numpy as np
import pytest
from attention_tapes import softmax_rows, tape_of
from tapes import GEOMETRY, make_trace
from test_system_drafts import MADE_BY, tables_of
from test_system_lookups import told

from tokentape.hw.spec import load
from tokentape.hw.spec import shipped as machines
from tokentape.policies.slots import shipped, system_of
from tokentape.replay.system.recorded import recorded
from tokentape.replay.system.run import Setting, simulate
from tokentape.replay.trace import trace_from_tables

EVERY, MODEL = machines(), GEOMETRY.model_copy(update={"n_kv_heads": 4})
FLAT = [name for name in EVERY if not load(name).roles.expert_cache]
# What a tape or machine does not have, by the words that say so, and the systems that need it.
NEEDS = {
    "no rounds of drafts": {"elmoe3d", "specexec"},
    "ranks tokens by attention, and tape": {"h2o", "kelle", "snapkv"},
    "holds neither scores nor gate weights": {"slicemoe"},
    "goes by losses, and the run has none": {"prefix_split"},
    "by_gate reads gate weights": {"hobbit"},
}
NEVER = {"two engines in series": {"distserve"}}
BY_MACHINE = {"one whose experts are moved": {"monde"}, "never fit": {"shared_room"}}


def plain():
    return recorded(make_trace(9, MODEL, n_requests=2, n_prompt=12, n_decode=10)), Setting(expert_format="int8-g32")


def full():
    """With gate weights, scores, attention and losses."""
    (trace, scores), rng = told(make_trace(9, MODEL, n_requests=2, n_prompt=12, n_decode=10)), np.random.default_rng(9)
    attention = tape_of([softmax_rows(rng, 4, 4, 12, 22) for _ in range(2)], MODEL)
    losses = np.sort(rng.uniform(0.1, 1.0, (3, 8, 4)), axis=2)[:, :, ::-1].copy()
    return recorded(trace, trace.told["gate"], attention, scores), Setting(expert_format="int8-g32", losses=losses)


def drafted():
    tables = tables_of()
    trace = trace_from_tables("test", MODEL, "synthetic", tables["routing"], tables["passes"])
    return recorded(trace, drafted=(MADE_BY, tables)), Setting(expert_format="int8-g32")


TAPES = {
    "plain": (plain, set()),
    "full": (full, {"no rounds of drafts"}),
    "drafted": (drafted, set(NEEDS) - {"no rounds of drafts"}),
}


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("of", TAPES)
def test_a_system_runs_on_every_machine_or_says_what_is_missing(of, every) -> None:
    """A system on every twelfth machine, the next on the machines after them; where slow on all."""
    made, missing = TAPES[of]
    (tape, setting), said = made(), dict[str, dict[str, list[str]]]()
    asked = {name: list(EVERY)[n % every :: every] for n, name in enumerate(shipped())}
    for name, machines_of in asked.items():
        for machine in machines_of:
            try:
                run = simulate(tape, tape.requests(), system_of(name), load(machine), setting)
                assert 0.0 < run.serving.wall_s < np.inf
            except ValueError as error:
                reason = next((known for known in (*NEEDS, *NEVER, *BY_MACHINE) if known in str(error)), repr(str(error)))
                said.setdefault(reason, {}).setdefault(name, []).append(machine)
    wanted = {reason: names for reason, names in NEEDS.items() if of == "plain" or reason in missing} | NEVER
    assert {reason: set(by) for reason, by in said.items() if reason not in BY_MACHINE} == wanted
    assert all(on == asked[name] for reason, by in said.items() if reason not in BY_MACHINE for name, on in by.items())
    assert said["one whose experts are moved"] == {"monde": [machine for machine in asked["monde"] if machine in FLAT]}
    assert set(said.get("never fit", {})) <= BY_MACHINE["never fit"]

"""The loop against replay/experts: the same tape, cache and lookups, one by one."""

import numpy as np
import pytest
from tapes import GEOMETRY, make_trace

from tokentape.hw.spec import load, shipped
from tokentape.policies.residency import CACHES
from tokentape.policies.serving import Static as StaticBatches
from tokentape.policies.slots import System
from tokentape.replay.experts import look_up, make_cache, replay
from tokentape.replay.semantics import Semantics
from tokentape.replay.stream import stream
from tokentape.replay.system.recorded import recorded
from tokentape.replay.system.run import Setting, simulate

MACHINE = load("workstation-rtx4090-pcie4")
SETTING = Setting(expert_format="int8-g32")


def system(policy, scope, percent, batch=1):
    options = {"residency": {"budget": f"{percent}%", "scope": scope}, "schedule": {"max_seqs": str(batch)}}
    return System("test", {"schedule": StaticBatches(batch), "residency": policy}, options)


@pytest.mark.parametrize("percent", [50, 70])
@pytest.mark.parametrize("scope", ["global", "per-layer"])
@pytest.mark.parametrize("name", list(CACHES))
def test_every_lookup_is_that_of_the_expert_engine(name, scope, percent) -> None:
    policy, semantics = CACHES[name](), Semantics(scope)
    for seed in range(5):
        trace = make_trace(seed, n_requests=4, n_prompt=7, n_decode=30)
        size = round(sum(trace.geometry.expert_bytes("int8-g32")) * 8 * percent / 100)
        wanted = stream(trace, semantics)
        hits = look_up(make_cache(trace, policy, semantics, size, "int8-g32", 0), wanted, semantics)
        tape = recorded(trace)
        made = simulate(tape, tape.requests(), system(policy, scope, percent), MACHINE, SETTING, logs=wanted.keys.size)
        assert np.array_equal(made.slots.log_keys, wanted.keys)
        assert np.array_equal(made.slots.log_hits, hits), (name, seed)


@pytest.mark.parametrize("expert_format", [pytest.param("bf16", marks=pytest.mark.slow), "int8-g32"])
def test_every_pass_costs_what_its_iteration_does(expert_format) -> None:
    """All lookups of a fixed schedule at once, and the loop: seconds of each pass and joules in all, on every machine."""
    trace = make_trace(0, n_requests=3)
    tape, size = recorded(trace), round(sum(GEOMETRY.expert_bytes(expert_format)) * 8 * 0.5)
    for name in shipped():
        machine = load(name)
        if GEOMETRY.n_heads % machine.n_devices:
            continue
        wanted = replay(trace, CACHES["lru"](), machine, Semantics("global"), size, expert_format)
        setting = Setting(expert_format=expert_format)
        made = simulate(tape, tape.requests(), system(CACHES["lru"](), "global", 50), machine, setting, record=True).serving
        assert made.iterations["seconds"].tolist() == pytest.approx(wanted.timeline["step_s"].tolist(), rel=1e-12), name
        assert sum(made.joules_of.values()) == pytest.approx(wanted.metrics["total_energy_j"].value, rel=1e-12), name

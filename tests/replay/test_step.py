"""One pass on the machine's resources: the same bytes, operations and seconds as the replay's own cost, layer by layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tapes import GEOMETRY, make_trace

from tokentape.hw.spec import load
from tokentape.hw.timeline import Operation, busy_s, place
from tokentape.policies.residency import CACHES
from tokentape.replay.experts import replay
from tokentape.replay.semantics import Semantics
from tokentape.replay.step import replay_step
from tokentape.warehouse.geometry import Geometry

PHONE, WORKSTATION = load("phone-lpddr5x-ufs4"), load("workstation-rtx4090-pcie4")
CAPACITY = 60_000


def operations(step) -> list[Operation]:
    return [placed.operation for placed in place(step)[0]]


@pytest.mark.parametrize("fetching", ["blocking", "overlapped"])
@pytest.mark.parametrize("machine", [PHONE, WORKSTATION])
def test_a_step_is_the_replays_pass(machine, fetching):
    trace = make_trace()
    semantics = Semantics("global", fetching=fetching)
    result = replay(trace, CACHES["lru"](), machine, semantics, CAPACITY)
    for index in (0, 5, 21, 40):
        pass_id = int(trace.pass_ids[index])
        step = replay_step(trace, CACHES["lru"](), machine, semantics, CAPACITY, "int8-g32", 0, pass_id)
        fetched = sum(o.bytes for o in operations(step) if o.resource == machine.roles.expert_home)
        assert fetched == result.timeline["backing_bytes"][index]
        placed, end_s = place(step)
        cost_s = result.timeline["step_s"][index]
        if fetching == "blocking":
            assert end_s == pytest.approx(cost_s)
        else:  # the cost lets a layer's fetches run beside the layer before it, the clock beside all layers
            assert end_s <= cost_s * (1 + 1e-9)
        assert sum(busy_s(placed).values()) == pytest.approx(sum(p.operation.seconds for p in placed))  # none at once
        assert all(busy <= end_s * (1 + 1e-9) for busy in busy_s(placed).values())


def test_every_layer_and_the_head_are_there_and_only_misses_fetch():
    trace = make_trace()
    step = replay_step(trace, CACHES["lru"](), WORKSTATION, Semantics("global"), CAPACITY, "int8-g32", 0, 0)
    ops = operations(step)
    assert {o.layer for o in ops} == {-1, 0, 1, 2, 3}
    assert {"query, key, value", "prefill attention", "routed experts", "output head"} <= {o.name for o in ops}
    fetched = [o for o in ops if o.name == "fetch missing experts"]
    assert {o.resource for o in fetched} == {"host", "pcie"}
    assert {o.layer for o in fetched} <= set(GEOMETRY.moe_layers)
    everything = replay_step(trace, CACHES["belady"](), WORKSTATION, Semantics("global"), 10**9, "int8-g32", 0, 60)
    assert not [o for o in operations(everything) if o.name == "fetch missing experts"]


def test_token_major_prefill_reads_the_weights_once_per_token():
    trace = make_trace()

    def head_bytes(rule, pass_id):
        semantics = Semantics("global", prefill=rule)
        step = replay_step(trace, CACHES["lru"](), PHONE, semantics, CAPACITY, "int8-g32", 0, pass_id)
        return sum(o.bytes for o in operations(step) if o.layer == -1)

    assert head_bytes("token-major", 0) == 10 * head_bytes("layer-major", 0)
    assert head_bytes("token-major", 1) == head_bytes("layer-major", 1)  # a decode pass has one token
    whole = replay(trace, CACHES["lru"](), PHONE, Semantics("global", prefill="token-major"), 10**9).timeline
    read = whole["fast_bytes"] - whole["n_lookups"] * GEOMETRY.expert_bytes("int8-g32")[0]
    assert read.tolist() == (whole["n_tokens"] * GEOMETRY.non_expert_bytes("int8-g32")).tolist()


def test_recorded_sizes_count_as_their_layers():
    sizes = dict(recorded_expert_bytes=(1000, 2000, 3000), recorded_dense_bytes=(10, 20, 30))  # noqa: C408
    geometry = Geometry(
        architecture="engine", n_layers=4, hidden=0, n_heads=0, n_kv_heads=0, head_dim=0, vocab=0, moe_layers=(1, 2, 3),
        n_experts=8, top_k=2, **sizes,
    )  # fmt: skip
    trace = make_trace(geometry=geometry)
    step = replay_step(trace, CACHES["lru"](), PHONE, Semantics("global"), 8000, "recorded", 0, 1)
    read = [o for o in operations(step) if o.name in ("other weights", "routed experts")]
    of_layer = {layer: sum(o.bytes for o in read if o.layer == layer) for layer in range(4)}
    assert of_layer[0] == 0
    assert [of_layer[layer] - size for layer, size in ((1, 2000), (2, 4000), (3, 6000))] == [10, 20, 30]


def test_a_pass_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="has no pass 999; its passes run from 0 to 62"):
        replay_step(make_trace(), CACHES["lru"](), PHONE, Semantics("global"), CAPACITY, "int8-g32", 0, 999)


def test_steps_are_deterministic():
    trace = make_trace()
    made = [replay_step(trace, CACHES["random"](), PHONE, Semantics("global"), CAPACITY, "int8-g32", 3, 7) for _ in range(2)]
    assert made[0] == made[1]
    assert np.isfinite(place(made[0])[1])


def test_what_does_not_fit_is_told_with_its_sizes():
    large = GEOMETRY.model_copy(update={"vocab": 10**9})
    said = replay(make_trace(geometry=large), CACHES["lru"](), PHONE, Semantics("global"), CAPACITY, "int8-g32").settings
    parts = (
        f"weights outside the experts {large.non_expert_bytes('int8-g32') / 1e9:.3g} GB, the expert cache {CAPACITY / 1e9:.3g} GB"
    )
    assert f"dram (12 GB) does not hold what lies in it: {parts}" in said["outside_envelope"]


@pytest.mark.parametrize(("n_devices", "vocab", "told"), [(1, 5e8, "24 GB"), (2, 5e8, ""), (2, 8e8, "48 GB")])
def test_two_devices_hold_twice_as_much(n_devices, vocab, told):
    trace = make_trace(geometry=GEOMETRY.model_copy(update={"vocab": int(vocab)}))  # 34 or 54 GB of words
    machine = replace(WORKSTATION, n_devices=n_devices)
    said = replay(trace, CACHES["lru"](), machine, Semantics("global"), CAPACITY, "int8-g32").settings["outside_envelope"]
    assert (f"vram ({told}) does not hold" in said) == bool(told)
    assert told or "vram" not in said

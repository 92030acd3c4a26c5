"""One pass on the machine's resources: the same bytes, operations and seconds as the replay's own cost, layer by layer."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from tapes import GEOMETRY, make_trace

from tokentape.capture.importers.rows import no_widths
from tokentape.hw.spec import load
from tokentape.policies.residency import CACHES
from tokentape.policies.serving import Chunked
from tokentape.policies.slots import System
from tokentape.replay.estimate import estimate
from tokentape.replay.experts import looked_up, replay
from tokentape.replay.operations import busy_s, end_s, replay_step
from tokentape.replay.passes import Pricing, fits_of
from tokentape.replay.semantics import Semantics
from tokentape.replay.system.recorded import recorded
from tokentape.replay.system.run import Setting, run
from tokentape.replay.tokens import Tokens
from tokentape.replay.transformer import ACTIVATION
from tokentape.warehouse.model_sizes import other_bytes

PHONE, WORKSTATION = load("phone-lpddr5x-ufs4"), load("workstation-rtx4090-pcie4")
CAPACITY = 60_000


def bytes_of(step, *where):
    return step.filter(*where)["bytes"].sum()


def step_of(trace, policy, machine, semantics, capacity_bytes, expert_format, seed, pass_id):
    parts = looked_up(trace, policy, semantics, capacity_bytes, expert_format, seed)
    found = np.concatenate([of for *_, of in parts], axis=1)
    return replay_step(trace, found, Pricing(machine, semantics, expert_format, "physical"), pass_id)


@pytest.mark.parametrize("fetching", ["blocking", "overlapped"])
@pytest.mark.parametrize("machine", [PHONE, WORKSTATION])
def test_a_step_is_the_replays_pass(machine, fetching):
    trace = make_trace()
    semantics = Semantics("global", fetching=fetching)
    result = replay(trace, CACHES["lru"](), machine, semantics, CAPACITY)
    for index in (0, 5, 21, 40):
        pass_id = int(trace.pass_ids[index])
        step = step_of(trace, CACHES["lru"](), machine, semantics, CAPACITY, "int8-g32", 0, pass_id)
        assert bytes_of(step, pl.col("resource") == machine.roles.expert_home) == result.timeline["backing_bytes"][index]
        assert end_s(step) == pytest.approx(result.timeline["step_s"][index])
        assert sum(busy_s(step).values()) == pytest.approx(step["seconds"].sum())  # none at once
        assert max(busy_s(step).values()) <= end_s(step) * (1 + 1e-9)


def test_every_layer_and_the_head_are_there_and_only_misses_fetch():
    trace = make_trace()
    step = step_of(trace, CACHES["lru"](), WORKSTATION, Semantics("global"), CAPACITY, "int8-g32", 0, 0)
    assert set(step["op_layer"]) == {-1, 0, 1, 2, 3}
    assert {"query, key, value", "prefill attention", "routed experts", "output head"} <= set(step["operation"])
    fetched = step.filter(pl.col("operation") == "fetch missing experts")
    assert set(fetched["resource"]) == {"host", "pcie"}
    assert set(fetched["op_layer"]) <= set(GEOMETRY.moe_layers)
    everything = step_of(trace, CACHES["belady"](), WORKSTATION, Semantics("global"), 10**9, "int8-g32", 0, 60)
    assert "fetch missing experts" not in set(everything["operation"])


def test_token_major_prefill_reads_the_weights_once_per_token():
    trace = make_trace()

    def head_bytes(rule, pass_id):
        semantics = Semantics("global", prefill=rule)
        step = step_of(trace, CACHES["lru"](), PHONE, semantics, CAPACITY, "int8-g32", 0, pass_id)
        return bytes_of(step, pl.col("op_layer") == -1)

    assert head_bytes("token-major", 0) == 10 * head_bytes("layer-major", 0)
    assert head_bytes("token-major", 1) == head_bytes("layer-major", 1)  # a decode pass has one token
    whole = replay(trace, CACHES["lru"](), PHONE, Semantics("global", prefill="token-major"), 10**9).timeline
    read = whole["fast_bytes"] - whole["n_lookups"] * GEOMETRY.expert_bytes("int8-g32")[0]
    assert read.tolist() == (whole["n_tokens"] * GEOMETRY.non_expert_bytes("int8-g32")).tolist()


@pytest.mark.parametrize("others", [(10, 20, 30), ()])
def test_recorded_sizes_count_as_their_layers(others):
    sizes = dict(recorded_expert_bytes=(1000, 2000, 3000), recorded_dense_bytes=others)  # noqa: C408
    geometry = no_widths("engine", 4, moe_layers=(1, 2, 3), n_experts=8, top_k=2, **sizes)
    trace = make_trace(geometry=geometry)
    step = step_of(trace, CACHES["lru"](), PHONE, Semantics("global"), 8000, "recorded", 0, 1)
    read = pl.col("operation").is_in(["other weights", "routed experts"])
    of_layer = {layer: bytes_of(step, read, pl.col("op_layer") == layer) for layer in range(4)}
    assert of_layer[0] == 0
    assert [of_layer[layer] - size for layer, size in ((1, 2000), (2, 4000), (3, 6000))] == [*(others or (0, 0, 0))]


def test_of_a_model_whose_attention_is_not_known_all_but_attention_is_read_and_said():
    update = {"uncounted": "it compresses keys and values"}
    known, other = (
        replay(make_trace(geometry=of), CACHES["lru"](), PHONE, Semantics("global"), CAPACITY)
        for of in (GEOMETRY, GEOMETRY.model_copy(update=update))
    )
    assert other.timeline["backing_bytes"].tolist() == known.timeline["backing_bytes"].tolist()
    left_out = known.timeline["fast_bytes"] - other.timeline["fast_bytes"]
    assert set(left_out.tolist()) == {sum(map(GEOMETRY.mixing_params, range(GEOMETRY.n_layers)))}
    assert "operations are not counted: it compresses keys and values" in other.settings["outside_envelope"]
    assert "not counted" not in (known.settings["outside_envelope"] or "")


def test_steps_are_deterministic_and_a_pass_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="has no pass 999; its passes run from 0 to 62"):
        step_of(make_trace(), CACHES["lru"](), PHONE, Semantics("global"), CAPACITY, "int8-g32", 0, 999)
    trace = make_trace()
    made = [step_of(trace, CACHES["random"](), PHONE, Semantics("global"), CAPACITY, "int8-g32", 3, 7) for _ in range(2)]
    assert made[0].equals(made[1])


def test_operations_on_one_resource_at_once_count_once():
    """By hand: two on the bus overlap by half a second, one more lies inside another, and one stands apart."""
    spans = [("bus", 0.0, 2.0), ("bus", 1.5, 1.0), ("bus", 0.5, 0.5), ("engine", 1.0, 3.0), ("bus", 4.0, 1.0)]
    operations = pl.DataFrame(spans, schema=["resource", "start_s", "seconds"], orient="row")
    assert busy_s(operations) == {"bus": 3.5, "engine": 3.0}
    assert end_s(operations) == 5.0


def test_what_does_not_fit_is_told_with_its_sizes():
    large = GEOMETRY.model_copy(update={"vocab": 10**9})
    said = replay(make_trace(geometry=large), CACHES["lru"](), PHONE, Semantics("global"), CAPACITY, "int8-g32").settings
    others = other_bytes(large, "int8-g32", ACTIVATION)
    parts = f"weights outside the experts {others / 1e9:.3g} GB, the expert cache {CAPACITY / 1e9:.3g} GB"
    assert f"dram (12 GB) does not hold what lies in it: {parts}" in said["outside_envelope"]


@pytest.mark.parametrize(
    ("machine", "weights", "told"),
    [
        (
            "rtx5090",
            "bf16",
            [
                "this GPU was not measured in decode_attention, gemm, moe: times follow from its data sheet and constants of "
                "NVIDIA RTX PRO 6000 Blackwell Server Edition, of its generation"
            ],
        ),
        ("h100", "int8-g32", ["no table of this GPU has gemm int8-g32, moe int8-g32: all is from the roofline"]),
        ("h100", "bf16", []),
        ("phone-lpddr5x-ufs4", "int8-g32", []),
    ],
)
def test_kernels_that_nobody_measured_are_told_by_a_policys_and_a_systems_run(machine, weights, told):
    trace, place = make_trace(), load(machine)
    of_policy = replay(trace, CACHES["lru"](), place, Semantics("global"), CAPACITY, weights)
    tape = recorded(trace)
    held = System("held", {"schedule": Chunked(16)})
    of_system = run(tape, tape.requests(), held, place, Setting(expert_format=weights))
    step = estimate(GEOMETRY, place, Tokens(decodes=1, context=2), GEOMETRY.top_k, fits_of(place, weights), weights)
    widths = [one for one in step.outside if " outside " in one]
    assert bool(widths) == (weights == "bf16")
    for result in (of_policy, of_system):
        said = result.settings["outside_envelope"].split("; ")
        assert [one for one in said if "this GPU" in one] == told
        assert [one for one in said if " outside " in one] == widths
        assert result.settings["is_extrapolated"] == bool(said[0])


@pytest.mark.parametrize(
    ("n_devices", "data_parallel", "vocab", "told"),
    [(1, 1, 1.75e8, "24 GB"), (2, 1, 1.75e8, ""), (2, 1, 2.8e8, "48 GB"), (2, 2, 1.75e8, "48 GB")],
)
def test_two_devices_hold_twice_as_much_but_replicas(n_devices, data_parallel, vocab, told):
    trace = make_trace(geometry=GEOMETRY.model_copy(update={"vocab": int(vocab)}))  # 34 or 54 GB of words
    machine = replace(WORKSTATION, n_devices=n_devices, data_parallel=data_parallel)
    of_policy = replay(trace, CACHES["lru"](), machine, Semantics("global"), CAPACITY, "int8-g32")
    tape = recorded(trace)
    of_system = run(tape, tape.requests(), System("held", {"schedule": Chunked(16)}), machine, Setting(expert_format="int8-g32"))
    for said in (result.settings["outside_envelope"] for result in (of_policy, of_system)):
        assert (f"vram ({told}) does not hold" in said) == bool(told)
        assert told or "vram" not in said

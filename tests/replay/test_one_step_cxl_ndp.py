"""One step, one answer: with all experts on the GPU a GPU-NDP decode step and prefill are those of `estimate`, on every machine;
and every system runs on every machine, whatever it lacks."""

from __future__ import annotations

import numpy as np
import pytest

from tokentape.hw import profile as profiles
from tokentape.hw.spec import load, shipped
from tokentape.replay.cxl_ndp.decode import place, replay
from tokentape.replay.cxl_ndp.prefill import prefill
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.system import FETCHED, IN_PLACE, NEAR, Setup, ours, system_of
from tokentape.replay.estimate import Load, estimate
from tokentape.replay.transformer import Tokens, steps_of
from tokentape.warehouse.models import load as load_model

MODELS = ("qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-20b", "deepseek-v2-lite", "qwen1.5-moe-a2.7b")
SYSTEMS = ("OURS-3", "OURS-16", "MoNDE", "MoNDE never", "MoNDE always", "MoNDE balance", "HOBBIT")
CONTEXT, PROMPT = 600, 64
MACHINES = {name: load(name) for name in shipped()}


def setup(machine: str, model: str) -> Setup:
    geometry = load_model(model).geometry
    return Setup(
        machine=MACHINES[machine], profile=profiles.load("physical"), name=model, geometry=geometry, context_tokens=CONTEXT
    )


def routing(made: Setup, n: int = 1) -> CXLNDPRouting:
    """n sequences of one decode step each."""
    g, rng = made.geometry, np.random.default_rng(0)
    shape = (n, len(g.moe_layers), g.n_experts)
    ids = rng.random((n, 1, *shape[1:])).argsort(axis=-1)[..., : g.top_k].astype(np.int16)
    counts = rng.integers(0, 40, shape).astype(np.int32)
    return CXLNDPRouting(
        "made-up", "synthetic", tuple(g.moe_layers), np.arange(n), counts, rng.random(shape), ids, np.ones(n, np.int32)
    )


@pytest.mark.parametrize("model", MODELS)
def test_with_all_experts_on_the_gpu_a_step_is_that_of_estimate(model):
    for name, machine in MACHINES.items():
        made = setup(name, model)
        g = made.geometry
        if machine.n_devices > 1 and g.n_heads % machine.n_devices:
            continue
        tape = routing(made)
        decoded = replay(tape, place(tape, 1, g.n_experts), made, ours(16))
        prompts = prefill(made, ours(16), PROMPT, 1, g.n_experts, held_experts=g.n_experts)
        for found, load_, active in (
            (decoded, Load(batch=1, context_tokens=CONTEXT), g.top_k),
            (prompts.cost, Load(batch=0, context_tokens=1, prompt_tokens=PROMPT), g.n_experts),
        ):
            one = estimate(g, machine, load_, active, made.fits)
            for end in profiles.ENDS:
                assert getattr(found.seconds, end)[0] == pytest.approx(getattr(one.cost.seconds, end)[0], rel=1e-9), name
                assert getattr(found.joules, end)[0] == pytest.approx(getattr(one.cost.joules, end)[0], rel=1e-9), name


@pytest.mark.parametrize("name", MACHINES)
def test_every_system_runs_on_every_machine(name):
    for profile in ("physical", "cxl_ndp"):
        made = setup(name, "deepseek-v2-lite")
        made = Setup(machine=made.machine, profile=profiles.load(profile), name=made.name, geometry=made.geometry)
        tape = routing(made, 4)
        placed = place(tape, 4, 20)
        for system in (system_of(of, made, overlaps=overlaps) for of in SYSTEMS for overlaps in (False, True)):
            found = replay(tape, placed, made, system)
            assert (found.seconds.value > 0).all()
            assert (found.seconds.low <= found.seconds.value * (1 + 1e-12)).all()
            assert (found.seconds.value <= found.seconds.high * (1 + 1e-12)).all()
            assert prefill(made, system, PROMPT, 4, 20).seconds > 0
            assert all(np.isfinite(value) for key, value in found.metrics().items() if key != "ndp_gain")


@pytest.mark.parametrize(
    ("machine", "how", "words"),
    [
        ("h100-cxl-ndp", NEAR, ()),
        ("elmoe3d-xpu-pim", NEAR, ("no tier in front of the experts",)),
        ("elmoe3d-xpu-nmp", IN_PLACE, ("no tier in front of the experts", "read in place from ext")),
        ("elmoe3d-8gb", IN_PLACE, ("read in place from ext",)),
        ("h100", IN_PLACE, ("no tier in front of the experts", "read in place from hbm")),
        ("phone-lpddr5x-ufs4", FETCHED, ("fetched, at their replicas' bits",)),
    ],
)
def test_what_a_machine_lacks_changes_the_decision_and_is_said(machine, how, words):
    made = setup(machine, "mixtral-8x7b")
    assert made.elsewhere(ours(3)) == how
    said = made.decided(ours(3))
    assert len(said) == len(words)
    assert all(word in text for word, text in zip(words, said, strict=True))


def test_bits_and_places_move_what_they_should():
    """On a machine without near compute, fewer bits are fetched; read in place, fewer are read; and computed as wide as ever."""
    for machine in ("phone-lpddr5x-ufs4", "elmoe3d-8gb", "h100-cxl-ndp"):
        made = setup(machine, "mixtral-8x7b")
        tape = routing(made, 2)
        placed = place(tape, 2, 2)
        seconds = [float(replay(tape, placed, made, ours(bits)).seconds.value[0]) for bits in (1, 2, 3, 4, 16)]
        assert seconds == sorted(seconds)
        assert seconds[0] < seconds[-1]


def test_rows_of_steps_that_carry_prompts_alone_are_of_prefill():
    made = setup("h100", "deepseek-v2-lite")
    for tokens, phase in ((Tokens(prompt=9.0), "prefill"), (Tokens(decodes=1.0, context=5.0, prompt=9.0), "decode")):
        rows = steps_of(made.geometry, made.machine, tokens, (), made.blocks).rows
        assert {row.phase for row in rows if row.kind in ("proj", "router", "shared", "dense_ffn", "head")} == {phase}

"""One step, one answer: with all experts held, ELMoE-3D's AR step is the step of the same batch on every machine."""

from __future__ import annotations

import pytest

from tokentape.hw.elmoe3d_constants import ModelLaw, Speculation
from tokentape.hw.profile import ENDS, PHYSICAL
from tokentape.hw.profile import load as load_profile
from tokentape.hw.spec import load, shipped, with_values
from tokentape.replay.elmoe3d.points import KV_FORMAT, STATIC_FORMAT, Point, as_points
from tokentape.replay.elmoe3d.timing import evaluate
from tokentape.replay.estimate import Load, estimate
from tokentape.warehouse.models import load as load_model

MODELS = ("qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-20b", "deepseek-v2-lite", "qwen1.5-moe-a2.7b")
SPECULATION = Speculation(verify_tokens=5.0, draft_tokens=4.0, growth=0.9, fade=0.4)
BATCH, CONTEXT = 4, 700


@pytest.mark.parametrize("profile", [PHYSICAL, "elmoe3d"])
@pytest.mark.parametrize("model", MODELS)
def test_ar_is_the_step_of_its_batch(model, profile):
    geometry, law = load_model(model).geometry, ModelLaw(beta=0.4, exponent=0.8)
    for name in shipped():
        machine = load(name)
        if machine.n_devices > 1 and geometry.n_heads % machine.n_devices:
            continue
        if machine.roles.expert_cache:  # else all experts lie where they are read
            machine = with_values(machine, {f"tiers.{machine.roles.expert_cache}.capacity_bytes": 1e13})
        point = Point(
            model=model,
            geometry=geometry,
            machine=machine,
            law=law,
            speculation=SPECULATION,
            scheme="Elastic-SD",
            batch=BATCH,
            accepted_len=2.0,
            context_tokens=CONTEXT,
        )
        found = evaluate(as_points([point]), load_profile(profile), with_joules=True).ar
        step = Load(batch=BATCH, context_tokens=CONTEXT)
        active = float(found.experts[0])
        cost = estimate(geometry, machine, step, active, None, STATIC_FORMAT, profile, KV_FORMAT).cost
        beside = {"links"} if profile == "elmoe3d" else set()  # partial sums between the units of the engine
        for i, end in enumerate(ENDS):
            joules = sum(values[i, 0] for part, values in found.joules.items() if part not in beside)
            assert joules == pytest.approx(getattr(cost.joules, end)[0], rel=1e-9), (name, end)
        assert found.seconds[0] == pytest.approx(cost.seconds.value[0], rel=1e-9), name

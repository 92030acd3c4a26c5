"""One step, one answer: Kelle's engine gives a step and a prompt what `step` does, and runs on every machine."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tokentape.hw import profile as profiles
from tokentape.hw.spec import load, shipped
from tokentape.replay.estimate import Load, estimate
from tokentape.replay.kelle.prefill import prefill
from tokentape.replay.kelle.step import decode_step, decode_steps
from tokentape.replay.kelle.systems import BASELINE, KELLE, Fitted, profile_of, systems
from tokentape.replay.kelle.work import MODES, WHOLE, Work
from tokentape.warehouse.models import load as load_model

MODELS = ("qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-20b", "deepseek-v2-lite", "qwen1.5-moe-a2.7b")
PROMPT = 24
OURS = systems()
FITTED = Fitted(serial_frac=0.9, kelle_serial_frac=0.8, recomputed_frac=0.4)
geometry = cache(lambda model: load_model(model).geometry)


def active(shape, n_tokens):
    return shape.n_experts * (1.0 - (1.0 - shape.top_k / shape.n_experts) ** n_tokens)


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("model", MODELS)
def test_kelle_and_step_agree_where_nothing_is_evicted(model, batch):
    shape, physical = geometry(model), profiles.load(profiles.PHYSICAL)
    for name in shipped():
        machine = load(name)
        if machine.n_devices > 1 and shape.n_heads % machine.n_devices:
            continue
        system, work = replace(OURS[BASELINE], machine=machine), Work(PROMPT, 3000, batch)
        step = decode_step(shape, system, work, 0.0, physical, WHOLE)
        told = Load(batch=batch, context_tokens=work.n_tokens)
        whole = estimate(shape, machine, told, active(shape, batch), weight_format="int8").cost
        assert step.seconds == pytest.approx(whole.seconds.value[0], rel=1e-9)
        assert step.energy_j == pytest.approx(whole.joules.value[0], rel=1e-9)
        one = prefill(shape, system, replace(work, batch=1), physical, WHOLE)
        told = Load(batch=0, context_tokens=1, prompt_tokens=PROMPT)
        whole = estimate(shape, machine, told, active(shape, PROMPT), weight_format="int8").cost
        assert one == pytest.approx((whole.seconds.value[0], whole.joules.value[0]), rel=1e-9)


@pytest.mark.parametrize("profile", ["physical", "kelle", "slicemoe", "gpu_operators"])
def test_every_system_runs_on_every_machine(profile):
    """An absent KV memory changes where keys and values lie, and is said."""
    work = Work(512, 1024, 4, 256)
    for name in shipped():
        for system in (replace(of, machine=load(name)) for of in OURS.values()):
            costs = profile_of(FITTED, system, profile=profile)
            for model in ("llama-2-7b", "qwen3-30b-a3b"):
                step = decode_step(geometry(model), system, work, FITTED.recomputed_frac, costs, WHOLE)
                assert np.isfinite([step.seconds, *step.joules.values()]).all()
                assert step.seconds > 0
                assert any("no KV memory" in note for note in step.notes) == (not system.machine.roles.kv_cache)
                assert min(prefill(geometry(model), system, work, costs, WHOLE)) > 0


@pytest.mark.parametrize("mode", MODES)
def test_steps_at_once_are_steps_one_by_one(mode):
    sram = [OURS[name] for name in (BASELINE, "AEP+SRAM", "AERP+SRAM")]
    models = ("llama-2-7b", "qwen3-30b-a3b", "llama-2-13b", "deepseek-v2-lite")
    asked = [
        (geometry(model), system, Work(512, n, batch, 300))
        for system in sram
        for n in (0, 700)
        for model in models
        for batch in (1, 5)
    ]
    costs = profile_of(FITTED, sram[0])
    found = decode_steps(asked, 0.3, costs, MODES[mode])
    for one, step in zip(asked, found, strict=True):
        alone = decode_step(*one, 0.3, costs, MODES[mode])
        assert (step.seconds, step.joules) == (pytest.approx(alone.seconds, rel=1e-12), pytest.approx(alone.joules, rel=1e-12))
        assert replace(step, seconds=0.0, joules={}, overflow_bytes=0.0, kv_read_bytes=0.0, kv_dram_bytes=0.0) == replace(
            alone, seconds=0.0, joules={}, overflow_bytes=0.0, kv_read_bytes=0.0, kv_dram_bytes=0.0
        )


def test_a_profile_of_another_name_has_its_own_numbers():
    for name in (BASELINE, KELLE):
        assert profile_of(FITTED, OURS[name], profile="physical") is profiles.load("physical")
    plain, parallel = (profile_of(FITTED, OURS[name]) for name in (BASELINE, KELLE))
    assert plain.sha256 != parallel.sha256
    assert (plain.refresh["transient"].share, parallel.refresh["transient"].share) == (1.0, 0.45)
    at_retention = profile_of(FITTED, OURS[KELLE], refreshes_at_retention=True)
    assert (parallel.refresh["transient"].interval_of, at_retention.refresh["transient"].interval_of) == ("kv", "")

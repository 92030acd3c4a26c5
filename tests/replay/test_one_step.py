"""One step, one answer: every engine's path gives a decode step and a prefill the same seconds and joules, on every machine."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tokentape.hw.spec import load, shipped
from tokentape.policies.residency import CACHES
from tokentape.replay.estimate import Load, estimate
from tokentape.replay.experts import replay
from tokentape.replay.passes import fits_of
from tokentape.replay.semantics import Semantics
from tokentape.replay.trace import trace_from_tables
from tokentape.warehouse.models import load as load_model

MODELS = ("qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-20b", "deepseek-v2-lite", "qwen1.5-moe-a2.7b")
PROMPT = 24


def tape(geometry):
    """A prompt and one token after it, routed alike in every layer."""
    rng = np.random.default_rng(0)
    chosen = [rng.permutation(geometry.n_experts)[: geometry.top_k].tolist() for _ in range(PROMPT)]
    chosen.append(chosen[0])  # held by then
    rows = [
        (layer, position)
        for first, last in ((0, PROMPT), (PROMPT, PROMPT + 1))
        for layer in geometry.moe_layers
        for position in range(first, last)
    ]
    routing = pl.DataFrame(
        {
            "request_id": np.zeros(len(rows), np.uint32),
            "position": pl.Series([position for _, position in rows], dtype=pl.Int32),
            "layer": pl.Series([layer for layer, _ in rows], dtype=pl.UInt16),
            "pass_id": pl.Series([int(position == PROMPT) for _, position in rows], dtype=pl.UInt32),
            "expert_ids": [chosen[position] for _, position in rows],
            "gate_weights": [[1.0 / geometry.top_k] * geometry.top_k for _ in rows],
        }
    )
    passes = pl.DataFrame(
        {"pass_id": [0, 1], "kind": ["prefill", "decode"], "n_tokens": [PROMPT, 1], "request_ids": [[0], [0]]},
    )
    distinct = len({expert for experts in chosen[:PROMPT] for expert in experts})
    return trace_from_tables("one", geometry, "synthetic", routing, passes), float(distinct)


@pytest.mark.parametrize("expert_format", ["bf16", "int8-g32"])
@pytest.mark.parametrize("model", MODELS)
def test_replay_and_step_agree_where_all_experts_are_held(model, expert_format):
    geometry = load_model(model).geometry
    trace, distinct = tape(geometry)
    for name in shipped():
        machine = load(name)
        if machine.n_devices > 1 and geometry.n_heads % machine.n_devices:
            continue
        ran = replay(trace, CACHES["belady"](), machine, Semantics("global"), 10**13, expert_format)
        fits = fits_of(machine, expert_format)
        loads = (Load(batch=0, context_tokens=1, prompt_tokens=PROMPT), Load(batch=1, context_tokens=PROMPT + 1))
        steps = [
            estimate(geometry, machine, of, active, fits, expert_format)
            for of, active in zip(loads, (distinct, geometry.top_k), strict=True)
        ]
        for index, step in enumerate(steps):
            if index == 1 or not machine.roles.expert_cache:  # else the prompt's experts are fetched
                assert ran.timeline["step_s"][index] == pytest.approx(step.cost.seconds.value[0], rel=1e-9)
                assert ran.timeline["energy_j"][index] == pytest.approx(step.cost.joules.value[0], rel=1e-9)

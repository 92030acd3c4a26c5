"""One step, one answer: a served prompt and the decode after it take what `estimate` says, on every machine."""

from __future__ import annotations

import numpy as np
import pytest

from tokentape.hw.spec import load, shipped
from tokentape.policies.serving import Chunked, Layered
from tokentape.replay.estimate import Load, estimate
from tokentape.replay.passes import fits_of
from tokentape.replay.serving.coverage import FixedCoverage
from tokentape.replay.serving.iteration import iteration_costs
from tokentape.replay.serving.run import serve
from tokentape.replay.serving.workload import Requests
from tokentape.warehouse.models import load as load_model

MODELS = ("qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-20b", "deepseek-v2-lite", "qwen1.5-moe-a2.7b", "qwen3-8b")
PROMPT = 300  # longer than a window


@pytest.mark.parametrize("is_timed", [True, False], ids=["operators", "roofline"])
@pytest.mark.parametrize("model", MODELS)
def test_serving_and_step_agree(model: str, is_timed: bool) -> None:
    geometry, share = load_model(model).geometry, 0.5
    request = Requests(np.zeros(1), np.array([PROMPT]), np.array([2]))
    for name in shipped():
        machine = load(name)
        if geometry.n_heads % machine.n_devices:
            continue
        fits = fits_of(machine, "bf16") if is_timed else {}
        cost = iteration_costs(geometry, machine, FixedCoverage(share), fits=fits)
        run = serve(request, Chunked(8192), cost, record=True)
        loads = (Load(batch=0, context_tokens=1, prompt_tokens=PROMPT), Load(batch=1, context_tokens=PROMPT + 1))
        steps = [estimate(geometry, machine, load, share * geometry.n_experts, fits).cost for load in loads]
        wanted = [float(step.seconds.value[0]) for step in steps]
        assert run.iterations["seconds"].tolist() == pytest.approx(wanted, rel=1e-9), name
        assert sum(run.joules_of.values()) == pytest.approx(sum(float(step.joules.value[0]) for step in steps), rel=1e-9), name


def test_a_prompt_in_groups_of_layers_costs_its_layers_once_and_marks_and_head_once_each() -> None:
    geometry, machine = load_model("qwen3-30b-a3b").geometry, load("h100")
    cost = iteration_costs(geometry, machine, FixedCoverage(0.5))
    request = Requests(np.zeros(1), np.array([PROMPT]), np.array([1]))
    whole, cut = (serve(request, scheduler, cost) for scheduler in (Chunked(8192), Layered(8192, 4, "fixed")))
    head_s = 2 * geometry.vocab * geometry.hidden / (machine.tiers["hbm"].peak_bytes_per_s.value * 0.8)
    assert cut.n_iterations == 4 * whole.n_iterations
    assert whole.expert_bytes == pytest.approx(cut.expert_bytes)
    assert cut.busy_s - whole.busy_s == pytest.approx(3 * head_s, rel=0.5)

"""One step, one answer: a served prompt and the decode after it take what `estimate` says, on every machine."""

from __future__ import annotations

import numpy as np
import pytest

from tokentape.hw import profile
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


@pytest.mark.parametrize("of", profile.shipped())
def test_a_decode_in_any_profile_takes_what_the_clock_says(of: str) -> None:
    """Also where lanes overlap, share a tier, or sum over the step instead of a layer."""
    geometry, share, request = load_model("qwen3-30b-a3b").geometry, 0.25, Requests(np.zeros(1), np.array([9]), np.array([2]))
    for name in ("h100x2", "kelle-edram", "elmoe3d-8gb", "phone-lpddr5x-ufs4"):
        cost = iteration_costs(geometry, load(name), FixedCoverage(share), of)
        found = serve(request, Chunked(64), cost, record=True).iterations["seconds"][1]
        wanted = estimate(geometry, load(name), Load(batch=1, context_tokens=10), share * 128, {}, profile=of).cost
        assert found == pytest.approx(float(wanted.seconds.value[0]), rel=1e-9), name


def test_experts_at_home_are_read_there_or_fetched() -> None:
    """By the clock on rows made by hand: a fetch per missing expert first; in place, each tier at its own rate."""
    geometry, share, held = load_model("qwen3-30b-a3b").geometry, 0.5, 0.75
    request = Requests(np.zeros(1), np.array([64]), np.array([2]))
    for name, is_fetched in (("workstation-rtx4090-pcie4", True), ("elmoe3d-8gb", False)):
        spec = load(name)
        all_held, some = (iteration_costs(geometry, spec, FixedCoverage(share), held_frac=frac) for frac in (1.0, held))
        a, b = (serve(request, Chunked(64), cost, record=True) for cost in (all_held, some))
        n_bytes = 48 * (1 - held) * share * 128 * geometry.expert_bytes("bf16")[0]
        home = spec.tiers[spec.roles.expert_home]
        rate = home.peak_bytes_per_s.value * home.efficiency_frac.value
        link = spec.link(spec.roles.expert_home, spec.roles.expert_cache)
        if is_fetched and link:
            rate = min(rate, link.peak_bytes_per_s.value * link.efficiency_frac.value)
        longer = b.iterations["seconds"][1] - a.iterations["seconds"][1]
        if is_fetched:
            each_s = home.latency_s.value + (link.latency_s.value if link else 0.0)
            assert longer == pytest.approx(n_bytes / rate + 48 * (1 - held) * share * 128 * each_s, rel=1e-9)
        else:
            assert 0.0 < longer < n_bytes / rate
        assert a.expert_bytes == pytest.approx(b.expert_bytes)


def test_a_prompt_in_groups_of_layers_costs_its_layers_once_and_marks_and_head_once_each() -> None:
    geometry, machine = load_model("qwen3-30b-a3b").geometry, load("h100")
    cost = iteration_costs(geometry, machine, FixedCoverage(0.5))
    request = Requests(np.zeros(1), np.array([PROMPT]), np.array([1]))
    whole, cut = (serve(request, scheduler, cost) for scheduler in (Chunked(8192), Layered(8192, 4, "fixed")))
    head_s = 2 * geometry.vocab * geometry.hidden / (machine.tiers["hbm"].peak_bytes_per_s.value * 0.8)
    assert cut.n_iterations == 4 * whole.n_iterations
    assert whole.expert_bytes == pytest.approx(cut.expert_bytes)
    assert cut.busy_s - whole.busy_s == pytest.approx(3 * head_s, rel=0.5)

"""Dense layers in the serving engine: priced as matrix products."""

import itertools

import numpy as np
import pytest
from serving_models import NOTED, TABLE_1, costs, tiny

from tokentape.hw import serving_fits
from tokentape.hw.spec import load as machine
from tokentape.policies.serving import Chunked, Layered
from tokentape.replay.estimate import estimate
from tokentape.replay.serving.coverage import FixedCoverage
from tokentape.replay.serving.iteration import iteration_costs
from tokentape.replay.serving.metrics import saturation_rate_per_s
from tokentape.replay.serving.run import serve
from tokentape.replay.serving.workload import Requests, synthetic
from tokentape.replay.tokens import Tokens
from tokentape.warehouse import models
from tokentape.warehouse.model_config import from_config

H100 = machine("h100")
SHIPPED = serving_fits.load("h100x2").constants
ONE = Requests(np.zeros(1), np.array([700]), np.array([40]))


def test_what_every_token_uses_is_priced_as_a_matrix_product() -> None:
    """A dense layer, and a dense FFN or shared experts among MoE layers: no share fitted to expert kernels moves them."""
    slow_experts = NOTED.but(expert_bandwidth_frac=0.01, expert_ops_frac=0.01)
    for geometry in (models.load("qwen3-8b").geometry, tiny(4, moe_layers=())):
        runs = [serve(ONE, Chunked(), costs(geometry, machine("h100"), c, TABLE_1)) for c in (NOTED, slow_experts)]
        assert runs[0].busy_s == runs[1].busy_s
        assert runs[0].seconds_of["moe"] == 0.0
    parts = [tiny(6, moe_layers=(2, 4)), tiny(6, moe_layers=(2, 4), shared=90)]
    plain, shared = (serve(ONE, Chunked(), costs(g, machine("h100"), NOTED, FixedCoverage())) for g in parts)
    assert plain.seconds_of["moe"] == shared.seconds_of["moe"] > 0.0
    assert plain.seconds_of["dense"] < shared.seconds_of["dense"]


@pytest.mark.parametrize("d_state", [64, 256])
def test_prompts_and_decodes_that_attend_beside_a_state_take_what_the_step_says(d_state: int) -> None:
    """Falcon-H1's layers, with states as large as keys and values of 537 and 2,075 tokens: contexts shorter and longer."""
    sizes = {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 999}
    state = {"mamba_n_heads": 32, "mamba_d_head": 128, "mamba_d_state": d_state, "mamba_d_conv": 4, "mamba_n_groups": 1}
    g = from_config({"model_type": "falcon_h1", "num_key_value_heads": 2, "head_dim": 128, **sizes, **state})
    assert g.tokens_beside == {64: 537, 256: 2075}[d_state]
    for n, on in itertools.product((300, 1500, 20000), (H100, machine("kelle-edram"))):
        run = serve(Requests(np.zeros(1), np.array([n]), np.array([2])), Chunked(20000), iteration_costs(g, on, FixedCoverage()))
        loads = Tokens(decodes=0, context=1, prompt=n), Tokens(decodes=1, context=n + 1)
        wanted = [estimate(g, on, load, 0.0).cost for load in loads]
        assert run.busy_s == pytest.approx(sum(cost.seconds.value[0] for cost in wanted), rel=1e-9)
        assert sum(run.joules_of.values()) == pytest.approx(sum(cost.joules.value[0] for cost in wanted), rel=1e-9)


def test_the_dense_case_of_the_paper_is_far_from_saturation() -> None:
    """Section 5.13 compares schedulers on a dense model; beyond saturation it would compare queues."""
    cost = iteration_costs(models.load("qwen3-8b").geometry, machine("h100"), TABLE_1, SHIPPED.profile())
    requests = synthetic("arxiv", 1.2, 0, length_scale=SHIPPED.length_scale)
    for scheduler in (Chunked(512), Layered()):
        assert saturation_rate_per_s(serve(requests.at_once(), scheduler, cost)) > 1.3
        run = serve(requests, scheduler, cost)
        assert np.mean((run.ttft_s <= 10.0) & (run.largest_gap_s <= 0.125)) > 0.9

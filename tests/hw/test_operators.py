"""What holds of every operator's time, whatever the operator: how it moves with work and with the GPU, and what is refused."""

import numpy as np
import pytest
from gpus import A100, BLACKWELL, CONSTANTS_OF, DISTRIBUTIONS, H100, TOY2, TOY3, shapes
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses

from tokentape.hw.operators import OPERATORS

SIZES = dict.fromkeys(("m", "n", "k"), st.integers(1, 20_000))
EXPERTS = {
    "num_tokens": st.integers(1, 20_000), "hidden_size": st.integers(4, 64).map(lambda n: 128 * n),
    "inter_size": st.integers(2, 64).map(lambda n: 128 * n), "topk": st.integers(1, 8),
    "num_experts": st.integers(3, 9).map(lambda n: 2**n), "distribution": st.sampled_from(DISTRIBUTIONS),
}  # fmt: skip
HEADS = [(1, 1), (8, 8), (12, 4), (32, 8), (64, 1), (64, 8), (48, 48), (128, 1)]
ATTENTION = {
    "batch_size": st.integers(1, 2048), "isl": st.integers(1, 131_072), "heads": st.sampled_from(HEADS),
    "head_dim": st.sampled_from([64, 96, 128, 256]), "window_size": st.sampled_from([0, 128, 4096]),
}  # fmt: skip
# Shapes; sizes that take longer when doubled, but for such a share as a better tile or split may save.
DRAWN = {
    "gemm": (SIZES, ("m", "n", "k"), 0.05),
    "moe": (EXPERTS, ("num_tokens", "hidden_size", "inter_size"), 0.0),
    "prefill_attention": (ATTENTION, (), 0.0),
    "decode_attention": (ATTENTION | {"isl": st.just(1), "step": st.integers(0, 131_072)}, ("step",), 1e-12),
}


@pytest.mark.parametrize("name", DRAWN)
@given(data=st.data(), gpu=st.sampled_from([A100, H100, TOY2, TOY3, BLACKWELL]))
@settings(max_examples=150)
def test_time_rises_with_work_and_falls_with_speed(name, data, gpu):
    operator, constants, (drawn, grows, spared_frac) = OPERATORS[name], CONSTANTS_OF[name], DRAWN[name]
    shape = data.draw(st.fixed_dictionaries(drawn))
    if "heads" in shape:
        shape["num_heads"], shape["num_key_value_heads"] = shape.pop("heads")
    some = shapes(**shape)
    base = operator.seconds(gpu, constants, some)
    assert np.isfinite(base)
    is_unsorted = name == "moe" and gpu.capability < 10 and 4 * shape["num_tokens"] * shape["topk"] <= shape["num_experts"]
    assert base >= constants[0] * gpu.slower * (2 / 3 if is_unsorted else 1)
    assert operator.regime(gpu, constants, some) in ("launch", "compute", "memory", "sums", "rounding", "weights", "activations")
    for size in grows:
        assert operator.seconds(gpu, constants, some | {size: 2 * some[size]}) >= (1.0 - spared_frac) * base
    faster = {"peak_ops_per_s": 2 * gpu.peak_ops_per_s, "peak_bytes_per_s": 2 * gpu.peak_bytes_per_s}
    for number, value in faster.items():
        assert operator.seconds(gpu._replace(**{number: value}), constants, some) <= base
    doubled = gpu._replace(**faster, clock_hz=2 * gpu.clock_hz)
    assert np.allclose(2 * operator.seconds(doubled, constants, some), base, rtol=1e-9)  # fixed costs are cycles


LAYER = {"num_tokens": 64, "hidden_size": 4096, "inter_size": 1536, "topk": 8, "num_experts": 128, "distribution": "balanced"}
HEAD = {"batch_size": 1, "isl": 1, "num_heads": 8, "num_key_value_heads": 8, "head_dim": 128}


@pytest.mark.parametrize(("name", "shape", "expected"), [
    ("gemm", {"m": 1, "n": 32, "k": 32}, "launch"),
    ("gemm", {"m": 8192, "n": 8192, "k": 8192}, "compute"),
    ("gemm", {"m": 1, "n": 16384, "k": 16384}, "memory"),
    ("moe", {"num_tokens": 1, "hidden_size": 256, "inter_size": 128, "topk": 2, "num_experts": 8}, "launch"),
    ("moe", {}, "weights"),
    ("moe", {"num_tokens": 65536}, "compute"),
    ("moe", {"num_tokens": 65536, "moe_ep_size": 128}, "activations"),
])  # fmt: skip
def test_regimes(name, shape, expected):
    some = shapes(**(LAYER | shape if name == "moe" else shape))
    assert OPERATORS[name].regime(H100, CONSTANTS_OF[name], some) == expected


@pytest.mark.parametrize(("name", "shape", "words"), [
    ("gemm", {"m": 1, "n": 1}, "no 'k'"),
    ("gemm", {"m": 1, "n": 0, "k": 1}, "'n'.*row 0.*at least 1"),
    ("moe", LAYER | {"distribution": "zipf"}, "'zipf' is unknown"),
    ("moe", LAYER | {"distribution": "power_law_3"}, "between 1 and 2"),
    ("moe", LAYER | {"topk": 0}, "'topk'.*row 0.*at least 1"),
    ("moe", LAYER | {"hidden_size": None}, "no 'hidden_size'"),
    ("moe", LAYER | {"distribution": None}, "neither 'active_experts' nor 'distribution'"),
    ("decode_attention", {"batch_size": 1, "isl": 1, "step": 3}, "no 'num_heads'"),
    ("prefill_attention", HEAD | {"isl": [5, 0]}, r"'isl'\] row 1: must be at least 1"),
])  # fmt: skip
def test_bad_shapes_are_named(name, shape, words):
    refuses(words, OPERATORS[name].seconds, A100, CONSTANTS_OF[name], shapes(**shape))

"""Prefill and decode attention on GPUs: by hand, and properties."""

from __future__ import annotations

import numpy as np
import pytest
from gpus import A100, H100, TOY
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentape.hw.operators import OPERATORS
from tokentape.hw.operators.fit import fit

decode_attention, prefill_attention = OPERATORS["decode_attention"], OPERATORS["prefill_attention"]
# Of both FlashAttention generations.
TOY2 = TOY._replace(l2_bytes=0)
TOY3 = TOY2._replace(smem_bytes_per_sm=227 * 2**10)
PREFILL = np.array([7e-6, 2e-6, 0.8, 0.7])
DECODE = np.array([7e-6, 3e-6, 2e-6, 0.6, 0.9])


def shapes(**arguments):
    n = max(np.size(values) for values in arguments.values())
    return {name: np.broadcast_to(np.asarray(values), (n,)) for name, values in arguments.items()}


def prefill(batch, isl, heads, kv_heads, head_dim=128, **more):
    return shapes(batch_size=batch, isl=isl, num_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, **more)


def decode(batch, context, heads, kv_heads, head_dim=128, **more):
    step = np.asarray(context) - 1
    return shapes(batch_size=batch, isl=1, step=step, num_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, **more)


def test_one_prefill_by_hand():
    """2 heads of 128 tokens on 2 SMs, FlashAttention 2: 4 tiles of 64 rows, each over one block of 128 keys."""
    block_s = 4 * 64 * 128 * (96 + 32) / (1e12 * 0.5)
    moved_bytes, stored_bytes = 2 * 128 * 96 * 2 * (2 + 2), 2 * 128 * 96 * 4 * 2
    expected = 1e-5 + 2 * (4e-6 / 2 + block_s) + (0.5 * moved_bytes + stored_bytes) / (1e12 * 0.25)
    got = prefill_attention.seconds(TOY2, np.array([1e-5, 4e-6, 0.5, 0.25]), prefill(1, 128, 2, 2, 96))
    assert np.allclose(got, expected, rtol=1e-12)


def test_one_decode_by_hand():
    """One sequence of 512 tokens, 4 heads on 1 KV head, FlashAttention 3, 2 SMs: 4 blocks in 2 / 1.1 parts, so 3 at most."""
    parts, row_bytes = 2 / 1.1, 4 * 96
    compute_s = 3 * 4 * 64 * 128 * (96 + 32) / (1e12 * 0.5) + 2e-6
    memory_s = (2 * 2 * 512 * 96 + (2 * 2 + 2 * 4 * parts) * row_bytes) / (1e12 * 0.25)
    expected = 1e-5 + 3e-6 * (1 + parts / 32) + (compute_s**3 + memory_s**3) ** (1 / 3)
    got = decode_attention.seconds(TOY3, np.array([1e-5, 3e-6, 2e-6, 0.5, 0.25]), decode(1, 512, 4, 1, 96))
    assert np.allclose(got, expected, rtol=1e-12)


def test_flashattention_2_leaves_multi_head_decode_on_one_sm_per_head():
    long = decode(1, 65536, np.array([8, 16]), 8)
    multi_head, grouped = decode_attention.seconds(A100, DECODE, long)
    assert multi_head > 5 * grouped
    multi_head, grouped = decode_attention.seconds(H100, DECODE, long)
    assert multi_head == pytest.approx(grouped, rel=0.01)


def test_a_window_bounds_both():
    args = np.array([1024, 4096, 16384])
    windowed = decode_attention.seconds(H100, DECODE, decode(4, args, 32, 8, window_size=128))
    assert np.ptp(windowed) == 0
    windowed = prefill_attention.seconds(H100, PREFILL, prefill(4, args, 32, 8, window_size=128))
    whole = prefill_attention.seconds(H100, PREFILL, prefill(4, args, 32, 8))
    assert np.all(windowed < whole)
    assert windowed[2] / windowed[1] < 5 < 10 < whole[2] / whole[1]


def test_the_cache_write_belongs_to_old_versions():
    old, new = (prefill_attention.of_version(version) for version in ("0.14.0", "0.19.0"))
    assert (old, new) == ({"stores_kv": 1.0}, {"stores_kv": 0.0})
    stored, left, unsaid = (prefill_attention.seconds(H100, PREFILL, prefill(64, 128, 8, 8, **more)) for more in (old, new, {}))
    assert stored == unsaid
    assert stored > left
    with pytest.raises(ValueError, match="not a version"):
        prefill_attention.of_version("latest")


def test_bad_shapes_are_named():
    with pytest.raises(ValueError, match=r"no 'num_heads'"):
        decode_attention.seconds(H100, DECODE, shapes(batch_size=1, isl=1, step=3))
    with pytest.raises(ValueError, match=r"'isl'\] row 1: must be at least 1"):
        prefill_attention.seconds(H100, PREFILL, prefill(1, np.array([5, 0]), 8, 8))


heads = st.sampled_from([(1, 1), (8, 8), (12, 4), (32, 8), (64, 1), (64, 8), (48, 48), (128, 1)])


@given(
    gpu=st.sampled_from([A100, H100, TOY2, TOY3]),
    batch=st.integers(1, 2048),
    tokens=st.integers(1, 131072),
    more=st.integers(1, 100_000),
    heads=heads,
    head_dim=st.sampled_from([64, 96, 128, 256]),
    window_size=st.sampled_from([0, 128, 4096]),
)
@settings(max_examples=150, deadline=None)
def test_properties(gpu, batch, tokens, more, heads, head_dim, window_size):
    cases = (
        (prefill_attention, prefill, PREFILL, PREFILL * [0, 0, 1, 1]),
        (decode_attention, decode, DECODE, DECODE * [0, 0, 0, 1, 1]),
    )
    faster = gpu._replace(peak_ops_per_s=2 * gpu.peak_ops_per_s, peak_bytes_per_s=2 * gpu.peak_bytes_per_s)
    for operator, shape, constants, without_static in cases:
        some = shape(batch, np.array([tokens, tokens + more]), *heads, head_dim, window_size=window_size)
        made = operator.seconds(gpu, constants, some)
        assert np.all(np.isfinite(made))
        assert np.all(made >= constants[0])
        assert set(operator.regime(gpu, constants, some)) <= {"launch", "compute", "memory"}
        free = operator.seconds(gpu, without_static, some)
        assert np.allclose(operator.seconds(faster, without_static, some), free / 2, rtol=1e-9)
        if operator is decode_attention:
            assert made[1] >= made[0] * (1 - 1e-12)  # over the context; where a larger batch ends splitting, time can fall


@pytest.mark.parametrize(("operator", "truth"), [(prefill_attention, PREFILL), (decode_attention, DECODE)])
def test_the_constants_can_be_told_apart(operator, truth):
    rng = np.random.default_rng(7)
    n, tokens = 1500, 2.0 ** rng.integers(0, 15, 1500)
    shape = prefill if operator is prefill_attention else decode
    kv_heads = 2 ** rng.integers(0, 4, n)
    some = shape(2 ** rng.integers(0, 9, n), tokens, kv_heads * 2 ** rng.integers(0, 4, n), kv_heads, rng.choice([64, 128], n))
    measured = operator.seconds(H100, truth, some)
    assert np.allclose(fit(operator, H100, some, measured), truth, rtol=0.05)


# (fitted, predicted with the other GPU's constants); seen: 6.5, 12.8; 8.4, 11.0; 6.7, 17.1; 8.1, 22.0 %.

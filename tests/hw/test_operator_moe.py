"""Fused MoE layers on GPUs: by hand, expert loads against draws, their properties."""

import numpy as np
import pytest
from gpus import A100, CONSTANTS_OF, DISTRIBUTIONS, H100, TOY, shapes
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentape.hw.operators import OPERATORS
from tokentape.hw.operators.expert_load import expert_load
from tokentape.hw.operators.moe import CUTLASS, MARLIN, TRITON, TRITON_BEFORE_16, TRTLLM

moe = OPERATORS["moe"]
CONSTANTS = CONSTANTS_OF["moe"]
NEMOTRON = (2688, 1856, 6, 128)  # hidden and inner size, top-k, experts: without a gate


def layer(tokens, hidden, inter, top_k, experts, distribution="balanced", tp=1, ep=1):
    sizes = {"num_tokens": tokens, "hidden_size": hidden, "inter_size": inter, "topk": top_k, "num_experts": experts}
    return shapes(**sizes, moe_tp_size=tp, moe_ep_size=ep, distribution=distribution)


def test_a_layer_by_hand():
    """4 tokens, 4 experts of 128 x 128: 4 blocks of 16 rows by 64 columns; 4 of gate and up, 2 of down; full waves on 2 SMs."""
    gate_up_ops = (2 * 4 * 16 * 4 * 64 + 10 * (4 * 4 + 4 * 4 * 64)) * 128
    down_ops = (2 * 4 * 16 * 2 * 64 + 10 * (4 * 2 + 4 * 2 * 64)) * 128
    weights_s = 4 * (2 * 128 * (128 + 64) + 128 * (128 + 64)) * 2 / 1e12
    activations_s = (4 * (5 * 128 + 2 * 128) + 4 * (128 + 128) + 4 * 128) * 2 / 1e12
    expected = 1.755e-6 + (weights_s**2.5 + ((gate_up_ops + down_ops) / 2e12) ** 2.5) ** 0.4 + activations_s
    some = layer(4, 128, 128, 1, 4)
    assert np.isclose(moe.seconds(TOY, np.array([1e-6, 1.0, 10.0, 1.0]), some), expected)
    assert moe.regime(TOY, np.array([1e-6, 1.0, 10.0, 1.0]), some) == "compute"


@pytest.mark.parametrize(("tokens", "rows"), [(8, 8), (28, 8), (29, 16), (58, 32), (116, 48), (173, 64), (900, 64)])
def test_a_layer_of_four_bits_by_hand(tokens, rows):
    """Marlin on 4 experts of 128 x 128: the first of its heights that a quarter of the tokens fills to less than nine tenths; 2
    column blocks of gate and up, one of down, no wave half empty, at most 1,536 operations of an SM and cycle, the peak here."""
    blocks = 4 * -(-tokens // 4 // rows)
    gate_up_ops, down_ops = ((2 * blocks * rows * n * 128 + 10 * (tokens * n + blocks * n * 128)) * 128 for n in (2, 1))
    weights_s = 4 * (2 * 128 * (128 + 64) + 128 * (128 + 64)) * 0.5625 / 1e12
    activations_s = (tokens * (5 * 128 + 2 * 128) + tokens * (128 + 128) + tokens * 128) * 2 / 1e12
    fast = TOY._replace(clock_hz=1.755e9)
    expected = 1e-6 + (weights_s**2.5 + ((gate_up_ops + down_ops) / 2e12) ** 2.5) ** 0.4 + activations_s
    some = layer(tokens, 128, 128, 1, 4) | {"weight_bits": np.array([4.5])}
    constants = np.array([1e-6, 1.0, 10.0, 1.0])
    assert np.isclose(moe.seconds(fast, constants, some), expected)
    assert np.isclose(moe.seconds(fast, constants, some | {"kernel": np.array([MARLIN])}), expected)
    slow = fast._replace(peak_ops_per_s=1536 * 2 * 1.755e9 * 4)  # four times what a warp's instructions reach
    busy_s = ((gate_up_ops + down_ops) / (1536 * 2 * 1.755e9)) ** 2.5
    assert np.isclose(moe.seconds(slow, constants, some), 1e-6 + (weights_s**2.5 + busy_s) ** 0.4 + activations_s)


@pytest.mark.parametrize(("name", "version", "kernel", "heaped", "matrices"), [
    ("vllm_compressedtensorswna16marlinmoe_marlin_marlinexperts", "0.24.0", MARLIN, 0.0, 2.0),
    ("vllm_marlin_int4_moe", "0.19.0", TRITON, 0.0, 3.0),  # so called, it timed Triton's
    ("vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts", "0.24.0", CUTLASS, 0.0, 2.0),
    ("vllm_flashinfer_trtllm", "0.24.0", TRTLLM, 0.0, 2.0),
    ("vllm_fused_moe", "0.19.0", TRITON, 0.0, 3.0),
    ("vllm_fused_moe", "0.14.0", TRITON_BEFORE_16, 1.0, 3.0),
])  # fmt: skip
def test_name_and_version_of_a_table_tell_its_kernel_leftovers_and_matrices(name, version, kernel, heaped, matrices):
    found = moe.of_table(version, np.array([name]), layer(4, *NEMOTRON))
    expected = {"leftovers_heaped": heaped, "kernel": kernel, "matrices": matrices, "is_warm": 1.0}
    assert {name: values.item() for name, values in found.items()} == expected


def sampled(rng, alpha, n_tokens, top_k, n_experts, n_ranks, heaped):
    """Rows of each expert of the fullest rank, drawn as the measured tables' generator describes it."""
    low, high = (1.0, 0.8 * n_tokens) if n_tokens * top_k > n_experts else (0.01, 2.0)
    power = 1.0 - alpha
    weights = (low**power + rng.random(n_experts) * (high**power - low**power)) ** (1.0 / power)
    rows = np.minimum(np.round(weights / weights.sum() * n_tokens * top_k).astype(int), n_tokens)
    ranks = rows.reshape(n_ranks, -1)
    order = np.argsort(rows, kind="stable")
    missing = n_tokens * top_k - rows.sum()
    step = np.sign(missing)
    for turn in range(abs(missing) * n_experts):
        if rows.sum() == n_tokens * top_k:
            break
        rank = ranks[turn % n_ranks]  # of the ranks in turn, the emptiest expert, or the fullest where too many were dealt
        experts, expert = (rows, order[turn % n_experts]) if heaped else (rank, (step * rank).argmin())
        experts[expert] = np.clip(experts[expert] + step, 0, n_tokens)
    return ranks[ranks.sum(axis=1).argmax()]


@pytest.mark.parametrize("alpha", [1.01, 1.2])
@pytest.mark.parametrize(
    ("n_tokens", "top_k", "n_experts", "n_ranks", "heaped", "tolerance"),
    [
        (1, 8, 128, 1, 1, 0.03),
        (16, 8, 128, 1, 1, 0.03),
        (64, 8, 256, 1, 1, 0.03),
        (512, 22, 512, 1, 1, 0.06),
        (4096, 2, 8, 1, 1, 0.06),
        (1024, 8, 128, 4, 1, 0.12),
        (4096, 8, 256, 32, 1, 0.12),
        (1, 8, 256, 16, 1, 0.12),  # leftovers heaped on one rank: all eight experts on the first
        (2, 8, 256, 16, 1, 0.12),
        (8, 8, 256, 8, 1, 0.2),
        (1, 8, 256, 16, 0, 0.01),  # dealt out: one or none on each
        (1, 22, 512, 4, 0, 0.03),
        (4, 8, 128, 4, 0, 0.12),
        (16, 10, 512, 32, 0, 0.12),
        (1024, 8, 128, 4, 0, 0.12),
    ],
)
def test_expert_load_against_draws(alpha, n_tokens, top_k, n_experts, n_ranks, heaped, tolerance):
    rng = np.random.default_rng(0)
    draws = [sampled(rng, alpha, n_tokens, top_k, n_experts, n_ranks, heaped) for _ in range(40)]
    for block_rows in (32, 128):
        arguments = (np.array([float(x)]) for x in (n_tokens, top_k, n_experts, n_ranks, block_rows, heaped))
        load = expert_load(np.array([f"power_law_{alpha}"]), *arguments)
        drawn = (
            np.mean([rows.sum() for rows in draws]),
            np.mean([(rows > 0).sum() for rows in draws]),
            np.mean([np.ceil(rows / block_rows).sum() for rows in draws]),
        )
        assert np.allclose(np.ravel(load), drawn, rtol=tolerance)


def test_buffers_and_weights_share_the_cache():
    """What a token selects is written and read in L2 where the two buffers fit beside the weights, whose bytes these are."""
    slow = TOY._replace(peak_bytes_per_s=1e10)  # of which its SMs get 2.56 from L2
    some = layer(512, 256, 16, 1, 8)
    weights, column_overhead, buffers = 8 * 3 * 256 * 16 * 2, 8 * 64 * (2 * 16 + 256) * 2, 512 * (256 + 16) * 2
    activations = (512 * (5 * 16 + 2 * 256) + 512 * (256 + 16) + 512 * 256) * 2
    bounds = np.array([1e-6, 1.0, 1e-9, 1e9])  # memory alone
    for is_warm, cached in ((0, activations), (1, activations + weights + column_overhead)):
        cold_s, half_s, warm_s = (
            moe.seconds(slow._replace(l2_bytes=share * (buffers + weights)), bounds, some | {"is_warm": np.array([is_warm])})
            for share in (1e-9, 1, 1e9)
        )
        assert np.isclose(cold_s - warm_s, cached * (1e-10 - 1 / 2.56e10))
        assert np.isclose(half_s, (cold_s + warm_s) / 2)


def test_mxfp4_is_stored_in_the_widths_that_marlin_takes():
    """An eighth of gpt-oss: 2,880 x 360, computed as 3,072 x 384; INT4 as it is."""
    of, filled = layer(16, 2880, 2880, 4, 128, tp=8), layer(16, 3072, 3072, 4, 128, tp=8)
    for bits, is_same in ((4.25, True), (4.5, False)):
        found, stored = (moe.seconds(H100, CONSTANTS, some | {"weight_bits": np.array([bits])}) for some in (of, filled))
        assert np.isclose(found, stored) == is_same


@pytest.mark.parametrize(("tokens", "ep", "kernel", "bits", "share"), [
    (4, 1, TRITON, 16, 2 / 3), (4, 1, TRITON, 8, 3 / 4), (5, 1, TRITON, 16, 1), (4, 2, TRITON, 16, 1),
    (4, 1, TRITON_BEFORE_16, 16, 1), (4, 1, CUTLASS, 16, 1), (4, 1, MARLIN, 16, 1),
])  # fmt: skip
def test_few_selections_are_not_sorted(tokens, ep, kernel, bits, share):
    some = layer(tokens, 2048, 768, 8, 128, ep=ep) | {"kernel": np.array([kernel]), "value_bits": np.array([bits])}
    two, one = (moe.seconds(H100, np.array([launch_s, *CONSTANTS[1:]]), some) for launch_s in (2e-5, 1e-5))
    assert np.isclose(two - one, share * 1e-5 * H100.slower)


def test_recorded_experts_take_the_place_of_a_distribution():
    some = layer(16, 2048, 768, 8, 128)
    del some["distribution"]
    few, many = (moe.seconds(H100, CONSTANTS, {**some, "active_experts": np.array([n])})[0] for n in (40, 110))
    assert few < many
    balanced = moe.seconds(H100, CONSTANTS, layer(16, 2048, 768, 8, 128))[0]
    assert moe.seconds(H100, CONSTANTS, {**some, "active_experts": np.array([128])})[0] == pytest.approx(balanced)


@given(
    tokens=st.integers(1, 20_000),
    log_experts=st.integers(3, 9),
    log_ranks=st.integers(0, 6),
    top_k=st.integers(1, 8),
    distribution=st.sampled_from(DISTRIBUTIONS),
    heaped=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_loads_conserve_rows(tokens, log_experts, log_ranks, top_k, distribution, heaped):
    """The fullest rank has its fair share or more, an active expert a row and a block, and blocks hold the rows."""
    experts, ranks = 2**log_experts, 2 ** min(log_experts, log_ranks)
    arguments = (np.array([float(x)]) for x in (tokens, top_k, experts, ranks, 128, heaped))
    rows, active, blocks = np.ravel(expert_load(np.array([distribution]), *arguments))
    local = experts / ranks
    assert min(tokens * top_k / ranks, tokens * local) * 0.999 <= rows <= max(1.0, tokens * top_k) * 1.001
    assert 0 < active <= min(local, rows) * 1.001
    assert blocks >= active * 0.999
    if ranks == 1:
        assert np.isclose(rows, tokens * top_k)
        assert blocks >= rows / 128 * 0.97


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_ranks_share_the_work(distribution):
    """Sharding never takes longer, and eight ranks never less than an eighth of one rank's time."""
    alone, tensor, expert = (
        moe.seconds(H100, CONSTANTS, layer(4096, 4096, 1536, 8, 128, distribution, tp=tp, ep=ep))
        for tp, ep in ((1, 1), (8, 1), (1, 8))
    )
    for shared in (tensor, expert):
        assert alone / 8 <= shared <= alone


def test_ranks_are_one_where_absent():
    some = layer(64, 2048, 768, 8, 128)
    alone = {name: values for name, values in some.items() if name not in moe.defaults}
    assert moe.seconds(A100, CONSTANTS, alone) == moe.seconds(A100, CONSTANTS, some)

"""Prefill and decode attention on GPUs: by hand."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from gpus import A100, BLACKWELL, CONSTANTS_OF, H100, TOY, TOY2, TOY3, shapes
from refusing import refuses

from tokentape.hw.calibrate import gpu_of
from tokentape.hw.operators import OPERATORS
from tokentape.hw.operators.fit import fit
from tokentape.hw.spec import load
from tokentape.replay.passes import fits_of

decode_attention, prefill_attention = OPERATORS["decode_attention"], OPERATORS["prefill_attention"]
PREFILL, DECODE = CONSTANTS_OF["prefill_attention"], CONSTANTS_OF["decode_attention"]
CYCLE = 1.755  # of the toys' clock, in that of the constants


def prefill(batch, isl, heads, kv_heads, head_dim=128, **more):
    return shapes(batch_size=batch, isl=isl, num_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, **more)


def decode(batch, context, heads, kv_heads, head_dim=128, **more):
    step = np.asarray(context) - 1
    return shapes(batch_size=batch, isl=1, step=step, num_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, **more)


def test_one_prefill_and_one_decode_by_hand():
    """2 heads of 128 tokens on 2 SMs, FlashAttention 2: 4 tiles of 64 rows, each over one block of 128 keys."""
    block_s = 4 * 64 * 128 * (96 + 32) / (1e12 * 0.5)
    moved_bytes, stored_bytes = 2 * 128 * 96 * 2 * (2 + 2), 2 * 128 * 96 * 4 * 2
    kernels_s = CYCLE * (1e-5 + 2e-6)  # the second writes the cache, at 6 bytes a cycle of two SMs
    expected = kernels_s + 2 * (CYCLE * 4e-6 / 2 + block_s) + 0.5 * moved_bytes / (1e12 * 0.25) + stored_bytes / 12e9
    got = prefill_attention.seconds(TOY2, np.array([1e-5, 4e-6, 0.5, 0.25]), prefill(1, 128, 2, 2, 96))
    assert np.allclose(got, expected, rtol=1e-12)
    # One sequence of 512 tokens, 4 heads on 1 KV head, FlashAttention 3, 2 SMs: 4 blocks in 2 / 1.1 parts, so 3 at most.
    parts, row_bytes = 2 / 1.1, 4 * 96
    compute_s = CYCLE * (3 * 1e-6 * 0.5 * (96 + 32) / 160 + 2e-6)  # a block takes FlashAttention 3 half as long
    memory_s = (2 * 2 * 512 * 96 + (2 * 2 + 2 * 4 * parts) * row_bytes) / (1e12 * 0.25)
    further = 1 + 1 + (1 + parts / 32)  # the cache's write, the plan, the combination
    expected = CYCLE * (1e-5 + 3e-6 * further) + (compute_s**3 + memory_s**3) ** (1 / 3)
    got = decode_attention.seconds(TOY3, np.array([1e-5, 3e-6, 2e-6, 1e-6, 0.25]), decode(1, 512, 4, 1, 96))
    assert np.allclose(got, expected, rtol=1e-12)


def test_a_window_bounds_both_and_flashattention_2_leaves_one_sm_per_head():
    long = decode(1, 65536, np.array([8, 16]), 8)
    multi_head, grouped = decode_attention.seconds(A100, DECODE, long)
    assert multi_head > 5 * grouped
    multi_head, grouped = decode_attention.seconds(H100, DECODE, long)
    assert multi_head == pytest.approx(grouped, rel=0.01)
    args = np.array([1024, 4096, 16384])
    windowed = decode_attention.seconds(H100, DECODE, decode(4, args, 32, 8, window_size=128))
    assert np.ptp(windowed) == 0
    windowed = prefill_attention.seconds(H100, PREFILL, prefill(4, args, 32, 8, window_size=128))
    whole = prefill_attention.seconds(H100, PREFILL, prefill(4, args, 32, 8))
    assert np.all(windowed < whole)
    assert windowed[2] / windowed[1] < 5 < 10 < whole[2] / whole[1]


def test_the_cache_write_belongs_to_old_versions():
    old, new, newest = (prefill_attention.of_table(version, np.array([""]), {}) for version in ("0.14.0", "0.19.0", "0.24.0"))
    assert [of["stores_kv"].tolist() for of in (old, new, newest)] == [[1.0], [0.0], [1.0]]
    old, new = ({"stores_kv": of["stores_kv"]} for of in (old, new))
    stored, left, unsaid = (prefill_attention.seconds(H100, PREFILL, prefill(64, 128, 8, 8, **more)) for more in (old, new, {}))
    assert stored == unsaid
    assert stored > left
    refuses("not a version", prefill_attention.of_table, "latest", np.array([""]), {})


@pytest.mark.parametrize(("operator", "truth"), [(prefill_attention, PREFILL), (decode_attention, DECODE)])
def test_the_constants_can_be_told_apart(operator, truth):
    rng = np.random.default_rng(7)
    n, tokens = 1500, 2.0 ** rng.integers(0, 15, 1500)
    shape = prefill if operator is prefill_attention else decode
    kv_heads = 2 ** rng.integers(0, 4, n)
    some = shape(2 ** rng.integers(0, 9, n), tokens, kv_heads * 2 ** rng.integers(0, 4, n), kv_heads, rng.choice([64, 128], n))
    measured = operator.seconds(H100, truth, some)
    assert np.allclose(fit(operator, H100, some, measured), truth, rtol=0.05)


def compute_s(operator, constants, **shapes):
    """Of one call on the toy, in blocks of 64 rows by 128 keys where tiles cost nothing beside."""
    given = [np.array([float({**operator.defaults, **shapes}[name])]) for name in operator.arguments]
    return operator.terms(TOY, np.array(constants), *given)[1][0]


def test_caches_of_eight_bits_are_read_by_tiles_of_whole_groups():
    """FlashInfer's, where FlashAttention 2 would run. 16 heads of one group over 16 tokens: 16 tiles of 64 rows on two SMs, or
    two of 128. A lone head over 64 blocks: FlashAttention 2 walks all, FlashInfer 18 on each SM, twice."""
    prompt = {"batch_size": 1, "isl": 16, "num_heads": 16, "num_key_value_heads": 1, "head_dim": 128}
    fa2, shared = (compute_s(prefill_attention, (0, 0, 1, 1), **prompt, kv_bits=bits) for bits in (16, 8))
    assert fa2 / shared == pytest.approx(8 / 2)
    lone = {"batch_size": 1, "isl": 1, "step": 8191, "num_heads": 1, "num_key_value_heads": 1, "head_dim": 128}
    fa2, split = (compute_s(decode_attention, (0, 0, 0, 1e-6, 1), **lone, kv_bits=bits) for bits in (16, 8))
    assert fa2 / split == pytest.approx(64 / 36)


def one_s(gpu, **changed):
    """Of one prefill call and one decode call with it, on grouped heads of 128 where launches cost nothing."""
    one = {"num_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "batch_size": 1, "isl": 64, "stores_kv": 0} | changed
    n = one.get("decodes", 0)
    decodes = {"batch_size": max(n, 1), "isl": 1, "step": one.get("context", 1) - 1, "prompt_tokens": one["isl"]}
    prompts = prefill_attention.seconds(gpu, np.array([0, 1e-6, 0.5, 0.5]), shapes(**one))[0]
    return prompts, decode_attention.seconds(gpu, np.array([0, 0, 1e-6, 1e-6, 0.5]), shapes(**(one | decodes)))[0] * (n > 0)


def test_decodes_beside_prompts_by_hand():
    """Three of 300 keys, 8 heads on 2 KV heads: 24 tiles of 3 blocks in 12 waves over two SMs, two tiles to an SM. A wave holds
    fewer heads than a group, so that all three others read its keys again. Of two more blocks, one tile walks last."""
    alone, _ = one_s(TOY2)
    block_s, tile_s = 4 * 64 * 128 * (128 + 32) / (1e12 * 0.5), CYCLE * 1e-6 / 2
    once_s = 3 * 300 * 2 * 128 * 4 / (1e12 * 0.5)
    walk_s = 12 * (tile_s + 3 * block_s)
    prompts, decodes = one_s(TOY2, decodes=3, context=300)
    assert decodes == pytest.approx(once_s)
    assert prompts - alone == pytest.approx((walk_s**3 + (4 * once_s) ** 3) ** (1 / 3) - once_s)
    assert one_s(TOY2, decodes=3, context=300, longest=600)[0] - prompts == pytest.approx(2 * block_s)


def test_what_takes_prompts_apart_times_decodes_apart():
    """Other generations, and FlashInfer's kernels for a cache of 8 bits."""
    for gpu, bits in ((TOY3, 16), (BLACKWELL, 16), (TOY2, 8), (A100, 8)):
        alone, (prompts, decodes) = one_s(gpu, kv_bits=bits), one_s(gpu, kv_bits=bits, decodes=9, context=700, longest=4000)
        assert prompts == alone[0]
        assert decodes == one_s(gpu, kv_bits=bits, decodes=9, context=700, isl=1)[1] > 0


def test_one_long_context_goes_on_when_the_others_have_ended():
    """FlashAttention 2 walks it block by block; longer than alike ones, and less than if all were as long."""
    several = decode(np.array([1, 16, 64, 300]), 500, 32, 8)
    alike = decode_attention.seconds(A100, DECODE, several)
    assert np.array_equal(decode_attention.seconds(A100, DECODE, several | {"longest": np.full(4, 500)}), alike)
    skewed = decode_attention.seconds(A100, DECODE, several | {"longest": np.full(4, 6000)})
    as_long = decode_attention.seconds(A100, DECODE, decode(np.array([1, 16, 64, 300]), 6000, 32, 8))
    assert (skewed > alike).all()
    assert (skewed[1:] < as_long[1:]).all()
    assert np.array_equal(
        decode_attention.seconds(H100, DECODE, several | {"longest": np.full(4, 6000)}),
        decode_attention.seconds(H100, DECODE, several),
    )


@pytest.mark.parametrize("gpu", [A100, H100, TOY2, BLACKWELL])
@pytest.mark.parametrize("window_size", [0, 256])
def test_a_slice_walks_what_is_cached(gpu, window_size):
    """One tile of 64 tokens walks as many blocks as there are keys; slices of a prompt take no less than the whole of it, and
    their time grows with what is before them, up to the window."""
    before = np.array([0, 100, 1000, 10_000, 100_000])
    made = prefill_attention.seconds(
        gpu, PREFILL, prefill(1, 64, 8, 2, before=np.minimum(before, window_size or 1e9), window_size=window_size)
    )
    assert np.all(np.diff(made) >= 0)
    assert (made[-1] > 4 * made[0]) == (window_size == 0)
    cut = prefill_attention.seconds(gpu, PREFILL, prefill(1, 512, 32, 8, before=512 * np.arange(16)))
    assert cut.sum() > prefill_attention.seconds(gpu, PREFILL, prefill(1, 8192, 32, 8))[0]


MEASURED = Path(__file__).resolve().parents[3] / "shared" / "data" / "gpu" / "rtxpro6000_vllm0.19_by_model"


@pytest.mark.skipif(not MEASURED.is_dir(), reason="the measured calls are not here")
@pytest.mark.parametrize(("model", "kv_heads"), [("Llama-3.1-8B", 8), ("Qwen3-30B-A3B-Instruct-2507", 4)])
def test_measured_calls_of_prompts_and_decodes(model, kv_heads):
    """19,364 calls of FlashAttention 2, on a GPU whose constants are of prompts and decodes apart: nothing is fitted on them."""
    table = pl.read_csv(MEASURED / model / "tp1" / "attention.csv").cast(pl.Float64)
    prompt, before, n, context, measured = (of.to_numpy() for of in table)
    machine = load("rtxpro6000")
    fits, gpu = fits_of(machine, "bf16"), gpu_of(machine)
    heads = {"num_heads": 32, "num_key_value_heads": kv_heads, "head_dim": 128, "stores_kv": 0}
    prompts = heads | {
        "batch_size": 1,
        "isl": np.maximum(prompt, 1),
        "before": before,
        "decodes": n,
        "context": (context + 1) * (n > 0),
    }
    decodes = heads | {"batch_size": np.maximum(n, 1), "isl": 1, "step": context, "prompt_tokens": prompt}
    predicted = (prompt > 0) * fits["prefill_attention"].seconds(gpu, shapes(**prompts))
    predicted += (n > 0) * fits["decode_attention"].seconds(gpu, shapes(**decodes))
    error = predicted / (1e-6 * measured) - 1
    parts = {
        "decodes": prompt == 0,
        "prompts": (n == 0) & (before == 0),
        "slices": (n == 0) & (before > 0),
        "mixed": (n > 0) & (prompt > 0),
    }
    mape = {name: np.abs(error[of]).mean() for name, of in parts.items()}
    assert mape["decodes"] < 0.08
    assert mape["prompts"] < 0.06
    assert mape["slices"] < 0.09
    assert mape["mixed"] < 0.14

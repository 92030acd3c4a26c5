"""Estimated serving steps: operations and bytes as the geometry counts them, and what more devices, batch or context change."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentape.hw import calibrate
from tokentape.hw.sourced import exact
from tokentape.hw.spec import load as load_machine
from tokentape.replay.estimate import estimate
from tokentape.replay.tokens import Tokens, blocks_of
from tokentape.replay.transformer import steps_of
from tokentape.warehouse import model_sizes
from tokentape.warehouse.formats import value_bytes
from tokentape.warehouse.models import load, names

H100, H100X2, MAC = (load_machine(name) for name in ("h100", "h100x2", "mac-unified"))
FITS = calibrate.fits_of(load_machine("h100"), calibrate.shipped())


def total(made, what):
    return made.operations()[what].sum()


@pytest.mark.parametrize("name", names())
def test_operations_are_those_of_the_geometry(name):
    """Decode and prefill of every shipped model: the sum over operations against the closed count."""
    g = load(name).geometry
    decode = estimate(g, MAC, Tokens(decodes=3, context=700), 1.0)
    assert total(decode, "ops") == pytest.approx(3 * model_sizes.ops_per_token(g, 700), rel=1e-9)
    prefill = estimate(g, MAC, Tokens(decodes=0, context=1, prompt=300), 1.0)
    assert total(prefill, "ops") == pytest.approx(model_sizes.prefill_ops(g, 300), rel=1e-9)


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-20b", "llama-3-8b", "deepseek-v2-lite"])
def test_bytes_are_weights_cache_and_activations(name):
    """With all experts active a step reads every matrix once; what is beyond weights and cache is activations of one token."""
    g = load(name).geometry
    made = estimate(g, MAC, Tokens(decodes=1, context=500), float(g.n_experts))
    p = model_sizes.parameters(g)
    weights = p.attention + p.dense_ffn + p.shared_ffn + p.routers + p.experts + g.vocab * g.hidden
    held = value_bytes(weights, "bf16") + model_sizes.kv_bytes(g, 500, "bf16")
    assert held < total(made, "bytes") < 1.02 * held


def test_layers_are_in_order_and_windows_shorten_attention():
    made = estimate(load("gpt-oss-20b").geometry, H100, Tokens(decodes=4, context=8000), 10.0, FITS)
    layers = made.operations()["op_layer"].to_list()
    assert layers[:-2] == sorted(layers[:-2])
    assert layers[-2:] == [-1, -1]  # the output head, the sampler
    attention = made.operations().filter(operation="decode attention")["seconds"].to_list()
    assert len(attention) == 24
    assert max(attention[0::2]) < min(attention[1::2])  # every other layer sees 128 tokens


@given(
    batch=st.integers(1, 64),
    context=st.integers(1, 8192),
    prompt=st.integers(0, 2048),
    active=st.floats(8, 128),
    more=st.integers(1, 64),
)
@settings(max_examples=12, deadline=None)
def test_more_work_takes_longer_on_a_roofline(batch, context, prompt, active, more):
    g = load("qwen3-30b-a3b").geometry
    load_ = Tokens(decodes=batch, context=context, prompt=prompt)
    made = estimate(g, MAC, load_, active)
    assert np.isfinite(total(made, "seconds"))
    for larger in (
        replace(load_, decodes=batch + more),
        replace(load_, context=context + more),
        replace(load_, prompt=prompt + more),
    ):
        assert total(estimate(g, MAC, larger, active), "seconds") >= total(made, "seconds")
    peak = MAC.tiers[MAC.fast].peak_bytes_per_s.value
    assert total(made, "seconds") >= total(made, "bytes") / peak


@pytest.mark.parametrize(("machine", "prompt"), [("rtxpro6000", 512), ("rtxpro6000", 0), ("l40s", 2048), ("h100", 900)])
def test_a_band_holds_its_nominal_end_beside_prompts_too(machine, prompt):
    g, spec = load("llama-3-8b").geometry, load_machine(machine)
    fits = calibrate.fits_of(spec, calibrate.shipped())
    seconds = estimate(g, spec, Tokens(decodes=64, context=8192, prompt=prompt), 0.0, fits).cost.seconds
    assert seconds.low[0] <= seconds.value[0] <= seconds.high[0]


def test_two_devices_share_the_work_and_lose_by_a_slow_link():
    g = load("mixtral-8x7b").geometry
    one, two = (estimate(g, machine, Tokens(decodes=16, context=1000), 8.0, FITS) for machine in (H100, H100X2))
    reduced = two.operations().filter(operation="all-reduce")["bytes"].to_list()
    assert reduced == [16 * g.hidden * 2] * 2 * g.n_layers
    on_engine, alone = (of.operations().filter(pl.col("operation") != "router")["ops"].sum() for of in (two, one))
    assert on_engine == pytest.approx(alone / 2)
    assert total(two, "seconds") < total(one, "seconds")
    assert "all-reduce" not in set(one.operations()["operation"])
    # A machine of two whose link is slow loses to one device at a small batch.
    slow = {name: replace(link, peak_bytes_per_s=exact(1e6, "made up")) for name, link in H100X2.links.items()}
    g = load("qwen3-30b-a3b").geometry
    work = (Tokens(decodes=1, context=100), 8.0, FITS)
    assert total(estimate(g, replace(H100X2, links=slow), *work), "seconds") > total(estimate(g, H100, *work), "seconds")


def test_fitted_times_are_the_operator_models_whatever_a_machine_computes_in():
    g = load("qwen3-30b-a3b").geometry
    made = estimate(g, H100, Tokens(decodes=16, context=4096), 82.4, FITS)
    product = made.operations().filter(operation="query, key, value")
    shapes = {"m": np.array([16]), "n": np.array([(32 + 2 * 4) * 128]), "k": np.array([2048])}
    assert product["seconds"][0] == FITS["gemm"].seconds(calibrate.gpu_of(H100), shapes)[0]
    assert made.outside == ("output head: n 151936 outside 32 to 65536",)
    gh200 = load_machine("gh200")
    far = replace(gh200, roles=replace(gh200.roles, weights_home="grace", kv_home="grace"))
    rows = {
        row["operation"]: row for row in estimate(g, far, Tokens(decodes=16, context=4096), 82.4, FITS).operations().to_dicts()
    }
    for row in (rows[name] for name in ("decode attention", "query, key, value", "output head")):  # no kernel was measured there
        assert row["seconds"] >= row["bytes"] / (384e9 * 0.85), row["operation"]
    load_, machines = Tokens(decodes=0, context=1, prompt=999), (H100, replace(H100, dtype="fp8"))
    made = [estimate(load("llama-3-8b").geometry, of, load_, 0.0, FITS, "fp8").operations() for of in machines]
    at = {"operation": "query, key, value"}
    assert made[0].filter(**at)["seconds"].to_list() == made[1].filter(**at)["seconds"].to_list()


def test_replicas_hold_their_copies_and_take_whole_rows():
    """Eight GPUs keep each of four KV heads twice; replicas have one copy of the heads, and all weights but the experts each."""
    g, eight = load("qwen3-30b-a3b").geometry, load_machine("h100x8")
    (shared,) = estimate(g, eight, Tokens(decodes=900, context=4096), 128.0).outside
    assert shared.endswith("weights outside the experts 3.08 GB, experts 58 GB, keys and values 725 GB")
    replicas = replace(eight, data_parallel=8, expert_parallel=True)
    (apart,) = estimate(g, replicas, Tokens(decodes=1600, context=4096), 128.0).outside
    assert apart.endswith("weights outside the experts 24.7 GB, experts 58 GB, keys and values 644 GB")
    # One request on eight replicas: each product is as long as with a request on every one of them.
    g, replicas = load("qwen3-30b-a3b").geometry, replace(load_machine("h100x8"), data_parallel=8, expert_parallel=True)
    one, eight = (estimate(g, replicas, Tokens(decodes=n, context=9), 8.0, FITS).operations() for n in (1, 8))
    for name in ("query, key, value", "output head"):
        assert one.filter(operation=name)["seconds"].to_list() == eight.filter(operation=name)["seconds"].to_list()


@pytest.mark.parametrize("model", ["llama-3.1-70b", "qwen2.5-7b"])
def test_fitted_operators_lie_within_the_band(model):
    """Constants reach more of the tensor peak, .85 of it, than the favourable end of the machine's own share."""
    load_ = Tokens(decodes=0, context=1, prompt=8192)
    seconds = estimate(load(model).geometry, load_machine("h200"), load_, 0.0, FITS).cost.seconds
    assert seconds.low <= seconds.value <= seconds.high


def test_what_is_not_covered_is_said():
    mla = estimate(load("deepseek-v2-lite").geometry, H100, Tokens(decodes=1, context=100), 6.0, FITS)
    assert any(sentence.startswith("decode attention: no measured operator") for sentence in mla.outside)
    large = estimate(load("mixtral-8x22b").geometry, H100, Tokens(decodes=1, context=100), 2.0, FITS)
    assert any(sentence.startswith("hbm (80 GB) does not hold") for sentence in large.outside)
    mixed = estimate(load("qwen3-30b-a3b").geometry, H100, Tokens(decodes=1, context=1), 8.0, FITS, "int4")
    untimed = [sentence for sentence in mixed.outside if "no measured operator" in sentence]
    assert any(sentence.startswith("query, key, value") for sentence in untimed)
    assert not any(sentence.startswith("routed experts") for sentence in untimed), "4-bit experts were measured"


def test_energy_is_the_sum_over_bytes_operations_and_time():
    made = estimate(load("qwen3-30b-a3b").geometry, H100X2, Tokens(decodes=8, context=500), 50.0, FITS)
    found = made.cost.joules_of
    n_bytes = 2 * made.operations().filter(resource="sm")["bytes"].sum()
    assert found["tiers.hbm"].value[0] == pytest.approx(8e-12 * 3.9 * n_bytes)
    assert all(of.low[0] <= of.value[0] <= of.high[0] for of in found.values())
    assert found["links.nvlink"].value[0] > 0
    assert made.cost.joules.value[0] == pytest.approx(sum(of.value[0] for of in found.values()))
    alone = estimate(load("qwen3-30b-a3b").geometry, H100, Tokens(decodes=8, context=500), 50.0, FITS)
    assert not any(part.startswith("links") for part in alone.cost.joules_of)


def test_keys_and_values_lie_in_their_own_memory_as_far_as_they_fit_and_new_ones_are_written():
    """Kelle's chip holds 4 MiB of them; the rest is in DRAM."""
    g, chip = load("llama-2-7b").geometry, load_machine("kelle-edram")
    token_bytes = 2 * g.n_kv_heads * g.head_dim * 2
    for context in (4, 1024):
        rows = estimate(g, chip, Tokens(decodes=1, context=context), 0).work.rows
        moved = {(r.kind, r.tier): float(np.sum(r.bytes)) * (g.n_layers if np.size(r.bytes) == 1 else 1) for r in rows}
        held = g.n_layers * token_bytes * context
        near = min(1.0, 4 * 2**20 / held)
        assert moved["kv_read", "kv_cache"] == pytest.approx(near * held)
        assert moved["kv_read", "kv_home"] == pytest.approx((1 - near) * held, abs=1e-6)
        assert moved["kv_write", "kv_cache"] == pytest.approx(near * g.n_layers * token_bytes)
        assert moved["kv_write", "kv_home"] == pytest.approx((1 - near) * g.n_layers * token_bytes, abs=1e-6)


def test_nodes_verified_at_once_read_weights_and_cache_once():
    geometry, machine = load("qwen3-30b-a3b").geometry, load_machine("elmoe3d-8gb")
    one, four = (
        steps_of(geometry, machine, Tokens(decodes=2.0, context=1000.0, nodes=nodes), (), blocks_of(geometry))
        for nodes in (1.0, 4.0)
    )
    for alone, together in zip(one.rows, four.rows, strict=True):
        more = 4.0 if alone.kind == "kv_write" else 1.0
        assert np.allclose(together.bytes, more * np.asarray(alone.bytes)), alone.name
        assert np.allclose(together.ops, 4.0 * np.asarray(alone.ops)), alone.name
        assert np.allclose(together.activation_bytes, 4.0 * np.asarray(alone.activation_bytes)), alone.name

"""What a step carries as the sums that its rows are linear in."""

from dataclasses import replace

import numpy as np
import pytest

from tokentape.hw import profile
from tokentape.hw.clock import clock
from tokentape.hw.spec import load, with_values
from tokentape.replay.passes import fits_of
from tokentape.replay.serving.coverage import FixedCoverage
from tokentape.replay.serving.iteration import iteration_costs
from tokentape.replay.tokens import Tokens, blocks_of
from tokentape.replay.transformer import resident, staged, steps_of, weight_bytes
from tokentape.warehouse import model_sizes
from tokentape.warehouse.model_config import from_config
from tokentape.warehouse.models import load as load_model


def test_a_slice_has_the_pairs_of_its_tokens_and_the_length_of_alike_slices_with_as_many():
    """Worked by hand: tokens 4, 5, 6 see 4, 5 and 6 keys, or with a window of 5 at most 5."""
    sums = Tokens(prompt=3, before=3).sums(np.array([0, 5]))
    assert sums.pairs.tolist() == [[15, 14]]
    assert sums.seen.tolist() == [[6, 6]]
    assert sums.length.tolist() == [[3, 3]]
    assert sums.before.tolist() == [[3, 3]]
    assert Tokens(prompt=5000).sums(np.array([0, 128, 5000])).length.tolist() == [[5000, 5000, 5000]]


def test_cutting_a_prompt_into_slices_costs_attention_launches_and_last_tiles_only():
    """Sixteen slices of a prompt have its pairs; as long prompts of their own they would have 8.5 times as many."""
    geometry, machine = load_model("qwen3-30b-a3b").geometry, load("h100")
    blocks, costs = blocks_of(geometry), profile.load("physical")

    def attention_s(prompt, before):
        work = steps_of(geometry, machine, Tokens(prompt=prompt, before=before), (), blocks)
        found = clock(work, machine, costs, fits_of(machine, "bf16"))
        return float(sum(work.total(found.rows_s[id(rows)]).sum() for rows in work.rows if rows.kind == "attend"))

    whole, slices = attention_s(8192, 0), attention_s(512, 512 * np.arange(16))
    assert whole < slices < 1.6 * whole


def test_what_a_cache_keeps_is_what_is_attended_to_read_and_written():
    """A budget cuts the context, narrower values the bytes, layer inputs stand for keys and values and are multiplied anew."""
    geometry, machine = load_model("llama-2-7b").geometry, load("mac-unified")
    blocks = blocks_of(geometry)

    def rows(**more):
        made = steps_of(geometry, machine, Tokens(decodes=2, context=1000, **more), (), blocks)
        kinds = ("kv_read", "kv_write", "recompute")
        return {kind: sum(work_of(made, row) for row in made.rows if row.kind == kind) for kind in kinds}

    def work_of(made, row):
        return np.array([made.total(made.by_cell(row, values))[0] for values in (row.bytes, row.ops)])

    token = 32 * 2 * 4096 * 2.0  # bytes, all layers
    full, kept = rows(), rows(budget=250)
    assert full["kv_read"] == pytest.approx([2 * 1000 * token, 2 * 1000 * 32 * 4 * 4096])
    assert kept["kv_read"] == pytest.approx(full["kv_read"] / 4)
    assert kept["kv_write"] == pytest.approx([2 * token, 0.0]) == full["kv_write"]
    assert rows(kv_frac=0.25)["kv_read"] == pytest.approx([2 * 1000 * token / 4, full["kv_read"][1]])
    anew = rows(recomputed=0.5)
    assert anew["kv_read"] == pytest.approx([2 * 1000 * token * (0.5 + 0.25), full["kv_read"][1]])
    assert anew["recompute"] == pytest.approx([0.0, 2.0 * 2 * 500 * 32 * 4096 * 2 * 4096])
    prompt = steps_of(geometry, machine, Tokens(prompt=64, prompts=2, budget=20), (), blocks)
    assert sum(work_of(prompt, row)[0] for row in prompt.rows if row.kind == "kv_write") == pytest.approx(2 * 20 * token)


def test_parts_of_an_expert_and_narrower_spaces_have_activations_of_their_own():
    geometry, machine = load_model("qwen3-30b-a3b").geometry, load("h100x8")
    for is_whole, n_parts in ((False, 8), (True, 1)):
        (rows,) = resident(geometry, replace(machine, expert_parallel=is_whole), blocks_of(geometry), 1.0, 8.0, "bf16")
        assert rows.activation_bytes == 8 * 2 * (2 * n_parts * 2048 + 3 * 768)
    wide = from_config(_SMALL | {"model_type": "muse_spark_text", **_EXPERTS, "moe_hidden_size": 8})
    narrow, machine = wide.model_copy(update={"hidden": 8, "expert_hidden": 0}), load("h100")
    found = [resident(g, machine, blocks_of(g), np.array([[5.0]]), 3.0, "bf16")[0] for g in (wide, narrow)]
    for told in ("bytes", "activation_bytes", "ops", "shapes"):
        assert getattr(found[0], told) == getattr(found[1], told), told


def test_weights_pass_through_a_buffer_where_there_is_one():
    geometry = load_model("llama-2-7b").geometry
    blocks = blocks_of(geometry)
    for name in ("kelle-edram", "mac-unified"):
        machine = load(name)
        made = staged(steps_of(geometry, machine, Tokens(decodes=1, context=1), (), blocks, "int8"), machine)
        through = [made.total(made.by_cell(row, row.bytes))[0] for row in made.rows if row.kind == "weights"]
        assert through == ([geometry.non_expert_params] if machine.roles.stage else [])


@pytest.mark.parametrize("devices", ["h100", "h100x2"])
def test_layers_with_a_state_read_and_write_it_instead_of_keys_and_values(devices):
    """Two of three layers: as large as 40 tokens' keys and values, whatever the context."""
    attending = load_model("qwen3-8b").geometry.model_copy(update={"n_layers": 3, "has_query_gate": True})
    update = {"state_layers": (0, 2), "sliding_windows": (40, 0, 40), "mixer_in": 6000, "mixer_out": 2000, "mixer_others": 7}
    geometry, machine = attending.model_copy(update=update), load(devices)

    def rows(of, context):
        blocks = blocks_of(of)
        made = steps_of(of, machine, Tokens(decodes=2, context=context), (), blocks)
        read = sum(made.total(made.by_cell(row, row.bytes))[0] for row in made.rows if row.kind == "kv_read")
        return made.total(weight_bytes(made))[0], read

    token = 2 * 8 * 128 * 2.0
    assert rows(geometry, 1000) == pytest.approx((2 * geometry.non_expert_params, 2 * (1000 + 2 * 2 * 40) * token))
    assert rows(geometry, 9000)[1] - rows(geometry, 1000)[1] == pytest.approx(2 * 8000 * token)
    assert rows(attending, 1000) == pytest.approx((2 * attending.non_expert_params, 2 * 3 * 1000 * token))
    assert geometry.non_expert_params - attending.non_expert_params == 2 * (4096 * 8000 - attending.attention_params)


_SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 8, "vocab_size": 500}
_SMALL |= {"num_key_value_heads": 4, "head_dim": 8, "sliding_window": 7, "hidden_size_per_layer_input": 0}
_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LATENT = {"kv_lora_rank": 16, "q_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}


@pytest.mark.parametrize("devices", ["h100", "h100x2"])
@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gemma4_text", "global_head_dim": 16, "attention_k_eq_v": True, "num_global_key_value_heads": 2},
        {"model_type": "mimo_v2_flash", "v_head_dim": 6, **_EXPERTS},
        {"model_type": "step3p5", "attention_other_setting": {"num_attention_heads": 12}, **_EXPERTS}
        | {"layer_types": ["full_attention", "sliding_attention"] * 3},
        {"model_type": "muse_spark_text", **_EXPERTS, "moe_hidden_size": 8},
        {"model_type": "longcat_flash", **_LATENT, **_EXPERTS, "zero_expert_num": 4},
        {"model_type": "deepseek_v32", **_LATENT, **_EXPERTS, "index_head_dim": 8, "index_n_heads": 2, "sliding_window": None}
        | {"mla_use_output_gate": True, "indexer_types": ["full", "full", "shared"] * 2},
        {"model_type": "falcon_h1", "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_d_conv": 4}
        | {"mamba_n_groups": 1, "sliding_window": None},
    ],
    ids=lambda config: config["model_type"],
)
def test_steps_of_layers_that_differ_read_and_multiply_what_the_geometry_counts(config, devices):
    """Routed experts aside, which are no rows of these steps; a state is written anew by every token."""
    g, machine, n, n_devices = from_config(_SMALL | config), load(devices), 50, load(devices).n_devices

    def made(tokens):
        work = steps_of(g, machine, tokens, (), blocks_of(g))
        ops = sum(work.total(work.by_cell(row, row.ops))[0] for row in work.rows)
        read = sum(work.total(work.by_cell(row, row.bytes))[0] for row in work.rows if row.kind == "kv_read")
        return ops, read, work.total(weight_bytes(work))[0]

    chosen = 2 * len(g.moe_layers) * g.top_k * g.expert_params
    state = (
        len(g.state_layers) * min(n, g.state_tokens) * model_sizes.kv_layer_bytes_per_token(g, "bf16") if g.state_layers else 0
    )
    copies = n_devices if g.kv_lora_rank else 1  # every device has the whole latent
    ops, read, weights = made(Tokens(decodes=1, context=n))
    assert read == pytest.approx(copies * (model_sizes.kv_bytes(g, n, "bf16") + state))
    if n_devices == 1:  # others have routers of their own
        assert ops == pytest.approx(model_sizes.ops_per_token(g, n) - chosen)
        assert weights == pytest.approx(2 * g.non_expert_params)
        close = 0.03 if g.tokens_beside else 1e-6  # a prompt's first tokens as if the state held as many as ever
        assert made(Tokens(prompt=n))[0] == pytest.approx(model_sizes.prefill_ops(g, n) - n * chosen, rel=close)
        near = with_values(load("kelle-sram"), {"tiers.kv.capacity_bytes": 0.3 * model_sizes.kv_bytes(g, n, "bf16")})
        work = steps_of(g, near, Tokens(decodes=1, context=n), (), blocks_of(g))
        lies = [
            (row.tier == "kv_cache", work.total(work.by_cell(row, row.bytes))[0]) for row in work.rows if row.kind == "kv_read"
        ]
        assert sum(n_bytes for is_near, n_bytes in lies if is_near) == pytest.approx(0.3 * read)  # what fits


def test_replicas_have_a_near_tier_each():
    """Two devices that share no layer hold twice the keys near them; an iteration takes as long as the step."""
    g = load_model("llama-3-8b").geometry
    one = with_values(load("kelle-sram"), {"tiers.kv.capacity_bytes": 0.3 * model_sizes.kv_bytes(g, 999, "bf16")})
    two = replace(one, n_devices=2, data_parallel=2)
    for machine in (one, two):
        work = steps_of(g, machine, Tokens(decodes=machine.n_devices, context=999), (), blocks_of(g))
        read = {row.tier: work.summed(row, row.bytes)[0] for row in work.rows if row.kind == "kv_read"}
        assert read["kv_cache"] / sum(read.values()) == pytest.approx(0.3)
        seconds = clock(work, machine, profile.load("physical")).seconds.value[0]
        cost = iteration_costs(g, machine, FixedCoverage(1.0))
        assert cost.decode_step_s(machine.n_devices, 999) == pytest.approx(seconds)

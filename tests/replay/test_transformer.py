"""What a step carries as the sums that its rows are linear in."""

import numpy as np
import pytest

from tokentape.hw import profile
from tokentape.hw.clock import clock
from tokentape.hw.spec import load
from tokentape.replay.passes import fits_of
from tokentape.replay.transformer import Tokens, blocks_of, staged, steps_of, weight_bytes
from tokentape.warehouse.models import load as load_model


def test_a_slice_has_the_pairs_of_its_tokens_and_the_length_of_a_whole_prompt_with_as_many():
    """Worked by hand: tokens 4, 5, 6 see 4, 5 and 6 keys, or with a window of 5 at most 5."""
    sums = Tokens(prompt=3, before=3).sums(np.array([0, 5]))
    assert sums.pairs.tolist() == [[15, 14]]
    assert sums.seen.tolist() == [[6, 6]]
    assert sums.length[0, 0] == pytest.approx((121**0.5 - 1) / 2)
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

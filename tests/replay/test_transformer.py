"""What a step carries as the sums that its rows are linear in."""

from __future__ import annotations

import numpy as np
import pytest

from tokentape.hw import profile
from tokentape.hw.clock import clock
from tokentape.hw.spec import load
from tokentape.replay.passes import fits_of
from tokentape.replay.transformer import Tokens, blocks_of, steps_of
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

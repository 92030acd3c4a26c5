"""What a replay leaves out of a step, by the estimate of `step`: said above 5 %, and where it cannot be told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tapes import GEOMETRY, make_tables, make_trace

from tokentape.hw import calibrate
from tokentape.hw.spec import load
from tokentape.replay import uncounted
from tokentape.replay.estimate import Load, beside_weights, estimate
from tokentape.replay.trace import trace_from_tables

GPU, PHONE = load("h100-cxl-ndp"), load("phone-lpddr5x-ufs4")
TRACE = make_trace()


def test_a_step_of_microseconds_says_that_attention_and_launches_take_twenty_times_as_long():
    fits = calibrate.fits_of(GPU, calibrate.shipped())
    made = estimate(GEOMETRY, GPU, Load(batch=1, context_tokens=21), 2.0, fits, profile="gpu_operators")
    estimated_s = made.cost.seconds.value[0]
    counted_s = estimated_s / 20
    (said,) = uncounted.findings(TRACE, GPU, np.full(TRACE.pass_ids.size, counted_s))
    assert f"beside {1e6 * counted_s:.3g} us that are" in said
    left_out_s = 1e-6 * float(said.partition("not counted: ")[2].split()[0])
    assert 0.9 * estimated_s < left_out_s < estimated_s  # all but what weights take
    assert "(batch 1 at 21 tokens)" in said  # positions 10 to 29 decode: 20.5 tokens on average


def test_attention_is_said_to_be_left_out_once_the_context_is_long():
    """Same weights on a machine whose launches nobody measured: KV is nothing beside flash reads, until there is much of it."""
    step_s = np.full(TRACE.pass_ids.size, 2e-4)
    assert not uncounted.findings(TRACE, PHONE, step_s)
    far = replace(TRACE, row_position=TRACE.row_position + 10_000)
    assert "attention over the KV cache" in uncounted.findings(far, PHONE, step_s)[0]


@pytest.mark.parametrize(("times", "said"), [(20.5, False), (19.5, True)])
def test_the_bound_is_a_twentieth_of_the_step(times, said):
    fits = calibrate.fits_of(GPU, calibrate.shipped())
    made = estimate(GEOMETRY, GPU, Load(batch=1, context_tokens=21), 2.0, fits, profile="gpu_operators")
    both_s, launches_s = beside_weights(made), beside_weights(made, with_attention=False)
    assert both_s > launches_s > 0
    for counts_kv, left_out_s in ((False, both_s), (True, launches_s)):
        step_s = np.full(TRACE.pass_ids.size, times * left_out_s)
        assert bool(uncounted.findings(TRACE, GPU, step_s, counts_kv)) == said


def test_only_prompts_are_judged_where_nothing_decodes():
    routing, passes = make_tables(n_decode=0, n_prompt=16)
    (said,) = uncounted.findings(trace_from_tables("p", GEOMETRY, "synthetic", routing, passes), GPU, np.full(3, 1e-9))
    assert "(a prompt of 16 tokens)" in said


def test_what_cannot_be_estimated_says_so():
    shapeless = {"hidden": 0, "n_heads": 0, "n_kv_heads": 0, "head_dim": 0, "vocab": 0, "expert_intermediate": 0}
    recorded = {"recorded_expert_bytes": (4096,) * 3, "recorded_dense_bytes": (512,) * 3}
    imported = replace(TRACE, geometry=GEOMETRY.model_copy(update=shapeless | recorded | {"dense_intermediate": 0}))
    (said,) = uncounted.findings(imported, PHONE, np.ones(TRACE.pass_ids.size))
    assert "kernel launches are not counted, and cannot be estimated: the tape records no widths" in said
    odd = replace(PHONE, measured_as=GPU.measured_as)  # takes the GPU's constants, and has none of its numbers
    (said,) = uncounted.findings(TRACE, odd, np.ones(TRACE.pass_ids.size))
    assert "cannot be estimated: phone-lpddr5x-ufs4: engines.npu.n_units is missing" in said

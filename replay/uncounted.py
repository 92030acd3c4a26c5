"""What the steps of a replay leave out, by the estimate of `tokentape step`: attention, launches, sums over devices.

A replay counts weights: their bytes, and the operations of their products. Small models, long contexts and fast machines spend
their time elsewhere; then a result says so, and is an extrapolation.
"""

from __future__ import annotations

import numpy as np

from tokentape.hw.calibrate import fits_of, shipped
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats
from tokentape.replay.estimate import Load, beside_weights, estimate
from tokentape.replay.trace import DECODE, Trace

MOST = 0.05  # of a step, that may be left out in silence


def findings(trace: Trace, hardware: HardwareSpec, step_s: Floats, counts_kv: bool = False) -> list[str]:
    """One sentence where what is left out exceeds 5 % of the mean decode pass (the mean prefill pass, where none decodes).

    step_s: (p,) seconds that the replay gives each pass; counts_kv: reading the cache is among them. Also where it cannot be
    estimated: a tape without widths or heads, or a machine on which a step has no estimate.
    """
    geometry, decodes = trace.geometry, trace.pass_kind == DECODE
    what = "kernel launches are not counted" if counts_kv else "attention over the KV cache and kernel launches are not counted"
    if not (geometry.hidden and geometry.n_heads and (geometry.head_dim or geometry.kv_lora_rank)):
        return [f"{what}, and cannot be estimated: the tape records no widths and heads"]
    chosen = decodes if decodes.any() else ~decodes
    batch = max(1, round(float(np.diff(trace.member_offsets)[chosen].mean())))
    if decodes.any():
        context = round(float(trace.row_position[decodes[trace.row_pass]].mean())) + 1
        load, carried = Load(batch=batch, context_tokens=context), f"batch {batch} at {context} tokens"
    else:
        prompt = max(1, round(float(trace.pass_tokens.mean() / batch)))
        load, carried = Load(batch=0, context_tokens=1, prompt_tokens=prompt), f"a prompt of {prompt} tokens"
    try:
        # Neither attention nor launches depend on how many experts are touched, nor on the format of their weights.
        made = estimate(geometry, hardware, load, geometry.top_k, fits_of(hardware, shipped()), profile="gpu_operators")
    except ValueError as error:
        return [f"{what}, and cannot be estimated: {error}"]
    left_out_s, counted_s = beside_weights(made, not counts_kv), float(step_s[chosen].mean())
    if left_out_s <= MOST * counted_s:
        return []
    return [f"{what}: {1e6 * left_out_s:.3g} us by the estimate of `step` ({carried}) beside {1e6 * counted_s:.3g} us that are"]

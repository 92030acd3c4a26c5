"""A prompt on Kelle's systems. The paper has no prefill model: all of this is assumed, and reported only.

Weights stream once for all prompts of the batch; activations stay on the chip; attention is causal; kept KV that does not fit on
the chip is written to DRAM. Work and transfers run side by side.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tokentape.hw.clock import clock
from tokentape.hw.profile import Profile
from tokentape.replay.kelle.step import budget_of, bytes_of, fed, kv_bytes_per_token, kv_frac, rows_of
from tokentape.replay.kelle.systems import System
from tokentape.replay.kelle.work import PAPER, Accounting, Work
from tokentape.replay.transformer import Tokens
from tokentape.warehouse.geometry import Geometry


def prefill(
    geometry: Geometry, system: System, work: Work, profile: Profile, accounting: Accounting = PAPER
) -> tuple[float, float]:
    """Seconds and joules of the batch's prompts."""
    machine, n_prompt, budget = system.machine, work.n_context_tokens, budget_of(system, work)
    frac = kv_frac(geometry, accounting) * work.kv_bits / 16
    tokens = Tokens(prompt=work.batch * n_prompt, prompts=work.batch, budget=budget, kv_frac=frac)
    made = rows_of(geometry, machine, tokens, accounting)
    kept_bytes = work.batch * min(n_prompt, budget) * kv_bytes_per_token(geometry, accounting, work.kv_bits)
    through = fed(machine, made, bytes_of(made, "kv_write", "kv_home"), np.zeros(1), is_written=False)
    rows = tuple(replace(one, phase="prefill") for one in (*made.rows, through))
    cost = clock(
        replace(made, rows=rows, held_bytes={"kv_cache": kept_bytes, "transient": np.inf}), machine, profile, ends=("value",)
    )
    return float(cost.seconds.value[0]), float(cost.joules.value[0])

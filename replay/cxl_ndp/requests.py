"""Rows of `cxl_ndp_requests`: batches from the first prompt token to the last output token, over both grids of lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from tokentape.replay.cxl_ndp.decode import Decoded
from tokentape.replay.cxl_ndp.prefill import Request, prefill, request
from tokentape.replay.cxl_ndp.setting import Setting
from tokentape.replay.cxl_ndp.system import HOBBIT, MONDE, Setup

PARTS = ("prefill_s", "transfer_s", "other_s", "gpu_s", "wait_s", "ndp_s")


def rows(
    made: Setup,
    setting: Setting,
    by_seed: Sequence[Mapping[str, Decoded]],
    grids: Mapping[str, Sequence[int]],
    decode_tokens: Sequence[int],
) -> Iterator[dict[str, Any]]:
    """Of a model. by_seed: every system's decode in the setting; grids: of prompts, by name.

    Times are means over seeds, so that parts sum to e2e_s; gains are medians. Without study, source and origin.
    """
    batch, hot_experts = setting.batch, setting.hot_experts
    of_prompts = {
        (name, context): prefill(made, one.system, context, batch, hot_experts)
        for name, one in by_seed[0].items()
        for context in set().union(*grids.values())
    }
    for (grid, contexts), n_decode in product(grids.items(), decode_tokens):
        for context in contexts:
            ran: list[dict[str, Request]] = [
                {name: request(one, of_prompts[name, context], n_decode) for name, one in found.items()} for found in by_seed
            ]
            for system in ran[0]:
                mine = [one[system] for one in ran]
                gain = np.array([one[MONDE].seconds / one[system].seconds for one in ran])
                parts = {part: float(np.mean([getattr(one, part) for one in mine])) for part in PARTS}
                yield {
                    "setting": grid,
                    "model_id": made.name,
                    "hardware": made.machine.name,
                    "system": system,
                    "batch": batch,
                    "n_context_tokens": context,
                    "n_decode_tokens": n_decode,
                    "streamed_experts": mine[0].streamed_experts,
                    **parts,
                    "e2e_s": float(np.mean([one.seconds for one in mine])),
                    "e2e_gain": float(np.median(gain)),
                    "low": float(gain.min()),
                    "high": float(gain.max()),
                    "gain_over_hobbit": float(np.median([one[HOBBIT].seconds / one[system].seconds for one in ran])),
                    "is_extrapolated": mine[0].is_extrapolated,
                    "n_seeds": len(ran),
                }

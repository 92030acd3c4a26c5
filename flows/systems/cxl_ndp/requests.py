"""Rows of `cxl_ndp_requests`: batches from the first prompt token to the last output token, over both grids of lengths."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from tokentape.flows.systems.cxl_ndp.points import decoded, headline
from tokentape.flows.systems.cxl_ndp.settings import Model, Setup
from tokentape.flows.systems.cxl_ndp.tapes import DRAWN
from tokentape.replay.cxl_ndp.prefill import Request, request
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.system import HOBBIT, MONDE

PARTS = ("prefill_s", "transfer_s", "other_s", "gpu_s", "wait_s", "ndp_s")


def rows(made: Setup, model: Model, tapes: dict[int, CXLNDPRouting]) -> Iterator[dict[str, Any]]:
    """Of a model's headline. Times are means over seeds, so that parts sum to e2e_s; gains are medians."""
    of = headline(made, model)
    by_seed = [decoded(made, tape, seed, of) for seed, tape in tapes.items()]
    asked, batch = made.study.requests, of.setting.batch
    for (grid, contexts), n_decode in product(asked.grids.items(), asked.decode_tokens):
        for context in contexts:
            ran: list[dict[str, Request]] = [
                {
                    name: request(one, made.machine, made.knobs, context, n_decode, batch, model.hot_experts)
                    for name, one in found.items()
                }
                for found in by_seed
            ]
            for system in ran[0]:
                mine = [one[system] for one in ran]
                gain = np.array([one[MONDE].seconds / one[system].seconds for one in ran])
                parts = {part: float(np.mean([getattr(one, part) for one in mine])) for part in PARTS}
                yield {
                    "setting": grid,
                    "model_id": made.shape.name,
                    "source": DRAWN,
                    "origin": "synthetic",
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

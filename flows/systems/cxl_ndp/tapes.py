"""Tapes of the model that ships, and what stands in for the losses of models that are not at hand."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tokentape.flows.systems.cxl_ndp.settings import Settings
from tokentape.policies.replicas import WIDTHS, levels
from tokentape.warehouse.tape import Store

DRAWN = "context"  # source of drawn routing, in every table
GAUSSIAN_SHAPE = (256, 4096)  # weights whose errors stand in for an expert's


@lru_cache(maxsize=1)
def gaussian_errors() -> tuple[float, ...]:
    """Squared error of round-to-nearest at 1 to 4 bits, over that of the weights, on Gaussian weights."""
    weights = np.random.default_rng(0).standard_normal(GAUSSIAN_SHAPE, np.float32)
    power = float(np.square(weights).mean())
    return tuple(float(np.square(levels(weights, bits).nearest(weights) - weights).mean()) / power for bits in WIDTHS)


def recorded(store: Store, study: Settings) -> list[str]:
    """Ids of the study's tapes of a live model, captured where they are missing."""
    from tokentape.capture.plan import CaptureSettings
    from tokentape.capture.run import capture

    of = study.recorded
    return [
        capture(
            CaptureSettings(
                model=of.model,
                dataset=dataset,
                tables=("requests", "tokens", "passes", "routing"),
                max_requests=of.requests,
                max_prompt_tokens=of.prompt,
                max_new_tokens=of.output,
                batch_size=of.batch_size,
            ),
            store,
            resume=True,
        )
        for dataset in of.datasets
    ]

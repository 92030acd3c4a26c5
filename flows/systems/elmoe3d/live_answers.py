"""What slices and the live model say about the paper's numbers: errors of four-bit codes, and what a hot pool gains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.flows.answers import Row, answer, stated
from tokentape.flows.systems.elmoe3d.settings import PAPER, Settings
from tokentape.policies.matryoshka import low
from tokentape.policies.quantise import Quantised

Floats = NDArray[np.float64]
LOW_BITS = 4
# Of a claim's metric: the scheme whose error it bounds.
SCHEMES = {"truncation_error_low4": "trunc_sym", "rounding_error_low4": "round_sym"}
GAIN = "hotness_vs_random_pool_acceptance_gain"
METRIC = "tau_accepted"


def live_answers(study: Settings, points: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows of table `answers`. points: rows of acceptance_points; without those of the pools their claim stays open."""
    claims = stated(PAPER).values()
    gain = _gain(study, list(points))
    made = [found for claim in claims if claim["metric"] in SCHEMES for found in _of_slices(claim)]
    return made + [gain | {"claim_id": claim["claim_id"]} for claim in claims if claim["metric"] == GAIN and gain]


def _of_slices(claim: Mapping[str, Any]) -> Iterator[Row]:
    """Least or largest error over all INT8 codes; mode `paper` leaves out those whose low-bit code saturates."""
    codes, errors = _errors(SCHEMES[claim["metric"]])
    end = {"min": np.min, "max": np.max}[claim["statistic"]]
    step = 2 ** (8 - LOW_BITS)
    fits = codes < 127 - (step // 2 - 1)
    yield answer(claim["claim_id"], float(end(errors[fits])), "over all INT8 codes that rounding does not saturate")
    yield answer(claim["claim_id"], float(end(errors)), "over all INT8 codes", "physical")


def _errors(scheme: str) -> tuple[Floats, Floats]:
    """Every INT8 code, and the code less what its low bits say."""
    codes = np.arange(-128, 128)
    whole = Quantised(codes.astype(np.int8), np.ones(1, np.float32), None, 8, codes.size)
    return codes.astype(np.float64), codes - low(whole, LOW_BITS, scheme).astype(np.float64)


def _gain(study: Settings, points: list[Mapping[str, Any]]) -> Row | None:
    """Accepted length with a hot pool over that with a random one, less 1, in percent; None where they were not measured."""
    size = study.live.gain_at
    at = {
        point["pool_policy"]: point
        for point in points
        if (point["series"], point["metric"], point["pool_frac"], point["batch"]) == ("pool", METRIC, size, 1)
    }
    if not {"hotness", "random"} <= set(at):
        return None
    hot, drawn = at["hotness"], at["random"]
    how = f"{hot['model_id']} on {hot['dataset']}, {size:.0%} of the experts in the pool, {hot['n_seeds']} seeds"
    ends = tuple(100.0 * (hot[end] / drawn[other] - 1.0) for end, other in (("low", "high"), ("high", "low")))
    return answer("", 100.0 * (hot["value"] / drawn["value"] - 1.0), how, ends=(ends[0], ends[1]))

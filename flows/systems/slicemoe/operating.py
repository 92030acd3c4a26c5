"""Which miss rates the gains imply: the paper's published pairs of energy and speed, and the study's own, read backwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from tokentape.flows.answers import stated
from tokentape.flows.systems.slicemoe.answers import FIG_9, FIG_10, GAINS, best_gains, chosen_tau, gains_by_seed, warmup_gains
from tokentape.hw.spec import HardwareSpec
from tokentape.policies.matryoshka import MAT
from tokentape.policies.sliced import SlicedCache
from tokentape.replay.slicemoe.operating_point import implied_operating_point
from tokentape.warehouse import models

LSB_FRACS = (0.0, 0.05, 0.1, 0.15)  # of accesses that read the LSB slice; the paper does not say how many do
Pair = tuple[float, float]  # gains in energy and in speed


def operating_points(study: Any, machine: HardwareSpec, points: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of table `operating_points`: of every pair and model, one per share of accesses that read the LSB slice.

    Of slicing, the baseline reads whole experts; of warm-ups, both sides read the same share. The paper states its warm-up's
    gains for no model: they are read for each. A pair that fixes no two miss rates (equal gains) has no rows.
    """
    widths = MAT.parse(study.pairs[0])
    cache, rows = SlicedCache(bits_high=widths.high, bits_low=widths.low), []
    for model in study.models:
        geometry = models.load(model.name).geometry
        for claim, origin, gained, is_sliced in _pairs(study, points, model.name):
            for lsb_frac in LSB_FRACS:
                shares = {"baseline_lsb_frac": 1.0 if is_sliced else lsb_frac, "ours_lsb_frac": lsb_frac}
                try:
                    implied = implied_operating_point(geometry, machine, *gained, cache, **shares)
                except ValueError:
                    continue
                rows.append(
                    {
                        "claim": claim,
                        "model_id": model.name,
                        "hardware": machine.name,
                        "origin": origin,
                        "energy_gain": gained[0],
                        "speed_gain": gained[1],
                        "lsb_frac": lsb_frac,
                        "baseline_miss_frac": implied.baseline_miss_frac,
                        "ours_miss_frac": implied.ours_miss_frac,
                    }
                )
    return rows


def _pairs(study: Any, points: pl.DataFrame, model: str) -> Iterator[tuple[str, str, Pair, bool]]:
    """What is claimed, its origin, the two gains, and whether the baseline is a cache of whole experts.

    Ours of slicing are at the one capacity that gains most energy; means over seeds.
    """
    tau = chosen_tau(study, points)
    capacity, _ = best_gains(study, points, model, tau, "energy")
    sliced = gains_by_seed(study, points, model, tau, capacity, "last_layer")
    warmed = {name: warmup_gains(study, points, model, f"early_{name}") for name in GAINS.values()}
    for claim_id, ours in (
        (FIG_9, {name: [gain[name] for gain in sliced] for name in GAINS.values()}),
        (FIG_10, warmed),
    ):
        paper = {name: stated("slicemoe")[claim_id.format(metric, model)] for metric, name in GAINS.items()}
        claim, is_sliced = paper["energy"]["setting"], claim_id == FIG_9
        yield claim, "paper", (paper["energy"]["value"], paper["speed"]["value"]), is_sliced
        ours_claim = claim.replace("matched accuracy", "matched kept gate mass")  # a replay sees no accuracy
        yield ours_claim, "replay", (float(np.mean(ours["energy"])), float(np.mean(ours["speed"]))), is_sliced

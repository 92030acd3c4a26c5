"""What bit-sliced caching gains, read off a study's sweeps at equal quality, and the miss rates that gains imply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from tokentape.hw.spec import HardwareSpec
from tokentape.policies.matryoshka import MAT
from tokentape.policies.sliced import SlicedCache
from tokentape.replay.matched import METRICS, Point, at_quality, gains
from tokentape.replay.slicemoe.operating_point import implied_operating_point
from tokentape.warehouse.geometry import Geometry

FIG_9 = "slicemoe/6.3-fig-9/decode_{}/max/{}/dbsc-over-high-bit-cache-prior-at-matched-accuracy"
FIG_10 = "slicemoe/6.3-fig-10/decode_{}/pcw-over-empty-initial-cache"
GAINS = {"energy_gain": "energy", "speedup": "speed"}  # of a claim's metric -> of replay.matched.gains
LSB_FRACS = (0.0, 0.05, 0.1, 0.15)  # of accesses that read the LSB slice; the paper does not say how many do
Claims = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Swept:
    """points: rows of `slicemoe_points` of every model and seed; pair: of widths; capacities: bytes of the cache; quality_frac:
    kept gate mass at which sweeps are read; warmup_frac: the hard budget under which warm-ups are compared."""

    points: pl.DataFrame
    pair: str
    capacities: Sequence[int]
    taus: Sequence[float]
    quality_frac: float
    warmup_frac: float

    def by_seed(self, model: str, tau: float, capacity_bytes: int) -> list[dict[str, float]]:
        """Gains of DBSC over the high-bit cache at equal quality."""
        here = (pl.col("model_id") == model) & (pl.col("capacity_bytes") == capacity_bytes) & (pl.col("budget") == "none")
        here &= (pl.col("pair") == self.pair) & (pl.col("router") == "cache_prior") & (pl.col("warmup") == "last_layer")
        baseline = self._matched(here & (pl.col("configuration") == "high-bit"))
        ours = self._matched(here & (pl.col("configuration") == "dbsc") & (pl.col("tau") == tau))
        return [gains(baseline[seed], ours[seed]) for seed in sorted(ours)]

    def _matched(self, where: pl.Expr) -> dict[int, Point]:
        """By seed: the sweep that `where` picks, read at the quality."""
        of = self.points.filter(where).sort("seed", "strength").group_by(["seed"], maintain_order=True)
        return {int(seed): at_quality(_points(rows), self.quality_frac) for (seed,), rows in of}

    def best(self, model: str, tau: float, name: str) -> tuple[int, list[float]]:
        """The capacity with the largest mean gain ("up to"), and the gains of its seeds. name: of replay.matched.gains."""
        found = {capacity: [gain[name] for gain in self.by_seed(model, tau, capacity)] for capacity in self.capacities}
        best = max(found, key=lambda capacity: float(np.mean(found[capacity])))
        return best, found[best]

    def tau(self, models: Sequence[str], claims: Claims) -> float:
        """The threshold that comes nearest to the published gains of these models: the least sum of |ln(ours / published)|."""

        def error(tau: float) -> float:
            total = 0.0
            for model in models:
                for metric, name in GAINS.items():
                    ours = float(np.mean(self.best(model, tau, name)[1]))
                    total += abs(float(np.log(ours / claims[FIG_9.format(metric, model)]["value"])))
            return total

        return float(min(self.taus, key=error))

    def warmed(self, model: str, name: str) -> list[float]:
        """Gains of PCW over an empty cache under the warm-ups' budget, seed by seed."""
        is_held = (pl.col("model_id") == model) & (pl.col("target_frac") == self.warmup_frac)
        held = self.points.filter(is_held & (pl.col("configuration") == "dbsc")).sort("seed")
        empty, pcw = (_points(held.filter(pl.col("warmup") == warmup)) for warmup in ("empty", "pcw"))
        return [gains(one, other)[name] for one, other in zip(empty, pcw, strict=True)]


def _points(rows: pl.DataFrame) -> list[Point]:
    return [Point(**row) for row in rows.select("strength", "quality_frac", *METRICS).to_dicts()]


def operating_points(
    swept: Swept, tau: float, geometries: Mapping[str, Geometry], machine: HardwareSpec, claims: Claims
) -> list[dict[str, Any]]:
    """Rows of `operating_points`: of every pair of gains and model, one per share of accesses that read the LSB slice.

    Of slicing, the baseline reads whole experts; of warm-ups, both sides read the same share. The paper states its warm-up's
    gains for no model: they are read for each. A pair that fixes no two miss rates (equal gains) has no rows.
    """
    widths = MAT.parse(swept.pair)
    cache, rows = SlicedCache(bits_high=widths.high, bits_low=widths.low), []
    for model, geometry in geometries.items():
        for claim, origin, (energy, speed), is_sliced in _pairs(swept, tau, model, claims):
            for lsb_frac in LSB_FRACS:
                shares = {"baseline_lsb_frac": 1.0 if is_sliced else lsb_frac, "ours_lsb_frac": lsb_frac}
                try:
                    implied = implied_operating_point(geometry, machine, energy, speed, cache, **shares)
                except ValueError:
                    continue
                where = {"claim": claim, "model_id": model, "hardware": machine.name, "origin": origin, "lsb_frac": lsb_frac}
                where |= {"method": "DBSC" if is_sliced else "PCW", "tau": tau}
                missed = {"baseline_miss_frac": implied.baseline_miss_frac, "ours_miss_frac": implied.ours_miss_frac}
                rows.append(where | {"energy_gain": energy, "speed_gain": speed} | missed)
    return rows


def _pairs(swept: Swept, tau: float, model: str, claims: Claims) -> Iterator[tuple[str, str, tuple[float, float], bool]]:
    """What is claimed, its origin, the gains in energy and in speed, and whether the baseline is a cache of whole experts.

    Ours of slicing are at the one capacity that gains most energy; means over seeds.
    """
    sliced = swept.by_seed(model, tau, swept.best(model, tau, "energy")[0])
    of_sliced = {name: [gain[name] for gain in sliced] for name in GAINS.values()}
    of_warmups = {name: swept.warmed(model, f"early_{name}") for name in GAINS.values()}
    for claim_id, ours in ((FIG_9, of_sliced), (FIG_10, of_warmups)):
        paper = {name: claims[claim_id.format(metric, model)] for metric, name in GAINS.items()}
        claim, is_sliced = paper["energy"]["setting"], claim_id == FIG_9
        yield claim, "paper", (paper["energy"]["value"], paper["speed"]["value"]), is_sliced
        ours_claim = claim.replace("matched accuracy", "matched kept gate mass")  # a replay sees no accuracy
        yield ours_claim, "replay", (float(np.mean(ours["energy"])), float(np.mean(ours["speed"]))), is_sliced

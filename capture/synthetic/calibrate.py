"""The one fitted parameter: sd_b, so that an LRU that holds half of the experts misses as often as a published model's does.

The anchor is measured as its source does it: a cache per layer that holds half of that layer's experts, the experts of a token
looked up together, tokens one by one, misses counted over decoded tokens after the prompt has filled the caches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from tokentape.capture.importers.rows import RoutedRows
from tokentape.capture.synthetic.generator import Generator
from tokentape.capture.synthetic.routes import Length, routes
from tokentape.policies.cache import ExpertCache
from tokentape.policies.lru import LRU
from tokentape.warehouse.geometry import Geometry

ROLE = "calibrate"
CACHED_FRAC = 0.5
PRECISION = 0.0005  # of sd_b; the shipped values have three decimals
LARGEST_SD_B = 4.0
ENOUGH = 6  # layers, and draws of so many tokens in each, for a mean


class HalfCached:
    """LRU per layer with half of its experts, advanced request by request; stays warm between requests."""

    def __init__(self, geometry: Geometry) -> None:
        self.layers, self.n_experts = geometry.moe_layers, geometry.n_experts
        n_layers, held = len(self.layers), max(1, int(CACHED_FRAC * self.n_experts))
        self._cache = ExpertCache.of_layers(LRU(), [1] * n_layers, self.n_experts, n_layers * held, per_layer=True)
        self.n_lookups = self.n_misses = 0

    def advance(self, rows: RoutedRows) -> None:
        """Looks up a request's rows as they stand; only those of decoded tokens are counted."""
        n_rows, k = rows.expert_ids.shape
        keys = (np.searchsorted(self.layers, rows.layer)[:, None] * self.n_experts + rows.expert_ids).astype(np.int32).ravel()
        hits = self._cache.advance(keys, np.arange(0, (n_rows + 1) * k, k, dtype=np.int64)).reshape(n_rows, k)
        decoded = hits[rows.is_decode]
        self.n_lookups += decoded.size
        self.n_misses += decoded.size - int(decoded.sum())

    @property
    def miss_frac(self) -> float | None:
        """Misses over lookups of decoded tokens; None before there is one."""
        return self.n_misses / self.n_lookups if self.n_lookups else None


def lru_miss_frac(generator: Generator, geometry: Geometry, seeds: Sequence[int], length: Length) -> float:
    """Mean over `seeds` of the anchor's miss rate, one request each. Raises ValueError if no token is decoded."""
    if length.n_decoded < 1:
        raise ValueError(f"n_output is {length.n_output}; the miss rate of decoded tokens needs 2 or more")
    params = {"top_k": geometry.top_k, "norm_topk_prob": False}  # weights do not matter, and every rule here ranks by logit
    found = []
    for seed in seeds:
        cached = HalfCached(geometry)
        cached.advance(routes(generator, "softmax", params, geometry, seed, 0, length)[0])
        found.append(cached.n_misses / cached.n_lookups)
    return float(np.mean(found))


def calibrate(
    generator: Generator, geometry: Geometry, anchor_lru_miss: float, seeds: Sequence[int], length: Length
) -> tuple[float, float]:
    """sd_b at which the generator misses `anchor_lru_miss` of its lookups, by bisection over the same draws, and what it misses.

    The generator's other parameters stay. Raises ValueError if the anchor lies outside what sd_b in 0..4 can reach.
    """

    def missed(sd_b: float) -> float:
        return lru_miss_frac(replace(generator, sd_b=sd_b), geometry, seeds, length)

    low, high = 0.0, LARGEST_SD_B
    most, least = missed(low), missed(high)
    if not least <= anchor_lru_miss <= most:
        raise ValueError(
            f"LRU miss rate {anchor_lru_miss} is out of reach: sd_b from {low} to {high} gives {most:.3f} to {least:.3f}; "
            "change sd_u or rho, or check the anchor"
        )
    while high - low > PRECISION:  # more popularity, fewer misses
        middle = (low + high) / 2
        low, high = (middle, high) if missed(middle) > anchor_lru_miss else (low, middle)
    sd_b = round((low + high) / 2, 3)
    return sd_b, missed(sd_b)


def spread(generator: Generator, geometry: Geometry, n_tokens: int, distinct: float, seed: int = 0) -> Generator:
    """With the sd_b at which one token each of n_tokens requests touch so many experts of a layer, by bisection over the same
    draws; the end of 0..4 that comes nearest where none does."""
    low, high, k, n_experts = 0.0, LARGEST_SD_B, geometry.top_k, geometry.n_experts
    parts = []
    for layer, first in product(geometry.moe_layers[:ENOUGH], range(0, ENOUGH * n_tokens, n_tokens)):
        noise = zip(*(generator.noise(seed, r, layer, 1, n_experts) for r in range(first, first + n_tokens)), strict=True)
        parts.append((generator.popularity(seed, layer, n_experts), *map(np.concatenate, noise)))
    while high - low > PRECISION:
        middle, counts = (low + high) / 2, []
        for of_layer in parts:
            logits = replace(generator, sd_b=middle).mixed(*of_layer)
            counts.append(np.unique(np.argpartition(logits, -k, axis=1)[:, -k:]).size)
        low, high = (middle, high) if np.mean(counts) > distinct else (low, middle)
    return replace(generator, sd_b=round((low + high) / 2, 3))


def anchor(claims: Iterable[Mapping[str, Any]], claim_id: str) -> float:
    """The claim's value. Raises ValueError for a claim that is not there, withheld, or not of the role to calibrate on."""
    row = next((row for row in claims if row["claim_id"] == claim_id), None)
    if row is None:
        raise ValueError(f"no claim {claim_id!r}; give a claim_id of the table claims")
    if row["role"] != ROLE:
        raise ValueError(f"claim {claim_id}: its role is {row['role']!r}; only claims of role {ROLE!r} may be fitted to")
    if row["value"] is None:
        raise ValueError(f"claim {claim_id} has no value; give one with a value")
    return float(row["value"])

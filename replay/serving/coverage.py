"""Which share of a layer's experts n tokens touch, as tables for the serving engine: published, closed-form or recorded.

Decode tokens come from different requests; prefill tokens from one prompt, where they correlate more. In a layer with both they
count as independent: 1 - (1 - prefill)(1 - decode). Source: Layered Prefill, Table 1 and section 5 of our notes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tokentape.hw.coverage import Heaps, Uniform
from tokentape.hw.work import Floats
from tokentape.replay.coverage import Curve, recorded_by_layer
from tokentape.replay.trace import Trace
from tokentape.warehouse.geometry import Geometry

N_PREFILL, N_DECODE = 32_768, 1_024  # tokens up to which tables reach; beyond, the untouched share falls as 1 / n
LEAST_RECORDED = 4  # tokens of a curve that can be extended
USUAL_PREFILL, USUAL_DECODE = 8_192, 256  # batches of the default settings; a tape with less is extended


class Coverage(ABC):
    """A source of coverage."""

    @abstractmethod
    def tables(self, geometry: Geometry) -> tuple[Floats, Floats]:
        """(N_PREFILL + 1, m) and (N_DECODE + 1, m) shares of 0, 1, 2, ... tokens; m: 1, or one column per MoE layer."""

    def tokens_of_nodes(self, n_nodes: int) -> float:
        """Decode tokens of different requests that touch as many experts as one request's token and its n_nodes drafts: as many
        as there are, an upper bound, since drafts of one request share more."""
        return 1.0 + n_nodes

    def outside(self, geometry: Geometry) -> str:
        """Why a result for this model is extrapolated; empty: it is not."""
        return ""


@dataclass(frozen=True, eq=False)
class PublishedCoverage(Coverage):
    """Published shares of n_tokens (m,) decode tokens, linear in log2 n; above the last the untouched share falls as 1 / n.

    Measured on a model of n_experts and top_k; another model's follow from the number of effectively independent tokens.
    correlation: so many prefill tokens touch as many experts as one decode token.
    """

    n_tokens: Floats
    covered_frac: Floats
    correlation: float
    n_experts: int = 128
    top_k: int = 8

    def at(self, n_tokens: Floats) -> Floats:
        """Share touched by n_tokens decode tokens, real and at least 0, in the model it was measured on."""
        n = np.maximum(n_tokens, 1.0)
        within = np.interp(np.log2(n), np.log2(self.n_tokens), self.covered_frac)
        beyond = 1.0 - (1.0 - self.covered_frac[-1]) * self.n_tokens[-1] / n
        return np.asarray(np.where(n > self.n_tokens[-1], beyond, within) * np.minimum(n_tokens, 1.0))

    def tables(self, geometry: Geometry) -> tuple[Floats, Floats]:
        """As Coverage."""
        chance = geometry.top_k / geometry.n_experts
        prefill, decode = np.arange(N_PREFILL + 1.0), np.arange(N_DECODE + 1.0)
        prefill = np.maximum(self._moved(prefill / self.correlation, geometry), np.where(prefill > 0, chance, 0.0))
        return prefill[:, None], self._moved(decode, geometry)[:, None]

    def _moved(self, n_tokens: Floats, geometry: Geometry) -> Floats:
        covered = self.at(n_tokens)
        if (geometry.n_experts, geometry.top_k) == (self.n_experts, self.top_k):
            return covered
        return effective_to_covered(covered_to_effective(covered, self.n_experts, self.top_k), geometry)

    def outside(self, geometry: Geometry) -> str:
        """As Coverage."""
        if (geometry.n_experts, geometry.top_k) == (self.n_experts, self.top_k):
            return ""
        return f"coverage was measured on {self.n_experts} experts, top {self.top_k}"


def published_coverage(claims: Iterable[Mapping[str, Any]], correlation: float) -> PublishedCoverage:
    """Layered Prefill's Table 1 from the rows of table `claims`."""
    points = sorted(
        (float(str(row["setting"]).split("batch")[1].lstrip(">=")), float(row["value"]) / 100.0)
        for row in claims
        if row["paper"] == "layered_prefill" and row["metric"] == "expert_coverage" and row["role"] == "input"
    )
    n_tokens, covered = np.array(points).T
    return PublishedCoverage(n_tokens, covered, correlation)


@dataclass(frozen=True)
class IndependentCoverage(Coverage):
    """Every token draws its experts afresh: a baseline that overshoots, in prefill more than in decode."""

    def tables(self, geometry: Geometry) -> tuple[Floats, Floats]:
        """As Coverage."""
        n = np.arange(N_PREFILL + 1)
        share = (Uniform().distinct(n, geometry.n_experts, geometry.top_k) / geometry.n_experts)[:, None]
        return share, share[: N_DECODE + 1]


@dataclass(frozen=True, eq=False)
class FixedCoverage(Coverage):
    """The same share for any tokens: a bound, and a way to take routing out of a comparison."""

    covered_frac: float = 1.0

    def tables(self, geometry: Geometry) -> tuple[Floats, Floats]:
        """As Coverage."""
        prefill, decode = np.full((N_PREFILL + 1, 1), self.covered_frac), np.full((N_DECODE + 1, 1), self.covered_frac)
        prefill[0] = decode[0] = 0.0
        return prefill, decode


@dataclass(frozen=True, eq=False)
class RecordedCurves(Coverage):
    """A tape's own curves, layer by layer; moved to another model by their mean number of independent tokens.

    Beyond the longest recorded the number of independent tokens goes on as the power of n that fits the recorded part (Heaps).
    """

    n_experts: int
    top_k: int
    prefill: tuple[Curve, ...] = field(repr=False)
    decode: tuple[Curve, ...] = field(repr=False)

    @classmethod
    def of(cls, trace: Trace, seed: int = 0) -> RecordedCurves:
        """The curves of a tape. Raises ValueError where a phase has fewer than LEAST_RECORDED tokens in a row in some layer."""
        geometry = trace.geometry
        prefill, decode = (recorded_by_layer(trace, phase, seed) for phase in ("prefill", "decode"))
        for curve in (prefill[0], decode[0]):
            if curve.n_tokens[-1] < LEAST_RECORDED:
                raise ValueError(
                    f"tape {trace.trace_id}: some layer has the routing of {curve.n_tokens[-1]:g} {curve.phase} tokens at most; "
                    f"a curve needs {LEAST_RECORDED}: record longer prompts, or all prompt tokens in every layer"
                )
        return cls(geometry.n_experts, geometry.top_k, prefill, decode)

    def tables(self, geometry: Geometry) -> tuple[Floats, Floats]:
        """As Coverage."""
        sizes = ((self.prefill, N_PREFILL), (self.decode, N_DECODE))
        shares = [np.column_stack([self._share(curve, n) for curve in curves]) for curves, n in sizes]
        if not self._fits(geometry):
            shares = [
                effective_to_covered(covered_to_effective(share.mean(axis=1), self.n_experts, self.top_k), geometry)[:, None]
                for share in shares
            ]
        return np.ascontiguousarray(shares[0]), np.ascontiguousarray(shares[1])

    def _share(self, curve: Curve, n_max: int) -> Floats:
        n, last, chance = np.arange(1.0, n_max + 1), curve.n_tokens[-1], self.top_k / self.n_experts
        share = np.maximum.accumulate(np.interp(np.log2(n), np.log2(curve.n_tokens), curve.distinct / self.n_experts))
        at_last = share[min(int(last), n_max) - 1]
        if at_last < 1.0 and last < n_max:
            growth = Heaps.from_curve(curve.n_tokens, curve.distinct, self.n_experts, self.top_k).growth
            effective = np.log1p(-at_last) / np.log1p(-chance) * (n / last) ** growth
            share = np.where(n > last, -np.expm1(effective * np.log1p(-chance)), share)
        return np.append(0.0, share)

    def _fits(self, geometry: Geometry) -> bool:
        shape = (len(geometry.moe_layers), geometry.n_experts, geometry.top_k)
        return shape == (len(self.decode), self.n_experts, self.top_k)

    def tokens_of_nodes(self, n_nodes: int) -> float:
        """As Coverage: so many consecutive tokens of one prompt, on the mean over layers."""
        prefill, decode = (
            np.mean([self._share(curve, n) for curve in curves], axis=0)
            for curves, n in ((self.prefill, n_nodes + 1), (self.decode, N_DECODE))
        )
        return max(1.0, float(np.interp(prefill[n_nodes + 1], decode, np.arange(decode.size))))

    def outside(self, geometry: Geometry) -> str:
        """As Coverage."""
        if self._fits(geometry):
            longest = self.prefill[0].n_tokens[-1], self.decode[0].n_tokens[-1]
            if longest[0] >= USUAL_PREFILL and longest[1] >= USUAL_DECODE:
                return ""
            return f"coverage of more than {longest[0]:g} prefill and {longest[1]:g} decode tokens goes beyond the tape"
        return f"coverage was recorded on {len(self.decode)} MoE layers of {self.n_experts} experts, top {self.top_k}"


def covered_to_effective(covered_frac: Floats, n_experts: int, top_k: int) -> Floats:
    """Tokens that, drawing independently, would touch this share of the experts."""
    untouched = np.maximum(1.0 - covered_frac, np.finfo(float).tiny)
    return np.asarray(np.log(untouched) / np.log1p(-top_k / n_experts))


def effective_to_covered(n_effective: Floats, geometry: Geometry) -> Floats:
    """The share of a model's experts that so many independent tokens touch; never below one token's."""
    if geometry.top_k == geometry.n_experts:
        return np.where(n_effective > 0.0, 1.0, 0.0)
    return np.asarray(-np.expm1(n_effective * np.log1p(-geometry.top_k / geometry.n_experts)))


def at_multiples(table: Floats, factor: float) -> Floats:
    """(n, m) shares touched by 0, factor, 2 factor, ... tokens, of a table of 0, 1, 2, ...: linear between its rows; beyond
    them the untouched share falls as 1 / n."""
    last = len(table) - 1
    n = np.arange(last + 1) * factor
    within = [np.interp(n, np.arange(last + 1), column) for column in table.T]
    beyond = 1.0 - (1.0 - table[last]) * (last / np.maximum(n, last))[:, None]
    return np.ascontiguousarray(np.where((n > last)[:, None], beyond, np.column_stack(within)))

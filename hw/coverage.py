"""How many different experts n tokens touch in one MoE layer: the literature's closed forms, and their error against a tape.

    uniform      E (1 - (1 - k/E)^n)                    every token draws its k experts afresh, all experts alike
    pigeonhole   min(n k, E)                            no expert twice: an upper bound
    power law    sum_i 1 - (1 - p_i)^n                  tokens independent, experts unequal: p_i = 1 - exp(-c i^-s), sum p_i = k
    reuse        E (1 - (1 - k/E)^g), g = 1 + (n-1)(1-r)    a token keeps its predecessor's experts with probability r
    heaps        E (1 - (1 - k/E)^g), g = n^a           the share of news falls with the length, as words do in a text

g is the number of effectively independent tokens. A recorded tape needs none of these; `errors` says how far each is off.
Sources: a power law is what ELMoE-3D names, 1 - exp(-c i^-s) keeps each p_i below 1 (ours); that consecutive tokens repeat
experts: Mixtral of Experts (arXiv 2401.04088), section 5; growth as a power of the length: Heaps, Information Retrieval, 1978,
section 7.5.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokentape.hw.work import Floats

HALVINGS = 60  # of a bisection: more than a double has bits
STEEPEST = 16.0  # exponent of a power law: all tokens agree on the first experts, and nothing overflows


class Form(ABC):
    """A closed form for distinct experts."""

    def distinct(self, n_tokens: ArrayLike, n_experts: int, top_k: float) -> Floats:
        """Expected distinct experts of one layer. n_tokens: any shape, real, at least 0. Raises ValueError if impossible."""
        return np.asarray(self._of(_checked(n_tokens, n_experts, top_k), n_experts, top_k))

    @abstractmethod
    def _of(self, n: Floats, n_experts: int, top_k: float) -> Floats:
        """The same of n tokens that may be."""


@dataclass(frozen=True, kw_only=True)
class Uniform(Form):
    """Independent tokens, experts alike: overshoots, since tokens of a text correlate."""

    def _of(self, n: Floats, n_experts: int, top_k: float) -> Floats:
        return _independent(n, n_experts, top_k)


@dataclass(frozen=True, kw_only=True)
class Pigeonhole(Form):
    """As many as fit: no form and no recording lies above it."""

    def _of(self, n: Floats, n_experts: int, top_k: float) -> Floats:
        return np.asarray(np.minimum(n * top_k, n_experts))


@dataclass(frozen=True, kw_only=True)
class PowerLaw(Form):
    """Independent tokens, popularity falling with rank. exponent: s, from 0, which is close to uniform, to STEEPEST."""

    exponent: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.exponent <= STEEPEST:
            raise ValueError(f"exponent must be between 0 and {STEEPEST:g}, found {self.exponent}")

    def popularity(self, n_experts: int, top_k: float) -> Floats:
        """(n_experts,) probability that a token selects the expert of that rank; sums to top_k."""
        if top_k >= n_experts:
            return np.ones(n_experts)
        rank = np.arange(1, n_experts + 1) ** -self.exponent
        low, high = 0.0, 1.0
        while -np.expm1(-high * rank).sum() < top_k:
            high *= 2.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            low, high = (middle, high) if -np.expm1(-middle * rank).sum() < top_k else (low, middle)
        return np.asarray(-np.expm1(-high * rank))

    def _of(self, n: Floats, n_experts: int, top_k: float) -> Floats:
        return np.asarray((1.0 - (1.0 - self.popularity(n_experts, top_k)) ** n[..., None]).sum(axis=-1))

    @classmethod
    def from_counts(cls, counts: ArrayLike, n_tokens: int) -> PowerLaw:
        """The exponent whose popularity has the recorded sum of squares, so that two independent tokens share as many experts.

        counts: (n_experts,) how often each expert was selected by n_tokens tokens. Sampling noise, which alone makes experts look
        unequal, is subtracted. Raises ValueError where a count exceeds n_tokens or there is none.
        """
        seen = np.asarray(counts, np.float64)
        if seen.ndim != 1 or n_tokens < 2 or not seen.sum() > 0.0 or seen.min() < 0.0 or seen.max() > n_tokens:
            raise ValueError(f"counts must be one number per expert, between 0 and n_tokens = {n_tokens} (at least 2), not all 0")
        share = seen / n_tokens
        squares = float((share**2 - share * (1.0 - share) / (n_tokens - 1)).sum())
        top_k = float(share.sum())
        low, high = 0.0, STEEPEST
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            is_flatter = float((cls(exponent=middle).popularity(len(seen), top_k) ** 2).sum()) < squares
            low, high = (middle, high) if is_flatter else (low, middle)
        return cls(exponent=low)


@dataclass(frozen=True, kw_only=True)
class Reuse(Form):
    """Tokens that follow each other. reuse_prob: r in [0, 1], the share of a token's experts that is kept beyond chance."""

    reuse_prob: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.reuse_prob <= 1.0:
            raise ValueError(f"reuse_prob must be between 0 and 1, found {self.reuse_prob}")

    def _of(self, n: Floats, n_experts: int, top_k: float) -> Floats:
        fresh = np.minimum(n, 1.0) + np.maximum(n - 1.0, 0.0) * (1.0 - self.reuse_prob)
        return _independent(fresh, n_experts, top_k)

    @classmethod
    def from_routing(cls, expert_ids: NDArray[np.integer], n_experts: int, request: NDArray[np.integer] | None = None) -> Reuse:
        """From the overlap of consecutive tokens, less what chance gives: overlap = r + (1 - r) k/E; negative r counts as 0.

        expert_ids: (n_tokens, top_k) of one layer, in order; request (n_tokens,): whose each is, None: one's. r is 0 where no
        token follows another. Raises ValueError below 2 tokens or where top_k reaches n_experts.
        """
        if expert_ids.ndim != 2 or len(expert_ids) < 2 or expert_ids.shape[1] >= n_experts:
            raise ValueError(f"expert_ids must be (2 or more tokens, top_k < {n_experts}), found {expert_ids.shape}")
        follows = slice(None) if request is None else request[1:] == request[:-1]
        kept = (expert_ids[1:, :, None] == expert_ids[:-1, None, :]).any(axis=2)[follows]
        chance = expert_ids.shape[1] / n_experts
        return cls(reuse_prob=max(0.0, (float(kept.mean()) - chance) / (1.0 - chance)) if kept.size else 0.0)


@dataclass(frozen=True, kw_only=True)
class Heaps(Form):
    """Tokens of one text. growth: a in (0, 1]; 1 is uniform."""

    growth: float

    def __post_init__(self) -> None:
        if not 0.0 < self.growth <= 1.0:
            raise ValueError(f"growth must be above 0 and at most 1, found {self.growth}")

    def _of(self, n: Floats, n_experts: int, top_k: float) -> Floats:
        return _independent(n**self.growth, n_experts, top_k)

    @classmethod
    def from_curve(cls, n_tokens: ArrayLike, distinct: ArrayLike, n_experts: int, top_k: float) -> Heaps:
        """Least squares of log g over log n on a recorded curve; points at n <= 1 and at full coverage say nothing.

        Raises ValueError where no point remains.
        """
        n, recorded = _checked(n_tokens, n_experts, top_k), np.asarray(distinct, np.float64)
        used = (n > 1.0) & (recorded < n_experts) & (recorded > 0.0)
        if not used.any() or top_k >= n_experts:
            raise ValueError("no point of the curve has n_tokens above 1 and fewer than n_experts distinct experts")
        effective = np.log1p(-recorded[used] / n_experts) / np.log1p(-top_k / n_experts)
        slope = float((np.log(effective) * np.log(n[used])).sum() / (np.log(n[used]) ** 2).sum())
        return cls(growth=float(np.clip(slope, np.finfo(float).eps, 1.0)))


FORMS: dict[str, type[Form]] = {
    "uniform": Uniform,
    "pigeonhole": Pigeonhole,
    "power-law": PowerLaw,
    "reuse": Reuse,
    "heaps": Heaps,
}


def errors(forms: Mapping[str, Form], n_tokens: ArrayLike, distinct: ArrayLike, n_experts: int, top_k: float) -> dict[str, float]:
    """Mean absolute relative error of each form against a recorded curve.

    n_tokens, distinct: (n,), the recorded mean of distinct experts of so many tokens. Raises ValueError unless they match and all
    distinct are above 0.
    """
    recorded = np.asarray(distinct, np.float64)
    if recorded.shape != np.shape(n_tokens) or not recorded.size or not np.all(recorded > 0.0):
        raise ValueError(f"distinct must be above 0 and as long as n_tokens, found {recorded.shape} and {np.shape(n_tokens)}")
    by_form = {name: form.distinct(n_tokens, n_experts, top_k) for name, form in forms.items()}
    return {name: float(np.abs(predicted / recorded - 1.0).mean()) for name, predicted in by_form.items()}


def _independent(n_effective: Floats, n_experts: int, top_k: float) -> Floats:
    return np.asarray(n_experts * (1.0 - (1.0 - top_k / n_experts) ** n_effective))


def _checked(n_tokens: ArrayLike, n_experts: int, top_k: float) -> Floats:
    n = np.asarray(n_tokens, np.float64)
    if not 0 < top_k <= n_experts:
        raise ValueError(f"top_k must be above 0 and at most n_experts = {n_experts}, found {top_k}")
    if not np.all(n >= 0.0):
        raise ValueError("n_tokens must be at least 0")
    return n

"""Experts a drafter may use: top-k within a pool, which experts it should hold next, the pools of all layers as rounds go by.

Source: ELMoE-3D, section on elastic self-speculative decoding. Scores are of all experts; only the choice is restricted.

A pool stays as it is through a draft phase. `wanted` is asked before verification with what the phase counted; what then enters
follows from the experts that verification read (exchange). Every layer has the same number of slots.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def pool_size(n_experts: int, frac: float) -> int:
    """Experts of a layer that a pool of a share `frac` holds: rounded down, at least one."""
    if not 0.0 < frac <= 1.0:
        raise ValueError(f"pool share {frac} must be above 0 and at most 1")
    return max(1, int(frac * n_experts + 1e-9))


def restricted_topk(values: NDArray[np.floating], pool: NDArray[np.integer], k: int) -> Ids:
    """(n, min(k, |pool|)) ids of the pool's best experts by falling value, ties to the lower id.

    values: (n, E), the larger the better. A pool smaller than k is used whole; a pool of all experts gives the plain top-k.
    """
    members = np.sort(pool).astype(np.int64)
    order = np.argsort(-values[:, members], axis=1, kind="stable")[:, : min(k, members.size)]
    return np.asarray(members[order])


def selections(ids: NDArray[np.integer], n_experts: int) -> Ids:
    """(E,) how often each expert is named in `ids`: the sum of the one-hot rows of a top-k."""
    return np.bincount(ids.ravel(), minlength=n_experts).astype(np.int64)


def hottest(hotness: NDArray[np.integer], n: int) -> Ids:
    """The n experts of highest hotness, ties to the lower id; in order of id."""
    return np.sort(np.argsort(-hotness.astype(np.int64), kind="stable")[:n])


def exchange(
    pool: NDArray[np.integer], wanted: NDArray[np.integer], hotness: NDArray[np.integer], touched: NDArray[np.bool_]
) -> tuple[Ids, Ids]:
    """(pool after verification, experts that entered), both in order of id.

    Only a wanted expert that the verify pass read (touched (E,)) can enter: the tiers have no link of their own. A member that
    is no longer wanted leaves only when its slot is needed, the coldest first, ties to the higher id.
    """
    entering = np.setdiff1d(wanted, pool)
    entering = entering[touched[entering]].astype(np.int64)
    unwanted = np.setdiff1d(pool, wanted).astype(np.int64)
    leaving = unwanted[np.lexsort((-unwanted, hotness[unwanted]))][: entering.size]
    return np.sort(np.concatenate([np.setdiff1d(pool, leaving), entering])).astype(np.int64), entering


@runtime_checkable
class PoolPolicy(Protocol):
    """Of one layer. `rehearses`: the pool is set from the coming draft phase, by drafting it once unrestricted: a bound."""

    rehearses: ClassVar[bool]

    def first(self, prompt: Ids, n: int, rng: np.random.Generator) -> Ids:
        """The pool before the first round. prompt: (E,) selections in the prompts."""
        ...

    def wanted(self, pool: Ids, hotness: Ids, last_used: Ids) -> Ids:
        """The pool of the next round. hotness (E,): original selections of this draft phase; last_used (E,): round in which
        verification or the prompt last selected the expert, -1 for never."""
        ...


@dataclass(frozen=True)
class Static:
    """The experts that the prompts selected most often, kept."""

    rehearses: ClassVar[bool] = False

    def first(self, prompt: Ids, n: int, rng: np.random.Generator) -> Ids:
        return hottest(prompt, n)

    def wanted(self, pool: Ids, hotness: Ids, last_used: Ids) -> Ids:
        return pool


@dataclass(frozen=True)
class Hotness(Static):
    """The experts that the original routing of this draft phase selected most often; counters start at zero in every phase."""

    def wanted(self, pool: Ids, hotness: Ids, last_used: Ids) -> Ids:
        return hottest(hotness, pool.size)


@dataclass(frozen=True)
class Random(Static):
    """A draw at the start, kept: no knowledge of the text."""

    def first(self, prompt: Ids, n: int, rng: np.random.Generator) -> Ids:
        return np.sort(rng.permutation(prompt.size)[:n])


@dataclass(frozen=True)
class LRU(Static):
    """The experts that verification selected most recently; ties to the hotter, then to the lower id."""

    def wanted(self, pool: Ids, hotness: Ids, last_used: Ids) -> Ids:
        return np.sort(np.lexsort((np.arange(hotness.size), -hotness, -last_used))[: pool.size])


@dataclass(frozen=True)
class Oracle(Static):
    """The hottest experts of the coming draft phase, as drafting it without restriction shows them: a bound."""

    rehearses: ClassVar[bool] = True


class Pools:
    """The pools of L layers with `n` slots each, through the rounds of requests that share them.

    prompt: (L, E) selections in the prompts. `members` (L, n) is the pool in force, each row in order of id.
    """

    def __init__(self, policy: PoolPolicy, prompt: NDArray[np.integer], n: int, rng: np.random.Generator) -> None:
        self.policy = policy
        self.members = np.stack([policy.first(counts, n, rng) for counts in prompt.astype(np.int64)])
        self.last_used = np.where(prompt > 0, 0, -1).astype(np.int64)
        self.n_rounds = 0

    def rehearsed(self, hotness: NDArray[np.integer]) -> None:
        """Sets the pools from hotness (L, E) of the coming phase; for policies that rehearse."""
        self.members = np.stack([hottest(counts, self.members.shape[1]) for counts in hotness])

    def wanted(self, hotness: NDArray[np.integer]) -> Ids:
        """(L, n) pools for the next round, from the draft phase's hotness (L, E)."""
        asked = zip(self.members, hotness.astype(np.int64), self.last_used, strict=True)
        return np.stack([self.policy.wanted(*layer) for layer in asked])

    def verified(self, wanted: Ids, hotness: NDArray[np.integer], touched: NDArray[np.bool_]) -> list[Ids]:
        """Ends a round: the pools change by what verification read, touched (L, E). Returns what entered, per layer."""
        layers = zip(self.members, wanted, hotness.astype(np.int64), touched, strict=True)
        changed = [exchange(*layer) for layer in layers]
        self.n_rounds += 1
        self.last_used[touched] = self.n_rounds
        self.members = np.stack([pool for pool, _ in changed])
        return [entered for _, entered in changed]


@dataclass(frozen=True)
class AsRecorded:
    """The rounds of a speculative tape: its drafted nodes, those that were rejected too, and its accepted lengths."""

    slots: ClassVar[tuple[str, ...]] = ("draft",)

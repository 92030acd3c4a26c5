"""Experts a drafter may use: top-k within a pool, hotness, and how a pool changes while the target verifies.

Source: ELMoE-3D, section on elastic self-speculative decoding. Scores are of all experts; only the choice is restricted.
"""

from __future__ import annotations

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

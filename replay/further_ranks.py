"""Experts beyond those that a tape's router chose: what it would have ranked next, drawn, for an engine that takes more of them.

An expert that was chosen a moment ago, or soon will be, is often ranked just behind. How often, by the tokens since
its last choice and until its next, is counted on the tape itself: its last ranks against the ranks before them, as many as are
wanted. A token has part of its chances from the token before, so many that what is drawn repeats as often as they do.
"""

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.work import Floats, Ints

Ids = NDArray[np.int16]
Flags = NDArray[np.bool_]
_BINS = 12  # of tokens apart: 1, 2, to 4, to 8, ...; the last also where there is no other choice
_NEVER = 2**_BINS
_HALVINGS = 8  # in the search for the share that comes from the token before


def widened(ids: Ids, n_experts: int, top_k: int, seed: int = 0) -> Ids:
    """(tokens, layers, top_k) of one sequence by falling rank, the first ones where fewer are wanted; ids (tokens, layers, k),
    -1 where a layer did not run.

    Raises ValueError for more than there are experts, and where k is 1: there is no rank to count.
    """
    k = ids.shape[2]
    if top_k <= k:
        return ids[:, :, :top_k]
    if top_k > n_experts or k == 1:
        why = f"the model has {n_experts}" if top_k > n_experts else "further ranks follow from two or more"
        raise ValueError(f"{top_k} experts per token, and the tape holds {k}: {why}; give a tape of as many as the engine takes")
    n = min(top_k - k, k - 1)
    known, counted = ids[:, :, : k - n], ids[:, :, k - n :]
    rates, wanted, low, high = _rates(known, counted, n_experts), _repeated(counted), 0.0, 1.0
    odds = _odds(known, rates, n_experts)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _repeated(_drawn(odds, n, middle, seed)) > wanted else (middle, high)
    drawn = _drawn(_odds(ids, rates, n_experts), top_k - k, low, seed)
    return np.concatenate((ids, np.where(ids[:, :, :1] < 0, -1, drawn).astype(ids.dtype)), axis=2)


def _chosen(ids: Ids, n_experts: int) -> Flags:
    """(tokens, layers, E)"""
    found = np.zeros((*ids.shape[:2], n_experts + 1), np.bool_)
    np.put_along_axis(found, ids.astype(np.int64), True, axis=2)  # -1: the last, which is no expert
    return found[:, :, :-1]


def _apart(chosen: Flags) -> Ints:
    """(tokens, layers, E) the bin of how many tokens the choice before and the one after lie away."""

    def since(flags: Flags) -> Ints:
        at = np.arange(len(flags))[:, None, None]
        last = np.maximum.accumulate(np.where(flags, at, -_NEVER))
        before = np.concatenate((np.full((1, *flags.shape[1:]), -_NEVER), last[:-1]))
        return np.asarray(np.minimum(np.ceil(np.log2(at - before)), _BINS - 1), np.int64)

    return since(chosen) * _BINS + since(chosen[::-1])[::-1]


def _rates(known: Ids, counted: Ids, n_experts: int) -> Floats:
    """(bins,) how often an expert that the known ranks did not choose is one of the counted."""
    chosen = _chosen(known, n_experts)
    apart, could = _apart(chosen), ~chosen & (known[:, :, :1] >= 0)
    n, n_were = (np.bincount(apart[of], minlength=_BINS**2) for of in (could, _chosen(counted, n_experts)))
    return np.asarray((n_were + n_were.sum() / n.sum()) / (n + 1.0))  # where there are none: as all of them


def _odds(ids: Ids, rates: Floats, n_experts: int) -> Floats:
    """(tokens, layers, E) logarithms; none for those that are chosen."""
    chosen = _chosen(ids, n_experts)
    return np.where(chosen, -np.inf, np.log(rates)[_apart(chosen)])


def _drawn(odds: Floats, n: int, repeats: float, seed: int) -> Ints:
    """(tokens, layers, n) without replacement. repeats: of a token's chances, those that are the token's before."""
    rng = np.random.default_rng(seed)
    chances, is_new = rng.gumbel(size=odds.shape), rng.random(odds.shape) >= repeats
    of = np.maximum.accumulate(np.where(is_new, np.arange(len(odds))[:, None, None], 0))
    return np.argsort(-(odds + np.take_along_axis(chances, of, axis=0)), axis=2)[:, :, :n]


def _repeated(ids: NDArray[np.integer]) -> float:
    """Share of choices that the token before made, too."""
    here, before = ids[1:, :, :, None], ids[:-1, :, None, :]
    return float(((here == before) & (here >= 0)).any(axis=3).mean())

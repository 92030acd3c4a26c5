"""Recomputation of popular tokens: which tokens are stored as their layer input, and the bytes of both forms (Kelle section 4).

A token is popular if more than `theta` of the heads retain it: strictly, though "at least 50 %" is also printed. A prompt token
is judged after the prompt, a decoded one when it leaves the recent window (assumed). Popular tokens store the normalised layer
input, C values, in place of keys and values; the form stays until the last head drops the token.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kernels import I32, I64, U8, boolean, float64, int64, kernel, void

WORD_BYTES = 2  # KV and layer inputs are stored in 16 bits
# tally (5,) i64: distinct tokens retained, popular ones, (token, head) pairs retained, those in KV form, tokens in x form
DISTINCT, POPULAR, PAIRS, KV_PAIRS, X_TOKENS = range(5)


@dataclass(frozen=True)
class Widths:
    """Bytes of one layer: x_bytes of a token's layer input, head_bytes of its keys and values in one head."""

    x_bytes: int
    head_bytes: int
    n_heads: int

    @property
    def can_save(self) -> bool:
        """Whether x is smaller than the keys and values of all heads: not with grouped-query attention."""
        return self.x_bytes < self.head_bytes * self.n_heads

    def bytes_of(self, tally: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(x, KV) bytes of tallies (..., 5)."""
        return tally[..., X_TOKENS] * self.x_bytes, tally[..., KV_PAIRS] * self.head_bytes


def pays(widths: Widths, accounting: str) -> bool:
    """Whether tokens are recomputed at all: in physical accounting only where x is smaller, with a warning where it is not."""
    if accounting == "paper" or widths.can_save:
        return True
    warnings.warn(
        f"recompute is off: a layer input ({widths.x_bytes} B) is not smaller than the keys and values of all {widths.n_heads} "
        f"KV heads ({widths.head_bytes * widths.n_heads} B)",
        stacklevel=2,
    )
    return False


@kernel(void(I32, U8, I64, int64, int64, float64, boolean))
def enter(held, is_x, tally, position, n_heads, theta, stores_x):  # type: ignore[no-untyped-def]
    """All heads take the token at `position`, which makes it popular. held (n,): heads that retain each; is_x (n,): its form."""
    is_popular = n_heads > theta * n_heads
    held[position] = n_heads
    is_x[position] = is_popular and stores_x
    tally[DISTINCT] += 1
    tally[POPULAR] += is_popular
    tally[PAIRS] += n_heads
    tally[KV_PAIRS] += 0 if is_x[position] else n_heads
    tally[X_TOKENS] += is_x[position]


@kernel(void(I32, U8, I64, int64, int64, float64))
def leave(held, is_x, tally, position, n_heads, theta):  # type: ignore[no-untyped-def]
    """One head drops the token."""
    before = held[position]
    held[position] = before - 1
    tally[POPULAR] -= before > theta * n_heads and not before - 1 > theta * n_heads
    tally[PAIRS] -= 1
    if not is_x[position]:
        tally[KV_PAIRS] -= 1
    if before == 1:
        tally[DISTINCT] -= 1
        tally[X_TOKENS] -= is_x[position]
        is_x[position] = 0


@kernel(void(I32, U8, I64, int64, int64, float64))
def judge(held, is_x, tally, position, n_heads, theta):  # type: ignore[no-untyped-def]
    """A token as it leaves the recent window: its layer input stays if it is popular, else come its keys and values."""
    if is_x[position] and not held[position] > theta * n_heads:
        is_x[position] = 0
        tally[X_TOKENS] -= 1
        tally[KV_PAIRS] += held[position]


def after_prompt(
    held: NDArray[np.int32], n_heads: int, theta: float, stores_x: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """(is_x, tally) of a layer whose heads retain `held` (n,) after the prompt: every token is judged."""
    popular = held > theta * n_heads
    is_x = popular & stores_x
    counts = (np.count_nonzero(held), popular.sum(), held.sum(), held[~is_x].sum(), is_x.sum())
    return is_x.astype(np.uint8), np.array(counts, np.int64)

"""Accepted tokens of a round from an acceptance rate, by named form. The paper calls alpha a rate and never defines it.

linear fits its table best; chain is what a chain of drafts gives where each token is accepted independently.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def linear(alpha: Floats, n_draft_steps: Floats) -> Floats:
    """alpha d."""
    return alpha * n_draft_steps


def chain(alpha: Floats, n_draft_steps: Floats) -> Floats:
    """sum of alpha^i over i = 1..d: no token counts after the first that is refused."""
    is_one = alpha >= 1.0
    safe = np.where(is_one, 0.0, alpha)
    return np.where(is_one, n_draft_steps, safe * (1.0 - safe**n_draft_steps) / (1.0 - safe))


FORMS: dict[str, Callable[[Floats, Floats], Floats]] = {"linear": linear, "chain": chain}

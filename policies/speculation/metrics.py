"""What rounds of speculative decoding say together, every metric by its name: "acceptance" alone means too many things.

    tau_accepted          mean of the drafted tokens accepted per round
    tau_committed         tau_accepted + 1: with the token that the target adds
    alpha_i_conditional   share of the rounds that accepted depth i among those that accepted depth i - 1
    alpha_i_marginal      share of the rounds that accepted depth i
    accepted_j            share of the rounds that accepted exactly j: the histogram

Rounds that a stop token or the length limit cut short are left out. Metrics of trees start with `tree_`: a tree's depth is
accepted if any of its nodes is, so they are never put in one column with a chain's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def acceptance_metrics(
    n_accepted: NDArray[np.integer], is_clipped: NDArray[np.bool_], depth: int, is_tree: bool
) -> dict[str, float]:
    """Metrics of rounds, n_accepted and is_clipped (n,) each, whose drafts reach down to `depth`; empty: all were clipped."""
    whole = np.asarray(n_accepted)[~np.asarray(is_clipped)]
    if whole.size == 0:
        return {}
    if whole.max() > depth:
        raise ValueError(f"a round accepted {whole.max()} tokens of drafts {depth} deep")
    found = {"tau_accepted": float(whole.mean()), "tau_committed": float(whole.mean()) + 1.0}
    for i in range(1, depth + 1):
        reached = int((whole >= i - 1).sum())
        if reached:
            found[f"alpha_{i}_conditional"] = float((whole >= i).sum()) / reached
        found[f"alpha_{i}_marginal"] = float((whole >= i).mean())
    found |= {f"accepted_{j}": float((whole == j).mean()) for j in range(depth + 1)}
    return {f"tree_{name}": value for name, value in found.items()} if is_tree else found

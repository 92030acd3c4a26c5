"""Bit assignments by trying all of them: prefix splits one by one, and every assignment there is."""

import itertools

import numpy as np

SAME_GAIN = 1e-12
STAND_IN = np.array([0.361, 0.248, 0.0459, 0.0099])  # relative weight errors of round-to-nearest at 1 to 4 bits, groups of 128


def prefix_splits(n, budget):
    """All non-increasing assignments of 1 to 4 bits that spend `budget` beyond 1 bit each, fewest 4s first, then fewest 3s."""
    found = (c for c in itertools.combinations_with_replacement((4, 3, 2, 1), n) if sum(c) - n == budget)
    return sorted(found, key=lambda c: (c.count(4), c.count(3)))


def best_prefix_split(losses, budget):
    best, gain = None, -np.inf
    for bits in prefix_splits(len(losses), budget):
        found = sum(row[0] - row[b - 1] for row, b in zip(losses, bits, strict=True))
        if found > gain + SAME_GAIN:
            best, gain = bits, found
    return best


def least_loss(losses, budget):
    """Over all 4^n assignments that spend no more than `budget`."""
    n = len(losses)
    bits = np.array(list(itertools.product(range(1, 5), repeat=n)))
    total = np.take_along_axis(losses[None].repeat(len(bits), 0), bits[:, :, None] - 1, axis=2).sum(axis=(1, 2))
    return total[bits.sum(axis=1) - n <= budget].min()


def stand_in(rng, n, n_experts=8):
    """(n, 4): the n least of a Dirichlet(2) layer's shares, each with a noise of its own, times the errors of plain rounding."""
    share = np.sort(rng.dirichlet(np.full(n_experts, 2.0)))[::-1][n_experts - n :]
    return (share * rng.lognormal(0.0, 0.2, n))[:, None] * STAND_IN

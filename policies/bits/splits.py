"""How a budget of bits is split over experts, listed by falling importance: one compiled function of RULE_SIGNATURE a rule."""

import numpy as np

from tokentape.policies.bits.rule import RULE_SIGNATURE, BitRule
from tokentape.policies.kernels import kernel

SAME_GAIN = 1e-12


@kernel(RULE_SIGNATURE)
def split_evenly(losses, budget, bits):  # type: ignore[no-untyped-def]
    """The same bits for all, what the others are compared with. Between two widths the most important have one bit more."""
    n = losses.shape[0]
    for i in range(n):
        bits[i] = 1 + budget // n + (1 if i < budget % n else 0)


@kernel(RULE_SIGNATURE)
def split_prefix(losses, budget, bits):  # type: ignore[no-untyped-def]
    """The paper's selector: the most important experts get 4 bits, the next 3, the next 2, the rest 1 (CXL GPU-NDP, specification
    4.2). All ways to cut the ranking are searched, O(n^2), and the one that gains most over 1 bit each is taken, within SAME_GAIN
    the first found. The budget is spent exactly, even where a bit gains nothing."""
    n = losses.shape[0]
    gains = np.zeros((3, n + 1))  # of the first m experts at 2, 3 and 4 bits, over 1 bit
    for b in range(3):
        for m in range(n):
            gains[b, m + 1] = gains[b, m] + (losses[m, 0] - losses[m, b + 1])
    best, best4, best3, best2 = -np.inf, 0, 0, 0
    for n4 in range(min(n, budget // 3) + 1):
        for n3 in range(min(n - n4, (budget - 3 * n4) // 2) + 1):
            n2 = budget - 3 * n4 - 2 * n3
            if n4 + n3 + n2 > n:
                continue
            upto3, upto2 = n4 + n3, n4 + n3 + n2
            gain = gains[2, n4] + (gains[1, upto3] - gains[1, n4]) + (gains[0, upto2] - gains[0, upto3])
            if gain > best + SAME_GAIN:
                best, best4, best3, best2 = gain, n4, n3, n2
    bits[:] = 1
    bits[:best4] = 4
    bits[best4 : best4 + best3] = 3
    bits[best4 + best3 : best4 + best3 + best2] = 2


@kernel(RULE_SIGNATURE)
def split_reversed(losses, budget, bits):  # type: ignore[no-untyped-def]
    """The same search with the ranking upside down: a negative control."""
    split_prefix(losses[::-1].copy(), budget, bits)
    for i in range(bits.shape[0] // 2):
        bits[i], bits[-1 - i] = bits[-1 - i], bits[i]


@kernel(RULE_SIGNATURE)
def split_greedily(losses, budget, bits):  # type: ignore[no-untyped-def]
    """One raise at a time: whichever expert gains most per bit is raised next, to any width that still fits, until nothing fits
    or no raise gains. Ties to the more important expert, then to the smaller raise."""
    bits[:] = 1
    left = budget
    while left > 0:
        best, best_i, best_bits = 0.0, -1, 0
        for i in range(losses.shape[0]):
            for b in range(bits[i] + 1, min(4, bits[i] + left) + 1):
                gain = (losses[i, bits[i] - 1] - losses[i, b - 1]) / (b - bits[i])
                if gain > best:
                    best, best_i, best_bits = gain, i, b
        if best_i < 0:
            break
        left -= best_bits - bits[best_i]
        bits[best_i] = best_bits


@kernel(RULE_SIGNATURE)
def split_best(losses, budget, bits):  # type: ignore[no-untyped-def]
    """The least loss that any assignment within the budget reaches, by dynamic programming over experts and bits spent, O(n x
    budget): the bound. It ignores the ranking and may leave bits unspent where more of them lose more."""
    n = losses.shape[0]
    chosen = np.zeros((n, budget + 1), np.int8)  # extra bits of expert i where it and those before spend at most r
    before, least = np.zeros(budget + 1), np.empty(budget + 1)
    for i in range(n):
        for r in range(budget + 1):
            least[r] = np.inf
            for extra in range(min(3, r) + 1):
                loss = before[r - extra] + losses[i, extra]
                if loss < least[r]:
                    least[r], chosen[i, r] = loss, extra
        before, least = least, before
    left = budget
    for i in range(n - 1, -1, -1):
        bits[i] = 1 + chosen[i, left]
        left -= chosen[i, left]


UNIFORM = BitRule(split_evenly)
BIT_RULES: dict[str, BitRule] = {
    "prefix_split": BitRule(split_prefix),
    "uniform": UNIFORM,
    "greedy": BitRule(split_greedily),
    "optimum": BitRule(split_best, is_bound=True),
    "reversed": BitRule(split_reversed),
}

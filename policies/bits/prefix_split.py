"""Prefix split, the paper's selector: the most important experts get 4 bits, the next 3, the next 2, the rest 1.

All ways to cut the ranking are searched, O(n^2), and the one that gains most over 1 bit each is taken, within 1e-12 the first
found. The budget is spent exactly, even where a bit gains nothing. Source: CXL GPU-NDP, specification 4.2.
"""

import numpy as np

from tokentape.policies.bits.rule import RULE_SIGNATURE, BitRule
from tokentape.policies.kernels import kernel

SAME_GAIN = 1e-12


@kernel(RULE_SIGNATURE)
def split_prefix(losses, budget, bits):  # type: ignore[no-untyped-def]
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
    split_prefix(losses[::-1].copy(), budget, bits)
    for i in range(bits.shape[0] // 2):
        bits[i], bits[-1 - i] = bits[-1 - i], bits[i]


PREFIX_SPLIT = BitRule(split_prefix)
REVERSED = BitRule(split_reversed)  # the same search with the ranking upside down: a negative control

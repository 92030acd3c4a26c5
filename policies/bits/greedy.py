"""Bits one raise at a time: whichever expert gains most per bit is raised next, to any width that still fits.

Stops where nothing fits or no raise gains. Ties to the more important expert, then to the smaller raise.
"""

from tokentape.policies.bits.rule import RULE_SIGNATURE, BitRule
from tokentape.policies.kernels import kernel


@kernel(RULE_SIGNATURE)
def split_greedily(losses, budget, bits):  # type: ignore[no-untyped-def]
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


GREEDY = BitRule(split_greedily)

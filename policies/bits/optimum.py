"""The least loss that any assignment within the budget reaches, by dynamic programming over experts and bits spent: the bound.

Unlike the selector it ignores the ranking and may leave bits unspent where more of them lose more. O(n x budget).
"""

import numpy as np

from tokentape.policies.bits.rule import RULE_SIGNATURE, BitRule
from tokentape.policies.kernels import kernel


@kernel(RULE_SIGNATURE)
def split_best(losses, budget, bits):  # type: ignore[no-untyped-def]
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


OPTIMUM = BitRule(split_best, is_bound=True)

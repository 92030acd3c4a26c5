"""The same bits for all, what the selector is compared with. Between two widths the most important have one bit more."""

from tokentape.policies.bits.rule import RULE_SIGNATURE, BitRule
from tokentape.policies.kernels import kernel


@kernel(RULE_SIGNATURE)
def split_evenly(losses, budget, bits):  # type: ignore[no-untyped-def]
    n = losses.shape[0]
    for i in range(n):
        bits[i] = 1 + budget // n + (1 if i < budget % n else 0)


UNIFORM = BitRule(split_evenly)

"""Placements that move experts before a layer computes (policies/placement/reactive.py), in the loop.

A layer without prompts in it is a step: the policy sees the tokens on each expert and says who is resident; what migrates is
fetched in that event. Residents and averages start anew when decodes begin with nothing else decoding.
"""

from tokentape.policies.kernels import F64, F64_2D, I64, function, kernel, tuple_of
from tokentape.policies.placement import MIGRATE_SIGNATURE, migrated

MIGRATE = function(MIGRATE_SIGNATURE)
# average (MoE layers, E) tokens per step, its memory; tokens (E,): scratch; parameters; residents of a layer at most (1,).
MOVES = tuple_of(F64_2D, I64, F64, I64)


@kernel(inline="always")
def move(m, keys, counts, hot, migrate, average, tokens, params, capacity):  # type: ignore[no-untyped-def]
    """Residents hot[m] once the experts of this event, keys, have moved; returns how many crossed the link."""
    tokens[:] = 0
    for i in range(keys.shape[0]):
        tokens[keys[i]] = counts[i]
    return migrated(migrate, tokens, average[m], hot[m], capacity[0], params)

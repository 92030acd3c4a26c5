"""Where sliced serving's numbers stand in its arrays: shared by the kernels, the controller and the loop.

sizes (13,) i64, fixed: what is cached and counted. limits (7,) f64, fixed: thresholds and the budget. clock (6,) i64, advanced.
tokens (n, 3) i64 and credit (n,) f64, advanced: of every request. pulls (2,) f64, advanced: what a soft budget has learnt.
"""

from tokentape.policies.kernels import F64, F64_2D, I64, I64_2D, U8, U32, tuple_of

# sizes
CAPACITY, MSB, LSB, HIGH, IS_SLICED, IS_HIGH, AFTER_USE, SKIPS_LSB, FREE_STEPS, BUDGET, WARMUP, REROUTES, NATURAL = range(13)
# limits
TAU, TARGET, CAP, GAIN, DECAY, LSB_SHARE, PULL = range(7)
# clock; EVENT numbers what `pin` and `seen` hold, TOKEN what `lsb_token` holds
USED, EVENT, TOKEN, COUNTED_EVENTS, COUNTED_FLASH, GENERATION = range(6)
# tokens
STEP, LAST_LAYER, TOKEN_FLASH = range(3)
# pulls
STRENGTH, MEAN_MISS = range(2)
# flags, first axis of the (5, n, k) result
F_HIGH, F_MSB_HIT, F_LSB_HIT, F_LSB_NEEDED, F_DEGRADED = range(5)
# what an event sums up
ACTIVE, CHOSEN, HITS, DRAM, FLASH = range(5)

NO_BUDGET, HARD, SOFT = range(3)
EMPTY, LAST, RANDOM, PREDICTIVE = range(4)
BEFORE_FIRST = 2**31 - 1  # LAST_LAYER where no token is under way: any layer begins one

# sizes, limits, clock, tokens, credit, pulls; params of the router and as they start; counted (3, K) of the prompts under way;
# draws (g, K): keys in random order, one row per generation; the cache (cache.py): msb_link, lsb_link, msb_in, lsb_in, pin,
# lsb_token; free to use: seen (2, E), work (2, E), natural and chosen (1, k), phase (1,) of a decode,
# lowest (2, L): keys that leave first.
SLICED = tuple_of(
    I64, F64, I64, I64_2D, F64, F64, F64, F64, F64_2D, I64_2D, U32, U32, U8, U8, I64, I64, I64_2D,
    I64_2D, I64_2D, I64_2D, U8, I64_2D,
)  # fmt: skip

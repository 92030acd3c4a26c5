"""Where the sliced cache's numbers stand in its arrays: shared by the kernels and the controller.

sizes (10,) i64, fixed: what is cached and counted. limits (5,) f64, fixed: thresholds and the budget.
clock (8,) i64, advanced: counters. pulls (3,) f64, advanced: the state of the budget.
"""

from __future__ import annotations

# sizes
CAPACITY, MSB, LSB, HIGH, IS_SLICED, IS_HIGH, AFTER_USE, SKIPS_LSB, FREE_STEPS, BUDGET = range(10)
# limits
TAU, TARGET, CAP, GAIN, DECAY = range(5)
# clock; EVENT numbers what `pin` holds, TOKEN what `lsb_token` holds
USED, EVENT, TOKEN, STEP, LAST_LAYER, TOKEN_FLASH, COUNTED_EVENTS, COUNTED_FLASH = range(8)
# pulls
CREDIT, STRENGTH, MEAN_MISS = range(3)
# flags, first axis of the (5, n, k) result
F_HIGH, F_MSB_HIT, F_LSB_HIT, F_LSB_NEEDED, F_DEGRADED = range(5)

NO_BUDGET, HARD, SOFT = range(3)
BEFORE_FIRST = 2**31 - 1  # LAST_LAYER where no token is under way: any layer begins one

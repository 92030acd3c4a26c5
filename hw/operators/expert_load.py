"""How many token rows, experts and row blocks a MoE kernel meets on one rank, in closed form, for synthetic distributions.

The measured tables state how tokens were spread over experts: "balanced", or "power_law_<alpha>", which their generator samples
(NVIDIA aiconfigurator, collector/helper.py): every expert draws a weight of density ~ x^-alpha between 1 and 0.8 T (between .01
and 2 where the T k selections are no more than the experts); weights are scaled to sum to T k and rounded; what rounding leaves
over goes to the emptiest experts; experts lie in contiguous groups on the ranks, and the most loaded rank is measured.

Here those draws are replaced by their expectations: survival function and partial integrals of the truncated power law. The load
of the fullest rank follows from the spread of a group's sum (expected maximum of normal variables) and from its heaviest expert,
the larger counting most. Against a sampler of the above, 8 to 512 experts and 1 to 16,384 tokens: on one rank, active experts and
blocks are 1 % off on average, 16 % at worst (8 experts, 4 tokens); on the fullest of several ranks 5 %, 24 % at worst. Older
versions of the generator order the experts once and give the leftovers to the last ones, which stand side by side where all are
empty: one rank gets them. Newer ones deal them out rank by rank.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.operators.operator import Floats

BALANCED = "balanced"
POWER_LAW = "power_law_"

_ROWS_AT_ONCE = 16_384  # intermediate arrays stay in the processor's cache
_ROUNDING_TERMS = (0.5, 1.5, 2.5, 3.5)  # expected value of a rounded x: sum of P(x > j - 1/2), beyond these an integral


class ExpertLoad(NamedTuple):
    """What one rank computes; each (n,) f64. blocks: row blocks, summed over experts, each expert's last one padded."""

    rows: Floats
    active_experts: Floats
    blocks: Floats


def even_load(rows: Floats, active_experts: Floats, block_rows: Floats) -> ExpertLoad:
    """Load of active experts that share the rows evenly; every argument (n,)."""
    return ExpertLoad(rows, active_experts, active_experts * np.ceil(rows / active_experts / block_rows))


def expert_load(
    distribution: NDArray[np.str_],
    n_tokens: Floats,
    top_k: Floats,
    n_experts: Floats,
    n_ranks: Floats,
    block_rows: Floats,
    heaped: Floats,
) -> ExpertLoad:
    """Expected load of the fullest of n_ranks ranks that share the experts; every argument (n,).

    heaped: 1 where the generator put what rounding left over on neighbouring experts, 0 where it dealt it out to the ranks.
    Raises ValueError for a distribution that is neither "balanced" nor "power_law_" and a number between 1 and 2.
    """
    load = ExpertLoad(*(np.empty(n_tokens.shape) for _ in ExpertLoad._fields))
    for name in sorted(set(distribution.tolist())):
        rows = np.flatnonzero(distribution == name)
        for chosen in np.split(rows, range(_ROWS_AT_ONCE, len(rows), _ROWS_AT_ONCE)):
            t, k, e, r, b, h = (values[chosen] for values in (n_tokens, top_k, n_experts, n_ranks, block_rows, heaped))
            part = _balanced(t, k, e, r, b) if name == BALANCED else _power_law(_alpha(name), t, k, e, r, b, h)
            for whole, values in zip(load, part, strict=True):
                whole[chosen] = values
    return load


def _alpha(name: str) -> float:
    try:
        alpha = float(name.removeprefix(POWER_LAW)) if name.startswith(POWER_LAW) else np.nan
    except ValueError:
        alpha = np.nan
    if not (1.0 < alpha < 2.0):
        raise ValueError(f"distribution {name!r} is unknown; give {BALANCED!r} or {POWER_LAW!r} and a number between 1 and 2")
    return alpha


def _balanced(n_tokens: Floats, top_k: Floats, n_experts: Floats, n_ranks: Floats, block_rows: Floats) -> ExpertLoad:
    """Selections go round the experts: as many as fit are active, all with the same number of rows."""
    rows = np.maximum(1.0, n_tokens * top_k / n_ranks)
    return even_load(rows, np.minimum(n_experts / n_ranks, rows), block_rows)


def _power_law(
    alpha: float, n_tokens: Floats, top_k: Floats, n_experts: Floats, n_ranks: Floats, block_rows: Floats, heaped: Floats
) -> ExpertLoad:
    selections, group = n_tokens * top_k, n_experts / n_ranks
    crowded = selections > n_experts
    law = _PowerLaw(alpha, np.where(crowded, 1.0, 0.01), np.where(crowded, np.maximum(0.8 * n_tokens, 1.6), 2.0))
    fair = selections / n_experts
    to_weight = law.mean / fair  # rows of an average rank's expert -> weight
    rounded_rows = sum(law.above(limit * to_weight) for limit in _ROUNDING_TERMS)
    rounded_rows = rounded_rows + law.excess(len(_ROUNDING_TERMS) * to_weight) / to_weight
    leftover = np.maximum(0.0, fair - rounded_rows)
    crowding = _fullest_rank(law, leftover / fair, fair, group, n_experts, n_ranks)
    rows = np.minimum(fair * group * crowding, n_tokens * np.minimum(group, top_k))
    to_weight = to_weight / crowding  # the same for the fullest rank
    empty = 1.0 - law.above(0.5 * to_weight * crowding)
    active_share = np.minimum(1.0, law.above(0.5 * to_weight) + np.minimum(empty, leftover * crowding))
    active = np.minimum(group * active_share, rows)
    # A rank that the leftovers are heaped on: its own rounded rows, and one more for each of its experts that is empty.
    onto = np.minimum(group * empty, leftover * n_experts)
    is_heap = (heaped > 0) & ~crowded & (n_ranks > 1) & (group * rounded_rows + onto > rows)
    rows = np.where(is_heap, group * rounded_rows + onto, rows)
    active = np.where(is_heap, np.minimum(group * (1.0 - empty) + onto, rows), active)
    to_weight = np.where(is_heap, to_weight * crowding, to_weight)
    # An active expert has one block, and one more for each multiple of block_rows that it exceeds.
    more = law.above((block_rows + 0.5) * to_weight) + law.above((2.0 * block_rows + 0.5) * to_weight)
    more = more + law.excess(2.5 * block_rows * to_weight) / (block_rows * to_weight)
    return ExpertLoad(rows, active, active + group * more)


class _PowerLaw:
    """Density ~ x^-alpha between low and high, each (n,)."""

    def __init__(self, alpha: float, low: Floats, high: Floats) -> None:
        self.power, self.low, self.high = 1.0 - alpha, low, high
        self.at_low, self.at_high = low**self.power, high**self.power
        span = self.at_high - self.at_low
        self.mean = self.power / (self.power + 1.0) * (high * self.at_high - low * self.at_low) / span
        square = self.power / (self.power + 2.0) * (high**2 * self.at_high - low**2 * self.at_low) / span
        self.deviation = np.sqrt(np.maximum(0.0, square - self.mean**2))

    def above(self, x: Floats) -> Floats:
        """Probability that a weight exceeds x."""
        inside = np.clip(x, self.low, self.high)
        return np.asarray((self.at_high - inside**self.power) / (self.at_high - self.at_low))

    def excess(self, x: Floats) -> Floats:
        """Integral of `above` from x on: the expected part of a weight beyond x."""
        inside = np.clip(x, self.low, self.high)
        primitive = (self.high * self.at_high - inside * inside**self.power) / (self.power + 1.0)
        integral = (self.at_high * (self.high - inside) - primitive) / (self.at_high - self.at_low)
        return np.asarray(integral + np.maximum(0.0, self.low - x))

    def quantile(self, share: Floats) -> Floats:
        """The weight below which this share of the experts lies."""
        return np.asarray((self.at_low + share * (self.at_high - self.at_low)) ** (1.0 / self.power))


def _fullest_rank(
    law: _PowerLaw, leftover_share: Floats, fair: Floats, group: Floats, n_experts: Floats, n_ranks: Floats
) -> Floats:
    """Expected load of the fullest rank relative to an even share, at least 1."""
    # Expected maximum of n standard normal variables, within 7 % of its tabulated values for 2 to 256 variables.
    deviations = 0.6 * np.log2(n_ranks) ** 0.75
    # Leftover selections fall on single experts at random: a binomial variance.
    variance = (law.deviation / law.mean) ** 2 + leftover_share * np.maximum(0.0, 1.0 / fair - leftover_share)
    by_spread = deviations * np.sqrt(variance * (1.0 - 1.0 / n_ranks) / group)
    heaviest = law.quantile(n_experts / (n_experts + 1.0))
    by_heaviest = np.where(n_ranks > 1.0, heaviest / law.mean - 1.0, 0.0) / group
    return np.asarray(1.0 + (by_spread**4 + by_heaviest**4) ** 0.25)

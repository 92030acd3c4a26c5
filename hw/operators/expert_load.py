"""How many token rows, experts and row blocks a MoE kernel meets on one rank, in closed form, for synthetic distributions.

The measured tables state how tokens were spread over experts: "balanced", or "power_law_<alpha>", which their generator samples
(NVIDIA aiconfigurator, collector/helper.py): every expert draws a weight of density ~ x^-alpha between 1 and 0.8 T (between .01
and 2 where the T k selections are no more than the experts); weights are scaled to sum to T k and rounded; what rounding leaves
over goes to the emptiest experts; experts lie in contiguous groups on the ranks, and the most loaded rank is measured.

Here those draws are replaced by their expectations: survival function and partial integrals of the truncated power law. The load
of the fullest rank follows from the spread of a group's rounded sum (expected maximum of normal variables) and from its heaviest
expert, the larger counting most. Against a sampler of the above, 8 to 512 experts and 1 to 16,384 tokens: on one rank, active
experts and blocks are 1 % off on average, 11 % at worst; on the fullest of several ranks rows 6, active experts 2 and blocks
6 %, 39 % at worst (two rows for three). Older versions of the generator order the experts once and give the leftovers to the last
ones, which stand side by side where all are empty: one rank gets them. Newer ones deal them out to the ranks in turn, so that
each has as many, to one.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.operators.operator import Floats

BALANCED = "balanced"
POWER_LAW = "power_law_"

_ROWS_AT_ONCE = 16_384  # intermediate arrays stay in the processor's cache
_ROUNDED_ROWS = (1, 2, 3, 4)  # expected value of a rounded x: sum of P(x > j - 1/2), beyond these an integral


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
    rounded, square = (law.rounded(to_weight, n_tokens, order) for order in (1.0, 2.0))
    leftover, even, variance = np.maximum(0.0, fair - rounded), np.minimum(fair, rounded) * group, square - rounded**2
    heaviest = np.minimum(np.floor(law.quantile(n_experts / (n_experts + 1.0)) / to_weight + 0.5), n_tokens)
    # Expected maximum of n standard normal variables, within 7 % of its tabulated values for 2 to 256 variables.
    by_spread = 0.6 * np.log2(n_ranks) ** 0.75 * np.sqrt(np.maximum(0.0, variance) * (1.0 - 1.0 / n_ranks) * group)
    by_heaviest = np.where(n_ranks > 1.0, np.maximum(0.0, heaviest - rounded), 0.0)
    own = even + (by_spread**4 + by_heaviest**4) ** 0.25  # what the rank rounded itself
    rows = np.maximum(own + leftover * group, np.ceil(selections / n_ranks))
    rows = np.minimum(rows, n_tokens * np.minimum(group, top_k))
    own = np.minimum(own, rows)
    empty = 1.0 - law.above(0.5 * to_weight)
    # Of the rows that a rank has beyond an even share, as many bring a further expert as rows and active experts vary together.
    active = group * (1.0 - empty) + (own - even) * rounded * empty / np.maximum(variance, 1e-9)
    active = np.minimum(np.minimum(active, group), own)
    active = active + np.minimum(group - active, rows - own)
    # A rank that the leftovers are heaped on: its own rounded rows, and one more for each of its experts that is empty.
    onto = np.minimum(group * empty, leftover * n_experts)
    is_heap = (heaped > 0) & ~crowded & (n_ranks > 1) & (group * rounded + onto > rows)
    rows = np.where(is_heap, group * rounded + onto, rows)
    active = np.where(is_heap, np.minimum(group * (1.0 - empty) + onto, rows), active)
    to_weight = np.where(is_heap, to_weight, to_weight * fair * group / rows)
    # An active expert has one block, and one more for each multiple of block_rows that it exceeds.
    more = law.above((block_rows + 0.5) * to_weight) + law.above((2.0 * block_rows + 0.5) * to_weight)
    more = more + law.excess(2.5 * block_rows * to_weight, 1.0) / (block_rows * to_weight)
    return ExpertLoad(rows, active, active + group * more)


class _PowerLaw:
    """Density ~ x^-alpha between low and high, each (n,)."""

    def __init__(self, alpha: float, low: Floats, high: Floats) -> None:
        self.power, self.low, self.high = 1.0 - alpha, low, high
        self.at_low, self.at_high = low**self.power, high**self.power
        span = self.at_high - self.at_low
        self.mean = self.power / (self.power + 1.0) * (high * self.at_high - low * self.at_low) / span

    def above(self, x: Floats) -> Floats:
        """Probability that a weight exceeds x."""
        inside = np.clip(x, self.low, self.high)
        return np.asarray((self.at_high - inside**self.power) / (self.at_high - self.at_low))

    def excess(self, x: Floats, order: float) -> Floats:
        """The expected part of a weight to the power of `order` beyond x."""
        inside = np.clip(x, self.low, self.high)
        area = [self.at_high * y**order - order * y ** (order + self.power) / (order + self.power) for y in (inside, self.high)]
        return np.asarray((area[1] - area[0]) / (self.at_high - self.at_low) + np.maximum(0.0, self.low**order - x**order))

    def rounded(self, to_weight: Floats, most: Floats, order: float) -> Floats:
        """Expected rows of an expert, rounded and no more than `most`, to the power of `order`."""
        of_steps = [(j**order - (j - 1) ** order) * (j <= most) * self.above((j - 0.5) * to_weight) for j in _ROUNDED_ROWS]
        last = _ROUNDED_ROWS[-1]
        beyond = self.excess(last * to_weight, order) - self.excess(np.maximum(most, last) * to_weight, order)
        return np.asarray(sum(of_steps) + beyond / to_weight**order)

    def quantile(self, share: Floats) -> Floats:
        """The weight below which this share of the experts lies."""
        return np.asarray((self.at_low + share * (self.at_high - self.at_low)) ** (1.0 / self.power))

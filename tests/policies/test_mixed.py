"""Hot experts and widths of the others together: budgets, bounds, and what is refused."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from refusing import refuses

from tokentape.policies.bits import budget_bits
from tokentape.policies.mixed import FIXED, RULES, MixedPrecision
from tokentape.policies.placement import Seen

L, E = 2, 6


def seen_of(seed, groups=3):
    rng = np.random.default_rng(seed)
    counts, decoded = rng.integers(0, 9, (groups, L, E)), rng.integers(0, 9, (groups, L, E))
    return Seen(counts, counts * rng.random((groups, L, E)), decoded, (counts + decoded).sum(axis=0))


def losses_of(seed):
    return np.sort(np.random.default_rng(seed).random((L, E, 4)), axis=2)[..., ::-1].copy()


@given(
    seed=st.integers(0, 99),
    hot=st.integers(0, E),
    bits=st.sampled_from([1.0, 1.5, 2.0, 2.7, 4.0]),
    rule=st.sampled_from(RULES[1:]),
    placement=st.sampled_from(FIXED),
)
def test_hot_experts_have_no_width_and_the_others_spend_the_budget(seed, hot, bits, rule, placement):
    policy = MixedPrecision(hot, bits, rule, placement=placement)
    widths = policy.widths(seen_of(seed), losses_of(seed))
    n = E - hot
    assert ((widths == 0).sum(axis=2) == hot).all()
    spent = widths.sum(axis=2) - n
    # The bound and the greedy rule may leave bits that gain nothing.
    assert (spent <= budget_bits(n, bits)).all() if rule in ("optimum", "greedy") else (spent == budget_bits(n, bits)).all()


def test_the_oracle_holds_what_decode_uses_most_and_only_prompt_and_chance_do_without_it():
    seen, losses = seen_of(3), losses_of(3)
    for placement in FIXED:
        hot = MixedPrecision(2, placement=placement).widths(seen, losses) == 0
        bound = MixedPrecision(2, placement="oracle").widths(seen, losses) == 0
        assert (seen.decode_counts * hot).sum() <= (seen.decode_counts * bound).sum()
    without = {name for name in FIXED if MixedPrecision(2, placement=name).needs_decode is False}
    assert without == {"prefill_guided", "random"}


def test_losses_weighed_by_use_move_bits_to_what_the_prompt_used():
    """Convex losses, equal for all: alike they give uniform widths, weighed the one expert in use gets what there is."""
    losses = np.broadcast_to([8.0, 4.0, 2.0, 1.0], (1, 4, 4)).copy()
    counts = np.array([[[97, 1, 1, 1]]])
    seen = Seen(counts, counts / 2, counts, counts[0])
    assert MixedPrecision(0).widths(seen, losses).tolist() == [[[2, 2, 2, 2]]]
    assert MixedPrecision(0, loss_weight="prefill_share").widths(seen, losses).tolist() == [[[4, 2, 1, 1]]]


def test_full_precision_has_no_replica_and_no_more_experts_are_hot_than_there_are():
    assert not MixedPrecision(0, rule="full").widths(seen_of(1), losses_of(1)).any()
    refuses("7 hot experts of 6 per layer", MixedPrecision(7).widths, seen_of(1), losses_of(1))

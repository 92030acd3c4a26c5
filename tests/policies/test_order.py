"""The stable order that kernels share, against numpy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokentape.policies.order import RUN, ascending


@given(st.lists(st.sampled_from([-np.inf, -1.5, -0.0, 0.0, 2.0, np.inf]), max_size=5 * RUN))
def test_ties_stay_as_they_stand(values: list[float]) -> None:
    assert ascending(np.array(values, np.float64)).tolist() == np.argsort(np.array(values, np.float64), kind="stable").tolist()


@pytest.mark.parametrize("n", [0, 1, RUN, RUN + 1, 2 * RUN, 7 * RUN + 3, 64 * RUN])
def test_numbers_of_any_count_are_in_order(n: int) -> None:
    values = np.random.default_rng(n).standard_normal(n)
    assert ascending(values).tolist() == np.argsort(values, kind="stable").tolist()

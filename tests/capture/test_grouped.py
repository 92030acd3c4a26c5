"""Rows sorted by token: the order, and what it finds."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokentape.capture.importers import checks
from tokentape.capture.importers.rows import Grouped, RoutedRows

Row = tuple[int, int, int, int]  # request, position, layer, pass


def routed(rows: list[Row]) -> RoutedRows:
    request, position, layer, pass_id = np.array(rows).T
    return RoutedRows(request, position, layer, pass_id, pass_id > 0, np.tile([3, 1], (len(rows), 1)))


@given(st.lists(st.tuples(*(st.integers(0, n) for n in (4, 6, 2, 3))), min_size=1, max_size=60))
def test_rows_are_sorted_and_their_faults_found(rows: list[Row]) -> None:
    found = Grouped.of(routed(rows))
    order = sorted(range(len(rows)), key=lambda row: rows[row][:3])
    assert found.order.tolist() == order
    starts = [at for at in range(len(order)) if at == 0 or rows[order[at]][:2] != rows[order[at - 1]][:2]]
    assert (found.starts.tolist(), found.first.tolist()) == (starts, [order[at] for at in starts])
    requests = [rows[row][0] for row in found.first]
    assert found.request_ids.tolist() == sorted(set(requests))
    assert found.bounds.tolist() == [*(requests.index(request) for request in sorted(set(requests))), len(requests)]
    # The first row given twice, and the first in another pass.
    pairs = [(rows[before], rows[row], row) for before, row in pairwise(order)]
    assert found.repeated == next((row for one, other, row in pairs if one[:3] == other[:3]), None)
    assert found.moved == next((row for one, other, row in pairs if one[:2] == other[:2] and one[3] != other[3]), None)


@given(st.data())
def test_an_expert_given_twice_is_found_among_few_and_many(data: st.DataObject) -> None:
    k = data.draw(st.sampled_from((1, 2, 8, 16, 17, 40)))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    ids = np.array([rng.permutation(50)[:k] for _ in range(30)], np.uint16)
    for row in data.draw(st.lists(st.integers(0, 29), max_size=3)):
        ids[row, rng.integers(k)] = ids[row, rng.integers(k)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "BLOCK_ROWS", data.draw(st.integers(1, 40)))
        found = checks._given_twice(ids)
    twice = ((at, next(i for i in sorted(row) if row.count(i) > 1)) for at, row in enumerate(ids.tolist()) if len(set(row)) < k)
    assert found == next(twice, None)

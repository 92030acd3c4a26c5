"""Timelines: serial, parallel and pipelined steps by hand and against a recurrence, and how busy a resource may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokentape.hw.timeline import Operation, Parallel, Pipelined, Serial, busy_s, place


def op(name, seconds, resource=None):
    return Operation(name=name, resource=resource or name, seconds=seconds)


def spans(step):
    placed, end_s = place(step)
    return {p.operation.name: (p.start_s, p.end_s) for p in placed}, end_s


def test_serial_parallel_and_nested_by_hand():
    step = Serial((op("fetch", 2.0), Parallel((op("read", 3.0), op("compute", 1.0))), op("last", 0.5)))
    assert spans(step) == ({"fetch": (0, 2), "read": (2, 5), "compute": (2, 3), "last": (5, 5.5)}, 5.5)


def test_a_pipeline_by_hand():
    """Loads of 2 feed computes of 3: the first compute waits for its load, the others for the one before."""
    items = tuple((op(f"load{i}", 2.0, "link"), op(f"compute{i}", 3.0, "engine")) for i in range(3))
    placed, end_s = spans(Pipelined(items))
    assert placed == {
        "load0": (0, 2),
        "compute0": (2, 5),
        "load1": (2, 4),
        "compute1": (5, 8),
        "load2": (4, 6),
        "compute2": (8, 11),
    }
    assert end_s == 11
    assert busy_s(place(Pipelined(items))[0]) == {"link": 6.0, "engine": 9.0}


def test_unequal_stages_are_refused():
    with pytest.raises(ValueError, match="same number of stages"):
        Pipelined(((op("a", 1.0),), (op("b", 1.0), op("c", 1.0))))


def test_two_operations_on_one_resource_at_once_count_once():
    clash = Parallel((op("a", 2.0, "bus"), op("b", 1.0, "bus"), op("c", 1.0, "engine")))
    assert busy_s(place(clash)[0]) == {"bus": 2.0, "engine": 1.0}
    assert busy_s(place(Serial(clash.parts))[0]) == {"bus": 3.0, "engine": 1.0}


seconds = st.floats(0, 10)
tables = st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(seconds, min_size=n, max_size=n), min_size=1, max_size=6))


@given(tables)
def test_a_pipeline_equals_the_recurrence(table):
    items = tuple(tuple(op(f"{i}.{j}", s, f"stage{j}") for j, s in enumerate(item)) for i, item in enumerate(table))
    placed, end_s = spans(Pipelined(items))
    ends: dict[tuple[int, int], float] = {}
    for i, item in enumerate(table):
        for j, s in enumerate(item):
            ends[i, j] = max(ends.get((i, j - 1), 0.0), ends.get((i - 1, j), 0.0)) + s
            assert placed[f"{i}.{j}"][1] == pytest.approx(ends[i, j])
    assert end_s == pytest.approx(max(ends.values()))
    assert sum(busy_s(place(Pipelined(items))[0]).values()) == pytest.approx(sum(map(sum, table)))


@given(tables)
def test_overlap_never_costs_time_and_no_resource_is_busier_than_the_step(table):
    ops = [[op(f"{i}.{j}", s, f"stage{j}") for j, s in enumerate(item)] for i, item in enumerate(table)]
    serial = Serial(tuple(Serial(tuple(item)) for item in ops))
    piped = Pipelined(tuple(tuple(item) for item in ops))
    together = Parallel(tuple(Serial(tuple(item)) for item in ops))
    ends = [place(step)[1] for step in (together, piped, serial)]
    assert ends[0] <= ends[1] * (1 + 1e-12) + 1e-12
    assert ends[1] <= ends[2] * (1 + 1e-12) + 1e-12
    for step, end_s in zip((piped, serial), ends[1:], strict=True):
        assert all(busy <= end_s * (1 + 1e-9) for busy in busy_s(place(step)[0]).values())

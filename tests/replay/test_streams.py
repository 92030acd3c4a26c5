"""A trace under each semantics: which lookups, in which order, grouped how."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses
from tapes import GEOMETRY, make_tables, tables_of

from tokentape.replay.semantics import CHOICES, Semantics
from tokentape.replay.stream import stream
from tokentape.replay.trace import trace_from_tables, without_rows


def obvious_events(routing, passes, prefill):
    """(pass, layer) groups as lists of distinct keys in order of last mention, from the tables themselves."""
    kinds = dict(zip(passes["pass_id"], passes["kind"], strict=True))
    groups: dict = {}
    for row in routing.iter_rows(named=True):
        token = row["position"] if prefill == "token-major" and kinds[row["pass_id"]] == "prefill" else -1
        layer = GEOMETRY.moe_layers.index(row["layer"])
        mentioned = groups.setdefault((row["pass_id"], token, layer), [])
        mentioned += [layer * GEOMETRY.n_experts + e for e in row["expert_ids"]]
    return [[k for i, k in enumerate(g) if k not in g[i + 1 :]] for _, g in sorted(groups.items())]


@pytest.mark.parametrize("prefill", CHOICES["prefill"])
@given(seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_events_equal_the_obvious_grouping(prefill, seed):
    routing, passes = make_tables(seed, n_requests=2, n_prompt=5, n_decode=4)
    trace = trace_from_tables("t", GEOMETRY, "synthetic", routing, passes)
    by_part = trace_from_tables("t", GEOMETRY, "synthetic", (routing[i : i + 7] for i in range(0, len(routing), 7)), passes)
    assert all(np.array_equal(mine, vars(trace)[name]) for name, mine in vars(by_part).items())
    made = stream(trace, Semantics(scope="global", prefill=prefill))
    events = [made.keys[a:b].tolist() for a, b in zip(made.offsets[:-1], made.offsets[1:], strict=True)]
    assert events == obvious_events(routing, passes, prefill)


def in_row(row, **changed):
    """The same rows but one, of which columns are changed."""

    def change(r, p):
        at = pl.int_range(pl.len()) == row
        return r.with_columns(
            pl.when(at).then(pl.lit(new)).otherwise(pl.col(name)).alias(name) for name, new in changed.items()
        ), p

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (in_row(7, pass_id=99), "routing row 7 belongs to a pass"),
        (lambda r, p: (r.head(0), p), "no routing rows"),
        (lambda r, p: (r, p.filter(pl.col("pass_id") != 3)), "belongs to a pass"),
        (lambda r, p: (r.with_columns(expert_ids=pl.lit([], dtype=pl.List(pl.Int64))), p), "row 0 names no expert"),
        (in_row(7, expert_ids=None), "row 7 names no expert"),
        (lambda r, p: (r.reverse(), p), "not ordered"),
        (lambda r, p: (pl.concat([r.head(2), r.slice(1)]), p), "row 2 is there twice"),
    ],
)
def test_bad_tapes_are_named(change, message):
    refuses(message, trace_from_tables, "t", GEOMETRY, "synthetic", *change(*make_tables()))
    routing, passes = change(*make_tables())
    with pytest.raises(ValueError, match=message.replace("row 2 is there twice", "go back")):
        list(without_rows("t", GEOMETRY, "synthetic", passes, lambda: routing.iter_slices(3)).parts)


def batch_of_two():
    """One prefill pass of two prompts, two decode passes of both, one of request 1 alone, then request 2."""
    batches = [("prefill", [(0, 0), (0, 1), (1, 0), (1, 1)]), ("decode", [(0, 2), (1, 2)]), ("decode", [(1, 3)])]
    batches.append(("prefill", [(2, 0), (2, 1)]))
    return trace_from_tables("t", GEOMETRY, "synthetic", *tables_of(batches, lambda r, t, layer: {"expert_ids": [r, 3 + t]}))


def test_events_of_a_batch_by_layers_by_tokens_and_from_a_cold_start():
    made = stream(batch_of_two(), Semantics("global", start="cold"))
    assert made.event_pass[made.segments[:-1]].tolist() == [0, 3]  # request 1 goes on when request 0 has ended
    made = stream(batch_of_two(), Semantics("global", prefill="token-major"))
    events = [made.keys[a:b].tolist() for a, b in zip(made.offsets[:-1], made.offsets[1:], strict=True)]
    e = GEOMETRY.n_experts
    assert events[:6] == [[0, 3], [e, e + 3], [2 * e, 2 * e + 3], [0, 4], [e, e + 4], [2 * e, 2 * e + 4]]
    assert events[6] == [1, 3]
    assert sorted(events[12]) == [0, 1, 5]  # decode: both requests together
    made = stream(batch_of_two(), Semantics("global"))
    assert sorted(made.keys[: made.offsets[1]].tolist()) == [0, 1, 3, 4]
    assert made.offsets.size == 1 + 4 * len(GEOMETRY.moe_layers)


def test_requests_that_take_turns_start_cold_together():
    """As on a speculative tape: the group's passes alternate between its requests."""
    turns = [("prefill", 0), ("prefill", 1), ("verify", 0), ("verify", 1), ("verify", 0), ("prefill", 2), ("verify", 2)]
    passes = [{"pass_id": i, "kind": kind, "n_tokens": 9, "request_ids": [r]} for i, (kind, r) in enumerate(turns)]
    passes.append({"pass_id": 7, "kind": "draft", "n_tokens": 1, "request_ids": [2]})
    rows = [
        {"request_id": r, "position": i, "layer": layer, "pass_id": i, "expert_ids": [r, 3]}
        for i, (_, r) in enumerate(turns)
        for layer in GEOMETRY.moe_layers
    ]
    trace = trace_from_tables("t", GEOMETRY, "captured", pl.DataFrame(rows), pl.DataFrame(passes))
    made = stream(trace, Semantics("global", start="cold"))
    assert made.event_pass[made.segments[:-1]].tolist() == [0, 5]
    assert trace.pass_ids.tolist() == list(range(7))  # the draft pass is left out
    assert trace.pass_tokens.tolist() == [9, 9, 1, 1, 1, 9, 1]  # a verify pass counts what it accepted

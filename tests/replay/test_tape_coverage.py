"""Coverage curves of a tape: a slow oracle, its ends, and closed forms that must be right or wrong by construction."""

import numpy as np
import pytest
from refusing import refuses
from tapes import GEOMETRY, make_trace

from tokentape.hw.coverage import FORMS, errors
from tokentape.replay.coverage import forms_of, recorded
from tokentape.replay.trace import DECODE

SIZE = (8, 2)


def test_one_token_touches_its_top_k_and_more_touch_more():
    trace = make_trace()
    for phase in ("decode", "prefill"):
        curve = recorded(trace, phase)
        assert curve.distinct[0] == 2.0
        assert np.all(np.diff(curve.distinct) >= 0)
        assert curve.distinct[-1] <= 8
        assert curve.at(1) == 2.0
        assert curve.at(3) == pytest.approx(np.interp(np.log2(3), [1, 2], curve.distinct[1:3]))
    assert recorded(trace, "prefill").n_tokens.tolist() == [1, 2, 4, 8]  # prompts have ten tokens


def test_against_every_pair_of_requests():
    """The mean over all pairs of decode tokens of different requests, counted one by one."""
    trace = make_trace(n_requests=3, n_decode=6)
    totals = []
    for layer in range(3):
        rows = [
            r for r in range(trace.row_layer.size) if trace.row_layer[r] == layer and trace.pass_kind[trace.row_pass[r]] == DECODE
        ]
        sets = [(trace.row_request[r], set(trace.ids[trace.offsets[r] : trace.offsets[r + 1]].tolist())) for r in rows]
        totals.append(np.mean([len(a | b) for i, a in sets for j, b in sets if i != j]))
    assert recorded(trace, "decode").distinct[1] == pytest.approx(np.mean(totals), abs=0.15)


def test_uniform_routing_is_uniform_and_skewed_routing_is_not():
    skewed = make_trace(n_requests=64, n_decode=8)
    curve = recorded(skewed, "decode")
    off = errors(forms_of(skewed, curve), curve.n_tokens, curve.distinct, *SIZE)
    assert off["power-law"] < 0.05
    assert off["uniform"] > 1.5 * off["power-law"]
    assert off["pigeonhole"] > off["uniform"]


@pytest.mark.parametrize(
    ("routed", "sizes", "untold"),
    [
        ({"n_experts": 2, "top_k": 2}, {}, {"reuse", "heaps"}),
        ({}, {"n_requests": 1, "n_decode": 1}, {"power-law", "reuse", "heaps"}),
        ({"n_experts": 2, "top_k": 1}, {"n_requests": 2, "n_decode": 1}, {"heaps"}),
    ],
)
def test_a_form_that_a_tape_does_not_tell_is_left_out(routed, sizes, untold):
    trace = make_trace(geometry=GEOMETRY.model_copy(update=routed), **sizes)
    assert FORMS.keys() - forms_of(trace, recorded(trace, "decode")).keys() == untold


def test_the_seed_decides_and_what_the_tape_cannot_tell_is_refused():
    trace = make_trace(n_decode=0)
    refuses("routes no token in decode", recorded, trace, "decode")
    refuses("not of 16", recorded(trace, "prefill").at, 16)
    trace = make_trace()
    first, again, other = (recorded(trace, "decode", seed).distinct for seed in (0, 0, 1))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()

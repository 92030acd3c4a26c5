"""What heads have in common of what they keep, counted on a tape: tokens that recomputing systems hold once for all heads."""

import numpy as np

from tokentape.hw.fit_files import Fit
from tokentape.policies.kv.importance import AERP
from tokentape.policies.kv.recompute import KV_PAIRS, PAIRS, X_TOKENS
from tokentape.replay.kelle.systems import Shares
from tokentape.replay.kv.replay import kept_of
from tokentape.replay.kv.tape import AttentionTape

KEPT_PERCENT = (5, 10, 15, 20, 25, 30, 40, 50, 60, 70, 80, 90, 100)  # of a request's tokens, at its end


def shares_of(tape: AttentionTape) -> Fit[Shares]:
    """Means over requests at their end, all layers together; residual: the largest standard error of one.

    Raises ValueError for a tape of one request, or of unlike lengths, of which no one budget keeps the same share, and as
    `replay_kv`."""
    ends = sorted({n for _, n in tape.requests.values()})
    if len(ends) != 1 or len(tape.requests) == 1:
        what = "it holds one request" if len(tape.requests) == 1 else f"its requests end after {ends[0]} to {ends[-1]} tokens"
        raise ValueError(f"tape {tape.trace_id}: {what}; give one of several requests of one length")
    found = {}
    for percent in KEPT_PERCENT:
        kept = kept_of(tape, AERP(budget=round(ends[0] * percent / 100)))
        tally = np.array([of[-1].sum(axis=0) for of in kept.values()])  # (requests, 5)
        if np.any(tally[:, PAIRS] <= 0):
            raise ValueError(f"tape {tape.trace_id} lacks attention at its requests' ends; record it with --attention full")
        found[percent] = 1.0 - tally[:, KV_PAIRS] / tally[:, PAIRS], tally[:, X_TOKENS] * tape.n_heads / tally[:, PAIRS]
    pairs, tokens = ({str(percent): float(of[i].mean()) for percent, of in found.items()} for i in (0, 1))
    errors = [one.std(ddof=1) / one.size**0.5 for of in found.values() for one in of]
    return Fit(Shares(pairs=pairs, tokens=tokens), (tape.trace_id,), float(max(errors)))

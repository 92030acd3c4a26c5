"""What the expert-cache page says where it has nothing to draw, and beside a mark."""

REPLAY_FIRST = "Nothing to draw: no replay fits. Run: tokentape study baselines, then tokentape load and tokentape site."
# A Vega expression: what stands at L x k, the lookups of one decoded token.
CYCLE_WORDS = (
    "'L × k = ' + format(datum.n, ',') + ' experts, the lookups of a token'"
    " + (scope === 'global' ? ': below, LRU is flooded' : '')"
)

"""What the expert-cache page says where it has nothing to draw, and beside a mark; how what is not picked fades."""

REPLAY_FIRST = "Nothing to draw: no replay fits. Run: tokentape study baselines, then tokentape load and tokentape site."
# A Vega expression: what stands at L x k, the lookups of one decoded token.
CYCLE_WORDS = (
    "'L × k = ' + format(datum.n, ',') + ' experts, the lookups of a token'"
    " + (scope === 'global' ? ': below, LRU is flooded' : '')"
)
SCOPES = {"global": "one cache for all layers", "per-layer": "an equal share for each layer"}
CAPACITY = "capacity:Q | cache capacity (% of all experts' bytes) | domain=[0,1] | %"
# Opacity: what is not picked in a legend fades; bounds are dashed lines without marks; a band is seen of what is picked alone.
FADED = {"condition": [{"param": "policy_pick", "value": 1}], "value": 0.12}
FADED_MARKS = {"condition": [{"test": "datum.bound", "value": 0}, {"param": "policy_pick", "value": 1}], "value": 0.12}
BAND = {"condition": [{"param": "policy_pick", "value": 0.18, "empty": False}], "value": 0}

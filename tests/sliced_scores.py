"""Made-up router scores for tests: the generator of SliceMoE section 6 in a few lines."""

import numpy as np


def softmax(values):
    e = np.exp(values - values.max(axis=-1, keepdims=True))
    return (e / e.sum(axis=-1, keepdims=True)).astype(np.float32)


def made_up_scores(seed, n_tokens, n_layers, n_experts, bias=0.5):
    """layer (n,), logits (n, E), gates (n, E), token by token: a fixed taste per layer, a drift (AR(1), 0.6) and noise."""
    rng = np.random.default_rng(seed)
    taste = bias * rng.standard_t(4, size=(n_layers, n_experts))
    drift = rng.normal(size=(n_layers, n_experts))
    values = np.empty((n_tokens, n_layers, n_experts), np.float32)
    for token in values:
        token[:] = 1.5 * (taste + 0.5 * drift + rng.normal(size=taste.shape))
        drift = 0.6 * drift + 0.8 * rng.normal(size=taste.shape)
    values = values.reshape(-1, n_experts)
    return np.tile(np.arange(n_layers, dtype=np.int32), n_tokens), values, softmax(values)


def prompt(layer, values, gates, n_layers, n_tokens):
    """The first tokens of the above, layer by layer, as a prefill pass has them."""
    rows = np.arange(n_tokens * n_layers).reshape(n_tokens, n_layers).T.ravel()
    return layer[rows], values[rows], gates[rows]

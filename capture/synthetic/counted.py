"""Drawn routing without a tape: what prompts used, summed, and the experts of every decode step, for studies of many sequences.

The draws are those of the tape that the same generator, seed and lengths give, with weights by softmax over the chosen logits.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.capture.synthetic.generator import RouterLogits
from tokentape.capture.synthetic.routes import Length
from tokentape.policies.kernels import array, float32, float64, int16, int32, int64, kernel, void
from tokentape.warehouse.geometry import Geometry


def counted(generator: RouterLogits, geometry: Geometry, seed: int, n_requests: int, length: Length) -> dict[str, NDArray[Any]]:
    """Requests 0 to n_requests - 1 of a seed, as fields of a CXLNDPRouting (replay/cxl_ndp): prefill_counts (S, L, E) i32,
    prefill_weights (S, L, E) f64, decode_ids (S, T, L, k) i16 by falling weight. One layer's logits of one request are held."""
    n_layers, n_experts, k = len(geometry.moe_layers), geometry.n_experts, geometry.top_k
    counts = np.zeros((n_requests, n_layers, n_experts), np.int32)
    weights = np.zeros(counts.shape)
    ids = np.empty((n_requests, length.n_decoded, n_layers, k), np.int16)
    for request in range(n_requests):
        for place, layer in enumerate(geometry.moe_layers):
            logits = generator.logits(seed, request, layer, length.n_prompt, length.n_decoded, n_experts)
            _choose(logits, length.n_prompt, counts[request, place], weights[request, place], ids[request, :, place])
    return {"prefill_counts": counts, "prefill_weights": weights, "decode_ids": ids}


@kernel(
    void(
        array(float32, 2), int64, array(int32, 1), array(float64, 1), array(int16, 2, "A")
    ),
)  # fmt: skip
def _choose(logits, n_prompt, counts, weights, ids):  # type: ignore[no-untyped-def]
    """The k largest of every row, equal ones by lower index; k is the width of `ids`."""
    k, n_experts = ids.shape[1], logits.shape[1]
    best, gates = np.empty(k, np.int64), np.empty(k)
    for t in range(logits.shape[0]):
        n = 0
        for e in range(n_experts):
            value = logits[t, e]
            if n == k and not value > logits[t, best[k - 1]]:
                continue
            n = min(n + 1, k)
            j = n - 1
            while j > 0 and value > logits[t, best[j - 1]]:
                best[j] = best[j - 1]
                j -= 1
            best[j] = e
        if t >= n_prompt:
            for j in range(k):
                ids[t - n_prompt, j] = best[j]
            continue
        total = 0.0
        for j in range(k):
            gates[j] = np.exp(float64(logits[t, best[j]]) - float64(logits[t, best[0]]))
            total += gates[j]
        for j in range(k):
            counts[best[j]] += 1
            weights[best[j]] += float32(gates[j] / total)

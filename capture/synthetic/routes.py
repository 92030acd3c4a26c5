"""One generated request as the tape's rows: logits, the experts that the model's score rule takes from them, their weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.capture.importers.rows import RoutedRows, in_order
from tokentape.capture.synthetic.generator import RouterLogits
from tokentape.policies.scoring import topk_from_scores
from tokentape.warehouse.geometry import Geometry


@dataclass(frozen=True)
class Length:
    """Tokens of every request. The last generated token is no pass's input: it has no rows."""

    n_prompt: int
    n_output: int

    @property
    def n_decoded(self) -> int:
        return max(0, self.n_output - 1)

    @property
    def n_inputs(self) -> int:
        return self.n_prompt + self.n_decoded


def routes(
    generator: RouterLogits,
    rule: str,
    params: Mapping[str, Any],
    geometry: Geometry,
    seed: int,
    request: int,
    length: Length,
    with_scores: bool = False,
) -> tuple[RoutedRows, NDArray[np.float32] | None]:
    """Request number `request` of `seed`, the prompt layer by layer, then token by token; scores (n, E) or None.
    rule, params: as in a manifest. One layer's logits at a time are held in memory."""
    layers, n_experts, n_prompt, n_decoded = geometry.moe_layers, geometry.n_experts, length.n_prompt, length.n_decoded
    n_rows, n_prefill = len(layers) * length.n_inputs, len(layers) * n_prompt
    ids = np.empty((n_rows, geometry.top_k), np.uint16)
    weights = np.empty((n_rows, geometry.top_k), np.float32)
    scores = np.empty((n_rows, n_experts), np.float32) if with_scores else None
    for place, layer in enumerate(layers):
        logits = generator.logits(seed, request, layer, n_prompt, n_decoded, n_experts)
        chosen, gates = topk_from_scores(logits, rule, params, layer)
        prompt = slice(place * n_prompt, (place + 1) * n_prompt)
        decoded = slice(n_prefill + place, None, len(layers))
        for rows, values in ((ids, chosen), (weights, gates), (scores, logits)):
            if rows is not None:
                rows[prompt], rows[decoded] = values[:n_prompt], values[n_prompt:]
    columns = in_order(request, n_prompt, length.n_inputs, np.array(layers), request * (1 + n_decoded))
    return RoutedRows(**columns, expert_ids=ids, gate_weights=weights), scores

"""Table loss of bit-width rules: what the losses of single experts add up to, layer by layer (specification 4.2).

It is the selector's own yardstick: no model runs. What the bits do to a model is measured closed loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.bits import BIT_RULES, BitRule, assign, chosen_losses

Floats = NDArray[np.float64]


def by_loss(losses: Floats) -> Floats:
    """(1, L, E) a ranking that no prompt gives: shares of the layer's losses at 1 bit."""
    at_one = losses[None, ..., 0]
    return np.asarray(at_one / at_one.sum(axis=-1, keepdims=True))


def bit_loss_rows(
    losses: Floats,
    layers: tuple[int, ...],
    scores: Floats,
    hot: NDArray[np.bool_],
    mean_bits: float,
    across_layers: bool = False,
    share: Floats | None = None,
) -> list[dict[str, Any]]:
    """Every rule at `mean_bits`: columns layer (None: all), rule, mean_bits, loss, uniform_loss, optimum_loss; means over groups.

    losses: (L, E, 4). scores, hot, share: (G, L, E) as `assign` takes them; `share` weights what is minimised and what is told.
    Raises ValueError as `assign`.
    """

    def layer_losses(rule: BitRule) -> Floats:
        bits = assign(rule, losses, scores, hot, mean_bits, across_layers, share)
        lost = chosen_losses(losses, bits)
        return np.asarray((lost if share is None else lost * share).sum(axis=2).mean(axis=0))

    lost = {name: layer_losses(rule) for name, rule in BIT_RULES.items()}
    rows = []
    for layer, where in [(None, slice(None)), *((layer, slice(i, i + 1)) for i, layer in enumerate(layers))]:
        total = {name: float(values[where].sum()) for name, values in lost.items()}
        references = {"uniform_loss": total["uniform"], "optimum_loss": total["optimum"]}
        rows += [{"layer": layer, "rule": name, "mean_bits": mean_bits, "loss": total[name], **references} for name in BIT_RULES]
    return rows

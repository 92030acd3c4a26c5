"""Table loss of bit-width rules: what the losses of single experts add up to, layer by layer (specification 4.2).

It is the selector's own yardstick: no model runs. What the bits do to a model is measured closed loop.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.work import Floats
from tokentape.policies.bits import BIT_RULES, BitRule, assign, chosen_losses
from tokentape.policies.placement import shares
from tokentape.replay.cxl_ndp.decode import Placed
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.setting import Setting, placed_by, widths

Row = dict[str, Any]
UNIFORM = "uniform"


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


def loss_rows(losses: Floats, layers: Sequence[int], where: Row) -> Iterator[Row]:
    """Of a table (L, E, 4). where: model_id, source and method."""
    for (at, expert, width), mse in np.ndenumerate(losses):
        yield {**where, "layer": layers[at], "expert": expert, "bits": width + 1, "mse": float(mse)}


def bit_rows(
    means: Sequence[float],
    batch: int,
    tapes: Sequence[CXLNDPRouting],
    losses: Sequence[Floats],
    where: Row,
    hot_experts: int,
    weighted: bool = True,
) -> tuple[list[Row], list[Row]]:
    """Rows of `cxl_ndp_bits` and of `cxl_ndp_losses`, placed by the prompt, once per sequence and once per batch.

    means: bits on average; losses: a table (L, E, 4) per tape. where: model_id, source and method. weighted: losses count by
    shares of the prompts.
    """
    bits_rows, losses_rows = [], []
    for size in (1, min(batch, min(tape.n_sequences for tape in tapes))):
        placed = [placed_by(tape, Setting(batch=size, hot_experts=hot_experts)) for tape in tapes]
        for mean_bits in means:
            lost, by_rank = dict[str, Floats](), dict[str, NDArray[np.int8]]()
            for rule in BIT_RULES:
                of = list(zip(tapes, placed, losses, strict=True))
                bits = [widths(tape, at, table, mean_bits, rule, weighted) for tape, at, table in of]
                lost[rule] = np.concatenate([table_losses(*one, n, weighted).ravel() for one, n in zip(of, bits, strict=True)])
                by_rank[rule] = np.concatenate([ranked_bits(at, n) for at, n in zip(placed, bits, strict=True)])
            for rule, mine in lost.items():
                key = {**where, "rule": rule, "mean_bits": mean_bits, "batch": size}
                bits_rows += [key | row for row in _by_rank(by_rank[rule])]
                ratio, gain = mine / lost[UNIFORM], float((lost[UNIFORM] - mine).mean())
                median, low, high = float(np.median(ratio)), float(np.quantile(ratio, 0.05)), float(np.quantile(ratio, 0.95))
                losses_rows.append(key | {"loss_ratio": median, "low": low, "high": high, "loss_gain": gain, "n": ratio.size})
    return bits_rows, losses_rows


def table_losses(tape: CXLNDPRouting, placed: Placed, losses: Floats, bits: NDArray[np.int8], weighted: bool) -> Floats:
    """(G, L) loss of the NDP's experts at their bits."""
    share = shares(tape.prefill_counts[placed.groups].sum(axis=1)) if weighted else 1.0
    return np.asarray((chosen_losses(losses, bits) * share).sum(axis=-1))


def ranked_bits(placed: Placed, bits: NDArray[np.int8]) -> NDArray[np.int8]:
    """(G L, n) bits of the NDP's experts of every group and layer, by falling importance."""
    n = bits.shape[-1] - placed.capacity
    order = np.argsort(np.where(placed.hot, np.inf, -placed.scores), axis=-1, kind="stable")[..., :n]
    return np.take_along_axis(bits, order, axis=-1).reshape(-1, n)


def _by_rank(bits: NDArray[np.int8]) -> Iterator[Row]:
    for rank in range(bits.shape[1]):
        low, high = np.quantile(bits[:, rank], (0.05, 0.95))
        row = {"importance_rank": rank + 1, "n_ranked": bits.shape[1], "bits_mean": float(bits[:, rank].mean())}
        yield row | {"bits_p05": float(low), "bits_p95": float(high)}

"""Table `losses` of a tape as an array: what each expert's replicas cost, for rules that choose widths."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.warehouse.tape import BadTape, Tape

WIDTHS = (1, 2, 3, 4)


def loss_table(tape: Tape, method: str = "gptq") -> NDArray[np.float64]:
    """(L, E, 4): calibration MSE of every expert at 1 to 4 bits, layers as in the geometry.

    Raises BadTape for a tape without losses, a quantiser that it does not hold, and a table with gaps.
    """
    rows = tape.read("losses")
    mine = rows.filter(pl.col("method") == method).sort("layer", "expert", "bits")
    if mine.is_empty():
        held = ", ".join(rows["method"].unique().sort())
        raise BadTape(f"tape {tape.trace_id} holds no losses of {method}; it has {held}")
    layers, n_experts = tape.geometry.moe_layers, tape.geometry.n_experts
    expected = [(layer, expert, bits) for layer in layers for expert in range(n_experts) for bits in WIDTHS]
    if mine.select("layer", "expert", "bits").rows() != expected:
        raise BadTape(f"tape {tape.trace_id}: table losses does not hold every expert at 1 to 4 bits once; capture it again")
    return np.array(mine["mse"].to_list()).reshape(len(layers), n_experts, len(WIDTHS))

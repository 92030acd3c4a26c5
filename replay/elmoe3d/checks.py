"""What the rows of Table 3 do not say of a fit: its refits without some of them, what links carry, errors of low bits."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import polars as pl

from tokentape.hw import profile as profiles
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.policies.matryoshka import low
from tokentape.policies.quantise import Quantised
from tokentape.replay.elmoe3d.fit import IS_OPEN, fit_speculation
from tokentape.replay.elmoe3d.points import ELASTIC, SLICED_FORMATS, Setup, as_points, points_of
from tokentape.replay.elmoe3d.rows import evaluated
from tokentape.replay.elmoe3d.runs import tokens_until_link_binds
from tokentape.replay.elmoe3d.timing import PAPER

LOW_BITS = 4
HONESTY = (
    "The forms of the model were chosen with the paper's table in view (KV width, embedding format, GiB, several hit laws and "
    "several forms of acceptance): parameter values are out of sample in predicted rows, forms are not."
)
Check = dict[str, Any]  # of view elmoe3d_checks, but for the fit and the hit law


def held_out(table: pl.DataFrame, setup: Setup, fit: ELMoE3DConstants) -> Iterator[Check]:
    """Speculation refitted without some open rows, and its error on those: by capacity of HB, and without GPT-OSS.
    Nothing without scipy."""
    if find_spec("scipy") is None:
        return
    opened = table.filter(IS_OPEN)
    splits = {
        "fitted on 8 GB, of 4 GB": pl.col("hb_gb") == 8,
        "fitted on 4 GB, of 8 GB": pl.col("hb_gb") == 4,
        "fitted without gpt-oss-20b, of it": pl.col("model") != "gpt-oss-20b",
    }
    for words, kept in splits.items():
        speculation, _ = fit_speculation(opened.filter(kept), setup, fit.laws, fit.speculation)
        found = evaluated(points_of(opened.filter(~kept), replace(fit, speculation=speculation)), setup)
        error = (found["phi_sd"] / found["published_sd"] - 1.0).abs()
        yield _check(f"Phi_SD error, {words}, mean", error.mean(), error.len(), "1", "relative error")


def link_checks(table: pl.DataFrame, setup: Setup, fit: ELMoE3DConstants, verify_nodes: float) -> Iterator[Check]:
    """Tokens in one expert whose partial sums a link carries while a slice is fetched, and tokens in the hottest expert.

    The latter at the table's largest batch, with so many nodes verified per request. Of sliced models, with the largest HB.
    """
    far = (pl.col("scheme") == ELASTIC) & (pl.col("batch") == pl.col("batch").max()) & (pl.col("hb_gb") == pl.col("hb_gb").max())
    for (model,), points in points_of(table.filter(far), fit).group_by("model", maintain_order=True):
        geometry, expert_format = setup.models[str(model)]
        if expert_format in SLICED_FORMATS:
            batch, machine = points["batch"][0], setup.machines[points["machine"][0]]
            hottest = float(-np.expm1(-as_points(points, setup).weights[0, 0])) * batch * verify_nodes
            carried = tokens_until_link_binds(geometry, machine, profiles.load(PAPER))
            yield _check(f"Tokens in one expert a link carries during a slice's fetch, {model}", carried, 1, "tokens")
            yield _check(f"Tokens in the hottest expert, batch {batch}, {verify_nodes:g} nodes, {model}", hottest, 1, "tokens")


def _check(block: str, value: Any, n: int, unit: str, how: str = "tokens") -> Check:
    return {"block": block, "value": float(value), "unit": unit, "n": n, "how": how, "bar_low": None, "bar_high": None}


def low_bits() -> list[dict[str, Any]]:
    """The error of the low bits of every INT8 code, by scheme, and whether rounding saturates the code."""
    codes = np.arange(-128, 128)
    whole = Quantised(codes.astype(np.int8), np.ones(1, np.float32), None, 8, codes.size)
    top = 127 - (2 ** (8 - LOW_BITS) // 2 - 1)
    return [
        {"scheme": scheme, "error": float(error), "saturates": bool(code >= top)}
        for scheme in ("trunc_sym", "round_sym")
        for code, error in zip(codes, codes - low(whole, LOW_BITS, scheme).astype(np.float64), strict=True)
    ]

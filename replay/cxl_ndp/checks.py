"""Bars of the GPU-NDP model, what the paper's ratios force, and where the paper disagrees with itself: rows of `cxl_ndp_checks`.

Each has a bar or a published number; the rest is in the points. Nothing is tuned to any of them; what does not hold is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import polars as pl

from tokentape.replay.cxl_ndp.system import HOBBIT, MONDE

Row = dict[str, Any]
HEADLINE = "headline"  # series of the paper's setting
MODE, END_TO_END = "paper", "paper, end to end"  # of answers
ORDER = ("OURS-2", "OURS-3", MONDE, HOBBIT)  # by time, least first


@dataclass(frozen=True)
class Bars:
    """What counts as reproduced: how far from the published value, as a share of it or by itself, by metric of the claims; and
    how much more often than a static placement the prompts must find their experts on the GPU."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    within_frac: dict[str, float]
    within: dict[str, float]
    least_hit_gain: float


def _check(
    check: str, value: float, unit: str, how: str, published: float | None = None, bar: tuple[float, float] | None = None
) -> Row:
    low, high = bar or (None, None)
    found = {"check": check, "value": float(value), "published": published, "unit": unit}
    return found | {"bar_low": low, "bar_high": high, "how": how}


def checks(models: Mapping[str, int], bars: Bars, claims: Mapping[str, Row], made: Mapping[str, Sequence[Row]]) -> list[Row]:
    """models: experts of a layer on the GPU by name, the model that is fitted on first; claims: the paper's by id; made: rows by
    view, answers among them."""
    frames = {name: pl.DataFrame(rows, infer_schema_length=None) for name, rows in made.items()}
    fitted = next(iter(models))
    return [
        *_bars(bars, claims, made["answers"]),
        *_order(fitted, frames["cxl_ndp_requests"]),
        *_placement(models, bars, frames["cxl_ndp_hits"]),
        *_bits(list(models)[:2], frames["cxl_ndp_losses"]),
        *_forced(fitted, claims, frames["cxl_ndp_points"]),
        *_paper(claims, frames["cxl_ndp_accuracy"]),
    ]


def _bars(bars: Bars, claims: Mapping[str, Row], answers: Sequence[Row]) -> Iterator[Row]:
    """Every answered number of the paper with its tolerance."""
    ours = {(row["claim_id"], row["mode"]): row["value"] for row in answers}
    for claim in claims.values():
        metric, published = claim["metric"], claim["value"]
        name = " ".join(
            part for part in (metric.replace("_", " "), claim["setting"].partition(" (")[0], claim["statistic"]) if part
        )
        if metric in bars.within_frac or metric in bars.within:
            by = bars.within[metric] if metric in bars.within else bars.within_frac[metric] * published
            modes = (MODE, END_TO_END) if metric == "speedup" else (MODE,)
            for mode in modes:
                said = f"{name}, end to end" if mode == END_TO_END else name
                yield _check(said, ours[claim["claim_id"], mode], "x", claim["role"], published, (published - by, published + by))
        elif metric == "ndp_side_latency_gain":
            exact = 16.0 / int(claim["setting"][0])  # by the assumed scaling: it cannot miss, so it has no bar
            yield _check(name, ours[claim["claim_id"], MODE], "x", f"16 over the bits is {exact:.3g}", published)


def _order(model: str, requests: pl.DataFrame) -> Iterator[Row]:
    """Share of length pairs of both grids at which the four systems come in the paper's order."""
    mine = requests.filter(pl.col("model_id") == model)
    cells = mine.partition_by(["setting", "n_context_tokens", "n_decode_tokens"])
    ordered = []
    for cell in cells:
        seconds = dict(cell.select("system", "e2e_s").iter_rows())
        ordered.append(all(seconds[a] < seconds[b] for a, b in pairwise(ORDER)))
    how = f"share of {len(ordered)} length pairs"
    yield _check(f"order {' < '.join(ORDER)}", float(np.mean(ordered)), "1", how, None, (1.0, 1.0))


def _placement(models: Mapping[str, int], bars: Bars, hits: pl.DataFrame) -> Iterator[Row]:
    """Drawn routing, all layers together."""
    for name, n_hot in models.items():
        for batch in hits["batch"].unique().sort().to_list():
            of = hits.filter((pl.col("model_id") == name) & (pl.col("batch") == batch) & pl.col("layer").is_null())
            share = dict(of.select("placement", "gpu_hit_frac").iter_rows())
            where = f"{name}, {n_hot} hot, batch {batch}"
            gain, bound = share["prefill_guided"] - share["static_global"], share["oracle"] - share["prefill_guided"]
            if batch == 1 and name.startswith("mixtral"):
                least = (bars.least_hit_gain, 1.0)
                yield _check(f"hit share, prompt less static, {where}", gain, "1", _shares(share), None, least)
            yield _check(f"hit share, oracle less prompt, {where}", bound, "1", _shares(share), None, (0.0, 1.0))


def _shares(share: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in share.items())


def _bits(models: Sequence[str], losses: pl.DataFrame) -> Iterator[Row]:
    """The selector against uniform bits, stand-in losses."""
    split = losses.filter(pl.col("rule") == "prefix_split")
    whole = split.filter(pl.col("mean_bits") == pl.col("mean_bits").round())
    largest = float(whole["high"].max())  # type: ignore[arg-type]
    yield _check(
        "selector's table loss over uniform, 95th percentile, the largest", largest, "1", "whole mean bits", None, (0.0, 1.0)
    )
    for model in models:
        of = split.filter((pl.col("model_id") == model) & (pl.col("batch") == 1))
        gain = dict(of.select("mean_bits", "loss_gain").iter_rows())
        how = f"{gain[2.0]:.3g} at 2 bits, {gain[3.0]:.3g} at 3; per sequence"
        yield _check(f"selector's gain at 2 bits less at 3, {model}", gain[2.0] - gain[3.0], "1", how, None, (0.0, 1.0))


def _forced(model: str, claims: Mapping[str, Row], points: pl.DataFrame) -> Iterator[Row]:
    """What the decode ratios alone say, x being the FP16 NDP time of the experts in memory; ours beside it."""
    published = {(row["metric"], row["setting"].partition(" (")[0]): row["value"] for row in claims.values()}
    three, two = (published["decode_throughput_gain", f"ours {bits}-bit vs MoNDE"] for bits in (3, 2))
    monde = (1 / 16) / (1 / three - 1 / two)
    other, hobbit = monde / three - 3 / 16, published["speedup", "ours 2-bit vs HOBBIT"] * monde / two

    headline = points.filter((pl.col("series") == HEADLINE) & (pl.col("model_id") == model))
    ours = {(system, metric): value for system, metric, value in headline.select("system", "metric", "value").iter_rows()}
    x, how = ours["OURS-3", "ndp_s"] * ours["OURS-3", "ndp_gain"], "published: forced by 8.7 and 11.2"
    yield _check("T_o over x", ours["OURS-3", "other_s"] / x, "1", how, other)
    yield _check("MoNDE's step over x", ours[MONDE, "step_s"] / x, "1", how, monde)
    yield _check("HOBBIT's step over x", ours[HOBBIT, "step_s"] / x, "1", "published: forced by 18 too", hobbit)
    for name in (f"{MONDE} never", f"{MONDE} always", f"{MONDE} balance"):
        for bits, published in ((3, three), (2, two)):
            gain = ours[f"OURS-{bits}", "tokens_per_s"] / ours[name, "tokens_per_s"]
            yield _check(
                f"decode gain at {bits} bits over {name}", gain, "x", "published: over MoNDE, policy not given", published
            )


def _paper(claims: Mapping[str, Row], accuracy: pl.DataFrame) -> Iterator[Row]:
    """Section 8 of the specification: the paper's own numbers, each a second way."""
    table = {(row["method"], row["task"]): row["accuracy_pct"] for row in accuracy.to_dicts()}
    published = {(row["metric"], row["setting"]): row["value"] for row in claims.values()}
    full = table["original_fp16", "average"]
    for bits in (3, 2):
        drop, said = full - table[f"ours_{bits}bit", "average"], published["accuracy_drop", f"ours {bits}-bit vs original"]
        how = f"Table 3's averages; {100 * drop / full:.2f} % of the original's, so the paper's percent are points"
        yield _check(f"accuracy drop at {bits} bits", drop, "percentage points", how, said)
        tasks = sorted({task for _, task in table} - {"average"})
        lost = [task for task in tasks if table[f"ours_{bits}bit", task] < table[f"ours_{bits}bit_no_selector", task]]
        gain = table[f"ours_{bits}bit", "average"] - table[f"ours_{bits}bit_no_selector", "average"]
        how = f"of Table 3's average; it loses on {', '.join(lost) or 'no task'}"
        yield _check(
            f"selector's gain at {bits} bits",
            gain,
            "percentage points",
            how,
            published["selector_gain", f"{bits}-bit with vs without bitwidth selector"],
        )
        mean = float(np.mean([table[f"ours_{bits}bit", task] for task in tasks]))
        yield _check(f"average at {bits} bits", mean, "%", "mean of Table 3's eight tasks", table[f"ours_{bits}bit", "average"])

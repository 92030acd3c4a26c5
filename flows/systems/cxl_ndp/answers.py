"""What the GPU-NDP study's rows say about the paper's numbers: rows of table `answers`.

Table 3's accuracies need the real models and are not answered; mode `short prompts` is the other grid of lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from tokentape.flows.systems.cxl_ndp.points import GAINS, HEADLINE
from tokentape.flows.systems.cxl_ndp.settings import PAPER, Settings
from tokentape.replay.cxl_ndp.fit import ratio_of
from tokentape.replay.cxl_ndp.system import FP16_BYTES, HOBBIT, MONDE
from tokentape.warehouse import models
from tokentape.warehouse.load import claims
from tokentape.warehouse.model_sizes import total_params

Row = dict[str, Any]
MODE, END_TO_END, FIXED = "paper", "paper, end to end", "paper, MAC rate fixed"


def answers(study: Settings, made: Mapping[str, Sequence[Row]]) -> list[Row]:
    """made: rows of the study's tables by name."""
    points, requests = (pl.DataFrame(made[name], infer_schema_length=None) for name in ("cxl_ndp_points", "cxl_ndp_requests"))
    similar = pl.DataFrame(made["cxl_ndp_similarity"], infer_schema_length=None)
    return [
        row
        for claim in claims().to_pylist()
        if claim["paper"] == PAPER
        for row in (
            *_decode(study, claim, points),
            *_requests(study, claim, requests),
            *_ndp_gain(study, claim, points),
            *_others(study, claim, points, similar),
        )
    ]


def _answer(claim: Row, value: float, how: str, mode: str = MODE, ends: tuple[float, float] | None = None) -> Row:
    low, high = ends or (None, None)
    return {"claim_id": claim["claim_id"], "mode": mode, "value": value, "low": low, "high": high, "how": how}


def of_point(points: pl.DataFrame, **wanted: str) -> Row:
    """The one row of `cxl_ndp_points` with these values."""
    (row,) = points.filter([pl.col(name) == value for name, value in wanted.items()]).to_dicts()
    return row


def _decode(study: Settings, claim: Row, points: pl.DataFrame) -> Iterator[Row]:
    stated = ratio_of(claim)
    if stated is None:
        return
    model = study.models[0].name
    row = of_point(points, series=HEADLINE, model_id=model, system=f"OURS-{stated.bits}", metric=GAINS[stated.over])
    yield _answer(
        claim, row["value"], f"tokens per second in decode, median of {row['n_seeds']} seeds", MODE, (row["low"], row["high"])
    )


def _requests(study: Settings, claim: Row, requests: pl.DataFrame) -> Iterator[Row]:
    """Ends of the range over a grid; over HOBBIT, whose claim does not say whether it means decode, the largest too."""
    stated = ratio_of(claim)
    is_hobbit = stated is not None and stated.over == HOBBIT
    if claim["metric"] != "e2e_speedup" and not is_hobbit:
        return
    bits = claim["setting"].removeprefix("ours ")[0]
    over = "gain_over_hobbit" if is_hobbit else "e2e_gain"
    mine = requests.filter((pl.col("model_id") == study.models[0].name) & (pl.col("system") == f"OURS-{bits}"))
    for grid, name in zip(study.requests.grids, (END_TO_END if is_hobbit else MODE, "short prompts"), strict=True):
        of = mine.filter(pl.col("setting") == grid).sort(over)
        row = of.row(0 if claim["statistic"] == "min" else -1, named=True)
        ends = None if is_hobbit else (row["low"], row["high"])
        how = f"{row['n_context_tokens']} + {row['n_decode_tokens']} tokens, the {claim['statistic']} of {of.height} lengths"
        yield _answer(claim, row[over], how, f"{END_TO_END}, {name}" if is_hobbit and name != END_TO_END else name, ends)


def _ndp_gain(study: Settings, claim: Row, points: pl.DataFrame) -> Iterator[Row]:
    """The least of both models; with the MAC rate fixed, where that was replayed."""
    if claim["metric"] != "ndp_side_latency_gain":
        return
    system = f"OURS-{claim['setting'][0]}"
    of = points.filter((pl.col("system") == system) & (pl.col("metric") == "ndp_gain"))
    both = [model.name for model in study.models if model.name.startswith("mixtral")]
    rows = of.filter((pl.col("series") == HEADLINE) & pl.col("model_id").is_in(both))
    yield _answer(claim, rows["value"].min(), f"the least of {', '.join(both)}", MODE, (rows["low"].min(), rows["high"].max()))  # type: ignore
    fixed = of.filter((pl.col("series") == "mac rate") & pl.col("setting").str.starts_with("fixed")).sort("setting_value")
    row = fixed.row(-1, named=True)
    yield _answer(claim, row["value"], f"{row['model_id']}, batch {row['batch']}", FIXED, (row["low"], row["high"]))


def _others(study: Settings, claim: Row, points: pl.DataFrame, similar: pl.DataFrame) -> Iterator[Row]:
    model = study.models[0].name
    if claim["metric"] == "prefill_decode_cosine":
        (row,) = similar.filter((pl.col("model_id") == model) & pl.col("layer").is_null()).to_dicts()
        yield _answer(
            claim, row["own_cosine"], "drawn routing, whose drift was set to this; mean over layers, sequences and seeds"
        )
    elif claim["metric"] == "migration_share_of_block_time":
        moved, step = (
            of_point(points, series=HEADLINE, model_id=model, system=f"{MONDE} always", metric=metric)["value"]
            for metric in ("transfer_s", "step_s")
        )
        yield _answer(
            claim, 100.0 * moved / step, "FP16 experts fetched in every step (MoNDE always): the link's share of the step"
        )
    elif claim["metric"] == "fp16_footprint":
        geometry = models.load(claim["model"]).geometry
        yield _answer(claim, FP16_BYTES * total_params(geometry) / 1e9, "counted from the model's geometry")

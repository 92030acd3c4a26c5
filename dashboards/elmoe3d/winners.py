"""The ELMoE-3D page's answer: which scheme is fastest where, and from which batch speculation pays."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tokentape.dashboards.elmoe3d import rows
from tokentape.dashboards.elmoe3d.words import ELASTIC, HONESTY, MODES, facts
from tokentape.dashboards.engine import Ask, Drawn, rows_like, sentences, some
from tokentape.dashboards.units import highest, joined, mean_of, percent

PANELS = {"ar": "AR: one token a step", "sd": "SD: draft and verify", "best": "the better of the two"}
SETTING = ["law", "level", "machine", "model", "batch"]
NEVER = 2.0  # times the largest batch: where a scheme stands that never pays
LEAST_GAIN = 1e-9


def winners(ask: Ask) -> Drawn:
    table = some(ask.made(rows.table))
    found = _winners(table)
    said = sentences(table, ["law", "level"], lambda of: answer(of, rows_like(found, of, "law", "level")))
    return Drawn({"winners": found}, said, {"panels": list(PANELS.values()), **facts(table)})


def thresholds(ask: Ask) -> Drawn:
    swept = some(ask.made(rows.swept))
    found = _thresholds(ask.made(rows.table), swept)
    batches = swept["batch"].unique().sort().to_list()
    end = NEVER * batches[-1]
    ticks = [batches[0], *(b for b in batches[1:] if b & (b - 1) == 0), end]
    own = {"most": int(highest(found["most"])), "end": end, "domain": [batches[0], end], "ticks": ticks}
    return Drawn(
        {"thresholds": found},
        sentences(found, ["law"], threshold_answer),
        {**facts(found), **own, "levels": facts(swept)["levels"]},
    )


def pays_from(batches: Sequence[int], gains: Sequence[float]) -> int | None:
    """The least batch from which SD is the faster mode at every recorded one; None: it is not at the largest."""
    ordered = sorted(zip(batches, gains, strict=True), reverse=True)
    found = None
    for batch, gain in ordered:
        if gain <= 1 + LEAST_GAIN:
            break
        found = batch
    return found


def answer(table: pl.DataFrame, found: pl.DataFrame) -> str:
    """Winners, where Elastic-SD's speculation pays, errors and the sentence beside them. Rows of one law and level."""
    best = found.filter(pl.col("panel") == PANELS["best"])
    counts = best.group_by("scheme").len().sort("len", "scheme", descending=[True, False]).rows()
    first = f"{counts[0][0]} is fastest in {counts[0][1]} of {best.height} settings"
    first += f" ({joined([f'{name} in {n}' for name, n in counts[1:]])})" if counts[1:] else ""
    return f"{first}. {_pays(table)} {_right(table, found)} {HONESTY}"


def _pays(table: pl.DataFrame) -> str:
    """From which batch on, model by model and machine by machine."""
    starts: dict[int | None, dict[str, list[str]]] = {}
    ours = table.filter(pl.col("scheme") == ELASTIC)
    for (model, machine), of in ours.sort("gib", "batch").group_by(["model", "machine"], maintain_order=True):
        at = pays_from(of["batch"].to_list(), (of["phi_sd"] / of["phi_ar"]).to_list())
        starts.setdefault(at, {}).setdefault(str(model), []).append(str(machine))
    most = int(highest(ours["batch"]))
    where = {at: joined([f"{model} ({joined(machines)})" for model, machines in of.items()]) for at, of in starts.items()}
    said = [f"from batch {at} on {where[at]}" for at in sorted(at for at in where if at is not None)]
    never = f"; at no batch up to {most} on {where[None]}" if None in where else ""
    return f"{ELASTIC} gains from speculation {'; '.join(said) or 'nowhere'}{never}."


def _right(table: pl.DataFrame, found: pl.DataFrame) -> str:
    """Mean absolute errors and named winners, over open cells."""
    said = []
    for mode in MODES:
        stated = table.drop_nulls(f"published_{mode}")
        predicted = stated.filter(pl.col(f"role_{mode}") == "predict")
        if predicted.is_empty():
            return "The paper's numbers are not in the warehouse."
        each = found.filter(pl.col("panel") == PANELS[mode]).drop_nulls("published")
        said.append(
            f"{MODES[mode]} speed-ups are off by {_error(stated, mode)} over {stated.height} open cells, "
            f"{_error(predicted, mode)} over the {predicted.height} that were predicted, with the right winner in "
            f"{each['agrees'].sum()} of {each.height} settings"
        )
    return f"On average {'; '.join(said)}."


def _error(rows: pl.DataFrame, mode: str) -> str:
    return percent(mean_of((rows[f"phi_{mode}"] / rows[f"published_{mode}"] - 1).abs()))


def threshold_answer(found: pl.DataFrame) -> str:
    """Elastic-SD's threshold, model by model; and how many settings of each scheme never turn."""
    ours = found.filter(pl.col("scheme") == ELASTIC).sort("gib", "model", descending=[False, True])
    said = []
    for (machine,), of in ours.group_by(["machine"], maintain_order=True):
        each = [f"{words} ({model})" for words, model in of.select("said", "model").iter_rows()]
        said.append(f"with {machine} {joined(each)}")
    never = found.filter(pl.col("ours").is_null()).group_by("scheme").len().sort("scheme").rows()
    lost = f" Of {ours.height} settings each, SD never pays in {joined([f'{n} ({name})' for name, n in never])}." if never else ""
    return f"{ELASTIC} pays {'; '.join(said)}.{lost}"


def _winners(table: pl.DataFrame) -> pl.DataFrame:
    """A row per setting and panel: our fastest scheme, the paper's, and whether ours has the paper's best number."""
    made = []
    for panel, words in PANELS.items():
        names = ["ar", "sd"] if panel == "best" else [panel]
        each = table.with_columns(
            value=pl.max_horizontal(f"phi_{n}" for n in names),
            published=pl.when(~pl.col("is_withheld")).then(pl.max_horizontal(f"published_{n}" for n in names)),
            shown_mode=pl.col("best_mode").replace(MODES) if panel == "best" else pl.lit(""),
        ).sort(*SETTING, rows.turn())
        best = each.group_by(SETTING, maintain_order=True).agg(
            pl.col("scheme", "value", "shown_mode", "published", "is_withheld").get(pl.col("value").round(3).arg_max()),
            theirs=pl.col("scheme").get(pl.col("published").fill_null(0).arg_max()),
            most=pl.col("published").max(),
        )
        made.append(best.with_columns(panel=pl.lit(words)))
    found = pl.concat(made)
    return found.with_columns(
        agrees=pl.col("published") >= pl.col("most"),
        said=pl.concat_str([pl.col("shown_mode"), pl.format("{}×", pl.col("value").round(1))], separator=" ").str.strip_chars(),
    )


def _thresholds(table: pl.DataFrame, swept: pl.DataFrame) -> pl.DataFrame:
    """From which batch SD pays, by law, machine, model and scheme: ours over the sweep, the paper's over its open batches."""
    made = []
    keys = ["law", "machine", "gib", "model", "scheme"]
    largest = int(highest(swept["batch"]))
    stated = table.filter(pl.col("level") == swept["level"][0]).drop_nulls("published_sd") if not table.is_empty() else table
    for key, of in swept.group_by(keys, maintain_order=True):
        own = dict(zip(keys, key, strict=True))
        same = stated.filter(pl.col(name) == own[name] for name in ("law", "machine", "model", "scheme"))
        ours = pays_from(of["batch"].to_list(), (of["phi_sd"] / of["phi_ar"]).to_list())
        theirs, said_paper = None, "withheld"
        if same.height > 1:
            theirs = pays_from(same["batch"].to_list(), (same["published_sd"] / same["published_ar"]).to_list())
            said_paper = f"from {theirs}" if theirs is not None else f"not up to {highest(same['batch']):.0f}"
        most = int(highest(of["batch"]))
        shown = float(ours) if ours is not None else NEVER * largest
        words = f"from {ours}" if ours is not None else f"not up to {most}"
        told = {"ours": ours, "shown": shown, "theirs": theirs, "most": most, "said": words, "said_paper": said_paper}
        made.append({**own, **told, "fidelity": of["fidelity"][0]})
    return pl.DataFrame(made, schema_overrides={"theirs": pl.Int64, "ours": pl.Int64})

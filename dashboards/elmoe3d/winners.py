"""The ELMoE-3D page's answer: which scheme is fastest where, and from which batch speculation pays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.elmoe3d.words import (
    ELASTIC,
    HEADER,
    HONESTY,
    LEGEND,
    MODES,
    SCHEMES,
    STUDY,
    models,
    scheme_colour,
    source,
)
from tokentape.dashboards.panels import hollow, params, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

NO_TABLE = f"Nothing to draw: the paper's Table 3 was not computed. {STUDY}"
NO_BATCHES = f"Nothing to draw: no sweep over batches was computed. {STUDY}"
PANELS = {"ar": "AR: one token a step", "sd": "SD: draft and verify", "best": "the better of the two"}
SETTING = ["law", "level", "machine", "model", "batch"]
NEVER = 2.0  # times the largest batch: where a scheme stands that never pays
LEAST_GAIN = 1e-9


def part(table: pl.DataFrame, swept: pl.DataFrame, start: dict[str, str]) -> Part:
    """table: rows of Table 3 (elmoe3d_table.rows); swept: those of the sweep over batches."""
    return Part((_winners_figure(table, start), _threshold_figure(table, swept, start)), data=_data(table, swept))


def _data(table: pl.DataFrame, swept: pl.DataFrame) -> dict[str, pl.DataFrame]:
    found = {"winners": winners(table), "thresholds": thresholds(table, swept)}
    return {name: frame for name, frame in found.items() if not frame.is_empty()}


def _winners_figure(table: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "Which scheme is fastest, and from which batch does speculation pay?"
    if table.is_empty():
        return Figure("winners", question, None, {}, (), "", NO_TABLE)
    found = winners(table)
    said = {
        f"{law}|{level}": answer(of, found.filter(pl.col("law") == law, pl.col("level") == level))
        for (law, level), of in table.group_by(["law", "level"], maintain_order=True)
    }
    return Figure(
        "winners",
        question,
        _winners_chart(table, models(table), start),
        said,
        ("law", "level"),
        "Speed-up of the fastest of four schemes over decoding on the xPU, which has the large memory only; all four run on "
        "the same hardware, MT-Bench acceptance as the paper prints it. A hollow ring in another colour: the paper names "
        "another scheme. Dashed frame: the paper's numbers are withheld, the cell is a prediction. Ties go to Elastic-SD.",
        NO_TABLE,
    )


def winners(table: pl.DataFrame) -> pl.DataFrame:
    """A row per setting and panel: our fastest scheme, the paper's, and whether ours has the paper's best number."""
    if table.is_empty():
        return pl.DataFrame()
    turn = pl.col("scheme").replace_strict({name: n for n, name in enumerate(SCHEMES)}, default=len(SCHEMES))
    made = []
    for panel, words in PANELS.items():
        names = ["ar", "sd"] if panel == "best" else [panel]
        each = table.with_columns(
            value=pl.max_horizontal(f"phi_{n}" for n in names),
            published=pl.when(~pl.col("is_withheld")).then(pl.max_horizontal(f"published_{n}" for n in names)),
            shown_mode=pl.col("best_mode").replace(MODES) if panel == "best" else pl.lit(""),
        ).sort(*SETTING, turn)
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
    most = int(ours["batch"].max())
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
    return percent(float((rows[f"phi_{mode}"] / rows[f"published_{mode}"] - 1).abs().mean()))


def _winners_chart(table: pl.DataFrame, names: Sequence[str], start: dict[str, str]) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("winners")).transform_filter("datum.law === law && datum.level === level")
    x = alt.X("batch:O", title="batch (requests)", axis=alt.Axis(labelAngle=0, domain=False, ticks=False))
    y = alt.Y("model:N", title=None, sort=list(names), axis=alt.Axis(domain=False, ticks=False, labelLimit=160))
    tips = [
        alt.Tooltip("model:N"),
        alt.Tooltip("machine:N", title="HB"),
        alt.Tooltip("batch:Q"),
        alt.Tooltip("scheme:N", title="fastest here"),
        alt.Tooltip("value:Q", title="speed-up", format=".2f"),
        alt.Tooltip("theirs:N", title="in the paper"),
        alt.Tooltip("most:Q", title="the paper's best", format=".2f"),
    ]
    cell = base.mark_rect(stroke="white", strokeWidth=2, opacity=0.5).encode(x, y, scheme_colour(), tooltip=tips)
    words = base.mark_text(fontSize=12.5, color=theme.INK, dx=-8).encode(x, y, text="said:N")
    frame = base.transform_filter("datum.is_withheld").mark_rect(
        fillOpacity=0, stroke=theme.INK, strokeDash=[3, 3], strokeWidth=1.2
    )
    ring = base.transform_filter("isValid(datum.published) && !datum.agrees")
    other = ring.mark_point(filled=False, size=75, strokeWidth=2.5, xOffset=30).encode(
        x,
        y,
        scheme_colour(LEGEND, "theirs"),
    )
    drawn = (
        alt.layer(cell, frame.encode(x, y), words, other)
        .properties(width=320, height=112)
        .facet(
            row=alt.Row("machine:N", title=None, header=HEADER, sort=_machines(table)),
            column=alt.Column("panel:N", title=None, header=HEADER, sort=list(PANELS.values())),
            spacing=14,
        )
        .resolve_scale(color="shared")
    )
    title = source(table, "ring: the paper's winner; dashed: withheld, predicted", level="level")
    return stacked([drawn], title, params(start, "law", "level"))


def _machines(frame: pl.DataFrame) -> list[str]:
    return frame.select("machine", "gib").unique().sort("gib")["machine"].to_list()


def thresholds(table: pl.DataFrame, swept: pl.DataFrame) -> pl.DataFrame:
    """From which batch SD pays, by law, machine, model and scheme: ours over the sweep, the paper's over its open batches."""
    if swept.is_empty():
        return pl.DataFrame()
    rows = []
    keys = ["law", "machine", "gib", "model", "scheme"]
    level, largest = swept["level"][0], int(swept["batch"].max())
    for key, of in swept.group_by(keys, maintain_order=True):
        law, machine, _, model, scheme = key
        same = (pl.col("law") == law, pl.col("machine") == machine, pl.col("model") == model, pl.col("scheme") == scheme)
        stated = table.filter(*same, pl.col("level") == level).drop_nulls("published_sd") if not table.is_empty() else table
        is_whole = stated.height > 1
        most = int(of["batch"].max())
        ours = pays_from(of["batch"].to_list(), (of["phi_sd"] / of["phi_ar"]).to_list())
        theirs = (
            pays_from(stated["batch"].to_list(), (stated["published_sd"] / stated["published_ar"]).to_list())
            if is_whole
            else None
        )
        rows.append(
            {
                **dict(zip(keys, key, strict=True)),
                "ours": ours,
                "shown": float(ours) if ours is not None else NEVER * largest,
                "theirs": theirs,
                "most": most,
                "said": f"from {ours}" if ours is not None else f"not up to {most}",
                "said_paper": "withheld"
                if not is_whole
                else f"from {theirs}"
                if theirs is not None
                else f"not up to {stated['batch'].max()}",
                "fidelity": of["fidelity"][0],
            }
        )
    return pl.DataFrame(rows, schema_overrides={"theirs": pl.Int64, "ours": pl.Int64})


def _threshold_figure(table: pl.DataFrame, swept: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "Up to a batch of 64: from which batch is speculation the faster mode?"
    found = thresholds(table, swept)
    if found.is_empty():
        return Figure(
            "thresholds", "Up to large batches: from which batch is speculation the faster mode?", None, {}, (), "", NO_BATCHES
        )
    most = int(found["most"].max())
    question = f"Up to a batch of {most}: from which batch is speculation the faster mode?"
    return Figure(
        "thresholds",
        question,
        _threshold_chart(found, swept, start),
        {str(law): threshold_answer(of) for (law,), of in found.group_by(["law"], maintain_order=True)},
        ("law",),
        "The threshold tau of the policy: the least batch from which SD stays faster than AR. Hollow: where the paper's own "
        "numbers turn, which it prints for four batches only. Past the paper's batches the acceptance is that of its nearest "
        "smaller one: an input, and a generous one for Elastic-SD, whose acceptance falls with the batch.",
        NO_BATCHES,
    )


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


def _threshold_chart(found: pl.DataFrame, swept: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("thresholds")).transform_filter("datum.law === law")
    batches = swept["batch"].unique().sort().to_list()
    powers = [batches[0], *(b for a, b in pairwise(batches) if b & (b - 1) == 0)]
    end = NEVER * batches[-1]
    axis = alt.Axis(
        values=[*powers, end], labelExpr=f"datum.value >= {end} ? 'never' : format(datum.value, ',')", gridDash=[2, 2]
    )
    scale = alt.Scale(type="log", base=2, domain=[batches[0], end], nice=False, padding=14)
    x = alt.X("shown:Q", title="SD is faster from this batch on (requests, log scale)", scale=scale, axis=axis)
    y = alt.Y("model:N", title=None, sort=models(found), axis=alt.Axis(domain=False, ticks=False, labelLimit=160))
    beside = alt.YOffset("scheme:N", sort=list(SCHEMES), scale=alt.Scale(paddingOuter=0.35))
    tips = [
        alt.Tooltip("model:N"),
        alt.Tooltip("scheme:N"),
        alt.Tooltip("said:N", title="here"),
        alt.Tooltip("said_paper:N", title="in the paper"),
    ]
    marks = base.mark_point(size=85).encode(x, y, beside, scheme_colour(LEGEND), tooltip=tips)
    paper = hollow(base, 170, x=("theirs", "datum.shown")).encode(alt.X("x:Q"), y, beside, scheme_colour(LEGEND), tooltip=tips)
    machines = found.select("machine", "gib").unique().sort("gib")["machine"].to_list()
    drawn = (
        alt.layer(marks, paper)
        .properties(width=430, height=alt.Step(15, **{"for": "offset"}))
        .facet(alt.Facet("machine:N", title=None, sort=machines, header=HEADER), columns=2, spacing=24)
    )
    levels = joined(swept["level"].unique().to_list())
    return stacked([drawn], source(found, "hollow: the paper's", level=levels), params(start, "law"))

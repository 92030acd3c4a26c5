"""The ELMoE-3D page on what a batch does to a pass (Figure 4): operations per byte, experts touched, gains of a head."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import significant
from tokentape.dashboards.elmoe3d.words import EAGLE, LEGEND, MODES, STUDY, models, source
from tokentape.dashboards.panels import hollow, params, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

QUESTION = "Why does a batch change the game: what is computed per byte, and how many experts are touched?"
MISSING = f"Nothing to draw: no arithmetic intensity was computed. {STUDY}"
PARTS = {"static": ("static weights and KV", theme.BLUE), "experts": ("experts", theme.VERMILLION)}
KNEES = {"knee hb": "HB", "knee ext": "EXT"}
MODE_COLOURS = {"AR": theme.BLUE, "SD verify": theme.VERMILLION}


def part(intensity: pl.DataFrame, table: pl.DataFrame, start: dict[str, str]) -> Part:
    """intensity: rows.intensity; table: rows of Table 3."""
    if intensity.is_empty() or table.is_empty():
        return Part((Figure("intensity", QUESTION, None, {}, (), "", MISSING),))
    passes, knees, touched = _passes(intensity), _knees(intensity), _touched(table)
    reading = (
        "Above: operations per byte of a decoding step and of a verification of a whole tree per request; a dashed line is "
        "where a tier's roofline bends, below it the pass waits for that memory. Middle: expected distinct experts of a "
        "layer, AR against a verification. Below: EAGLE3's SD over its own AR on the machine chosen. The paper's Figure 4 "
        "has DeepSeek-V2-Lite. Attention over the context is counted in bytes, not in operations."
    )
    said = {
        f"{law}|{level}|{machine}": answer(intensity.filter(pl.col("machine") == machine), of)
        for (law, level, machine), of in table.group_by(["law", "level", "machine"], maintain_order=True)
    }
    chart = _chart(passes, touched, models(intensity), start)
    figure = Figure("intensity", QUESTION, chart, said, ("law", "level", "machine"), reading, MISSING)
    return Part(
        (figure,),
        data={
            "passes": passes,
            "knees": knees,
            "touched": touched.drop("gain", "published"),
            "gained": touched.drop("ar", "verify"),
        },
    )


def _passes(intensity: pl.DataFrame) -> pl.DataFrame:
    found = intensity.filter(pl.col("part").is_in(list(PARTS)))
    return found.with_columns(
        words=pl.col("part").replace({name: said for name, (said, _) in PARTS.items()}), mode=pl.col("mode").replace(MODES)
    )


def _knees(intensity: pl.DataFrame) -> pl.DataFrame:
    found = intensity.filter(pl.col("part").is_in(list(KNEES)))
    return found.select("machine", "model", "ops_per_byte", words=pl.format("{} bends", pl.col("part").replace(KNEES)))


def _touched(table: pl.DataFrame) -> pl.DataFrame:
    """Experts of a layer in AR and in verification, and SD over AR, of EAGLE3."""
    of = table.filter(pl.col("scheme") == EAGLE)
    keys = ["law", "level", "machine", "gib", "model", "batch", "fidelity", "is_withheld"]
    return of.select(
        *keys,
        ar="ar_experts",
        verify="verify_experts",
        gain=pl.col("phi_sd") / pl.col("phi_ar"),
        published=pl.col("published_sd") / pl.col("published_ar"),
    )


def answer(intensity: pl.DataFrame, table: pl.DataFrame) -> str:
    """How far below the roofline's bend experts stay, how many more a verification touches, and where the head's drafts gain."""
    experts = intensity.filter((pl.col("part") == "experts") & (pl.col("mode") == "ar"))
    knee = intensity.filter(pl.col("part") == "knee hb")
    touched = _touched(table)
    most = int(touched["batch"].max())
    last = touched.filter(pl.col("batch") == most)
    more = (last["verify"] / last["ar"]).to_list()
    gaining = touched.filter(pl.col("gain") > 1)
    said = []
    if not experts.is_empty() and not knee.is_empty():
        said.append(
            f"At most {significant(float(experts['ops_per_byte'].max()))} operations per byte of an expert in AR, where even "
            f"HB's roofline bends at {significant(float(knee['ops_per_byte'].min()))}: decoding waits for memory at every "
            f"batch up to {most}"
        )
    said.append(f"At batch {most} a verification touches {min(more):.1f} to {max(more):.1f} × the experts of an AR step")
    cells = [
        f"{model} ({joined([str(b) for b in of['batch'].to_list()])})"
        for (model,), of in gaining.group_by(["model"], maintain_order=True)
    ]
    said.append(f"{EAGLE} gains over AR, at batches, on {joined(cells)}" if cells else f"{EAGLE} gains over AR nowhere")
    return f"{'. '.join(said)}."


def _chart(passes: pl.DataFrame, touched: pl.DataFrame, names: Sequence[str], start: dict[str, str]) -> alt.VConcatChart:
    batches = sorted(set(passes["batch"].to_list()))
    x = alt.X(
        "batch:Q",
        title="batch (requests, log scale)",
        scale=alt.Scale(type="log", base=2, nice=False, padding=12),
        axis=alt.Axis(values=batches, format="d", grid=False),
    )
    header = alt.Header(labelFontSize=13, labelFontWeight=600, labelLimit=220)
    column = alt.Column("model:N", title=None, sort=list(names), header=header)
    mode = alt.StrokeDash("mode:N", scale=alt.Scale(domain=list(MODES.values()), range=[[6, 4], [1, 0]]), legend=LEGEND)
    colour = alt.Color(
        "words:N",
        scale=alt.Scale(
            domain=[*(said for said, _ in PARTS.values()), *(f"{tier} bends" for tier in KNEES.values())],
            range=[*(c for _, c in PARTS.values()), theme.GREEN, theme.QUIET],
        ),
        legend=LEGEND,
    )
    y = alt.Y(
        "ops_per_byte:Q",
        title="operations per byte (log)",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format="~s", values=[1, 10, 100, 1000, 10000]),
    )
    tips = [alt.Tooltip("words:N"), alt.Tooltip("mode:N"), alt.Tooltip("batch:Q"), alt.Tooltip("ops_per_byte:Q", format=".3~s")]
    panels = []
    for name in names:
        here = f"datum.machine === machine && datum.model === {theme.quote(name)}"
        lines = (
            alt.Chart(alt.NamedData("passes"))
            .transform_filter(here)
            .mark_line(point=True)
            .encode(x, y, colour, mode, tooltip=tips)
        )
        knees = (
            alt.Chart(alt.NamedData("knees")).transform_filter(here).mark_rule(strokeDash=[2, 3], strokeWidth=2).encode(y, colour)
        )
        panels.append(alt.layer(knees, lines).properties(width=200, height=170, title=name))
    return stacked(
        [
            alt.hconcat(*panels, spacing=16).resolve_scale(y="shared"),
            _touched_chart(x, column),
            _gain_chart(x, column),
        ],
        source(touched, "hollow: the paper's", level="level"),
        params(start, "law", "level", "machine"),
    ).resolve_scale(color="independent", strokeDash="independent")


def _touched_chart(x: alt.X, column: alt.Column) -> alt.FacetChart:
    base = alt.Chart(alt.NamedData("touched")).transform_filter(
        "datum.law === law && datum.level === level && datum.machine === machine"
    )
    folded = base.transform_fold(["ar", "verify"], as_=["pass", "n"]).transform_calculate(
        of="datum.pass === 'ar' ? 'AR' : 'SD verify'"
    )
    colour = alt.Color("of:N", scale=alt.Scale(domain=list(MODE_COLOURS), range=list(MODE_COLOURS.values())), legend=LEGEND)
    y = alt.Y("n:Q", title="experts of a layer (count)")
    tips = [alt.Tooltip("of:N", title="pass"), alt.Tooltip("batch:Q"), alt.Tooltip("n:Q", title="experts", format=".1f")]
    return (
        folded.mark_line(point=True)
        .encode(x, y, colour, tooltip=tips)
        .properties(width=220, height=130)
        .facet(column=column, spacing=16)
    )


def _gain_chart(x: alt.X, column: alt.Column) -> alt.FacetChart:
    base = alt.Chart(alt.NamedData("gained")).transform_filter(
        "datum.law === law && datum.level === level && datum.machine === machine"
    )
    y = alt.Y("gain:Q", title="EAGLE3: SD / AR (×)", scale=alt.Scale(zero=False))
    tips = [
        alt.Tooltip("batch:Q"),
        alt.Tooltip("gain:Q", title="SD / AR", format=".2f"),
        alt.Tooltip("published:Q", title="paper", format=".2f"),
    ]
    even = base.transform_calculate(one="1").mark_rule(color=theme.INK, strokeDash=[6, 4]).encode(alt.Y("one:Q"))
    line = base.mark_line(point=True, color=theme.BLUE).encode(x, y, tooltip=tips)
    paper = hollow(base, 90, y=("published", "datum.gain")).encode(x, alt.Y("y:Q"), color=alt.value(theme.INK), tooltip=tips)
    return alt.layer(even, line, paper).properties(width=220, height=120).facet(column=column, spacing=16)

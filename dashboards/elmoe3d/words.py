"""How the ELMoE-3D page names and draws schemes, platforms, modes and hit models; captions; the sentence beside accuracy."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.elmoe3d.rows import ELASTIC
from tokentape.dashboards.panels import caption
from tokentape.dashboards.shell import Control
from tokentape.dashboards.units import joined

STUDY = "Run: tokentape study elmoe3d, then tokentape load and tokentape site."
HONESTY = (
    "The forms of the model were chosen with the paper's table in view (KV width, embedding format, GiB, several hit laws and "
    "several forms of acceptance): parameter values are out of sample in predicted rows, forms are not."
)
DIGITS = 4  # of a number, as the page carries it
HEADLINE_FIT, TABLE = "calibrate", "table-3"
EAGLE = "EAGLE3"
SCHEMES = {
    ELASTIC: (theme.VERMILLION, "circle"),
    EAGLE: (theme.BLUE, "square"),
    "Quant-SD": (theme.ORANGE, "diamond"),
    "SLM-SD": (theme.GREEN, "triangle-up"),
}
OURS = "elmoe3d"
PLATFORMS = {
    OURS: ("ELMoE-3D", theme.VERMILLION),
    "hb-xpu": ("HB-xPU", theme.BLUE),
    "xpu-nmp": ("xPU-NMP", theme.GREEN),
    "xpu-pim": ("xPU-PIM", theme.ORANGE),
    "xpu-logicpim": ("xPU-LogicPIM", theme.PURPLE),
    "xpu": ("xPU", theme.QUIET),
}
MODES = {"ar": "AR", "sd": "SD"}
LAWS = {
    "paper_law": "paper law",
    "physical": "physical bound",
    "che": "Che approximation",
    "lru": "LRU, replayed",
}
LAW_COLOURS = {"paper_law": theme.VERMILLION, "physical": theme.BLUE, "che": theme.PURPLE, "lru": theme.INK}
LAW, LEVEL = (
    Control("law", "Hit model", LAWS),
    Control("level", "Level of the fit", {"L0": "L0: one exponent", "L1": "L1: two exponents"}),
)
LEGEND = alt.Legend(title=None, orient="top", columns=6, symbolOpacity=1)
PLAIN_LEGEND = alt.Legend(title=None, orient="top", columns=6, symbolType="circle", symbolOpacity=1, symbolStrokeWidth=0)
HEADER = alt.Header(labelFontSize=13, labelLimit=400, labelFontWeight=600)


def models(frame: pl.DataFrame) -> list[str]:
    """The models of the rows, the paper's first one before the others."""
    return frame["model"].unique().sort(descending=True).to_list()


def by_mode(points: pl.DataFrame, *kept: str | pl.Expr) -> pl.DataFrame:
    """A row per point and mode: what is kept, mode, speedup and the paper's number; no SD where nothing can draft."""
    each = [
        points.filter(pl.col("can_draft") | (name == "ar")).select(
            *kept, mode=pl.lit(words), speedup=f"phi_{name}", published=f"published_{name}"
        )
        for name, words in MODES.items()
    ]
    return pl.concat(each)


def scheme_colour(legend: alt.Legend | None = LEGEND, field: str = "scheme") -> alt.Color:
    """Colour of a scheme, named in `field`."""
    scale = alt.Scale(domain=list(SCHEMES), range=[colour for colour, _ in SCHEMES.values()])
    return alt.Color(f"{field}:N", scale=scale, legend=legend)


def mode_dash(legend: alt.Legend | None = LEGEND) -> alt.StrokeDash:
    """Dashed: AR; solid: SD. As the paper's Figure 14."""
    return alt.StrokeDash("mode:N", scale=alt.Scale(domain=list(MODES.values()), range=[[6, 4], [1, 0]]), legend=legend)


def law_words(column: str = "law") -> pl.Expr:
    """A hit model as it is said."""
    return pl.col(column).replace(LAWS)


def source(study: pl.DataFrame, *more: str, law: str | None = "law", level: str | None = None) -> alt.TitleParams:
    """The line above a chart: where its rows are from, their fidelity, hit model and level, and what else it marks.

    study: the rows drawn, with column fidelity if they have one. law, level: a parameter of the chart, or the words themselves;
    None: the chart has none.
    """
    said = ["source: study elmoe3d"]
    if "fidelity" in study.columns:
        said.append(f"fidelity: {joined(study['fidelity'].unique().sort().to_list())}")
    text = [theme.quote("; ".join(said))]
    if law is not None:
        text.append(f"'; hit model: ' + (({theme.literal(LAWS)})[law])" if law == "law" else theme.quote(f"; hit model: {law}"))
    if level is not None:
        text.append("'; level ' + level" if level == "level" else theme.quote(f"; level {level}"))
    text += [theme.quote(f"; {words}") for words in more]
    return caption(" + ".join(text))

"""The Kelle page on recomputation under a roofline (Figure 16a), and on whole requests (Figure 16b)."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.kelle.words import BASELINE, HEADER, KELLE, LEGEND, PAPER, SQUARES, STUDY, SYSTEMS, ZERO, source, times
from tokentape.dashboards.panels import colour, known, params, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined, quantity

NO_ROOF = f"Nothing to draw: no recomputed share was computed. {STUDY}"
NO_REQUESTS = f"Nothing to draw: whole requests are computed as the paper counts only; choose that reading. {STUDY}"
MODES = {
    "paper": ("the paper's latencies", theme.VERMILLION, "triangle-up"),
    "physical": ("the array's own", theme.BLUE, "circle"),
}
PHASES = {"prompt": theme.ORANGE, "decode": theme.BLUE}


def part(recompute: pl.DataFrame, requests: pl.DataFrame, start: dict[str, str]) -> Part:
    """recompute, requests: rows' of these names."""
    told = recompute.with_columns(said=pl.col("mode").replace({name: look[0] for name, look in MODES.items()}))
    asked = requests.with_columns(
        lengths=pl.format("{} in, {} out", _thousands("context"), _thousands("decode")),
        saved=pl.col("prefill_j") + pl.col("decode_j"),
    )
    figures = (_roof_figure(told), _requests_figure(asked, start))
    data = {"recompute": told, "roof": roof(told), "requests": asked}
    return Part(figures, data={name: of for name, of in data.items() if not of.is_empty()})


def roof(recompute: pl.DataFrame) -> pl.DataFrame:
    """The roof's corners: of the least intensity, where memory and array are as fast, and of the largest."""
    if recompute.is_empty():
        return recompute
    ends = recompute.sort("ops_per_byte").select("ops_per_byte", "roof")
    first, last = ends.row(0, named=True), ends.row(-1, named=True)
    knee = last["roof"] / (first["roof"] / first["ops_per_byte"])
    return pl.DataFrame([first, {"ops_per_byte": max(knee, first["ops_per_byte"]), "roof": last["roof"]}, last])


def _thousands(column: str) -> pl.Expr:
    many = pl.format("{}K", pl.col(column) // 1024)
    return pl.when(pl.col(column) % 1024 == 0).then(many).otherwise(pl.col(column).cast(pl.String))


def _roof_figure(recompute: pl.DataFrame) -> Figure:
    question = "How much recomputation pays, and can the array do it?"
    if recompute.is_empty():
        return Figure("roof", question, None, {}, (), "", NO_ROOF)
    row = recompute.row(0, named=True)
    reading = (
        f"The paper's Figure 16a: {row['model']}, {row['workload']}, batch {row['batch']}. Left: every mark is a share of KV "
        "vectors that are recomputed; the line is what array and DRAM allow. Taken as the paper takes it, a vector recomputed in "
        "3.2 us against 1.1 us from DRAM, marks lie above the roof: the array would have to compute faster than its peak. Right: "
        "what it brings, in tokens."
    )
    return Figure("roof", question, _roof_chart(recompute), {"": roof_answer(recompute)}, (), reading, NO_ROOF)


def roof_answer(recompute: pl.DataFrame) -> str:
    """Where throughput is highest in each mode, how far above the roof marks lie, and what too much costs."""
    said = []
    for mode, (words, *_) in MODES.items():
        of = recompute.filter(pl.col("mode") == mode).sort("frac")
        if of.is_empty():
            continue
        none, best, last = of.row(0, named=True), of.sort("tokens_per_s").row(-1, named=True), of.row(-1, named=True)
        gain = best["tokens_per_s"] / none["tokens_per_s"]
        above = float((of["ops_per_s"] / of["roof"]).max())  # type: ignore[arg-type]
        roofed = f", which would take up to {above:.0f} × the array's peak" if above > 1.01 else ""
        said.append(
            f"by {words} recomputing {percent(best['frac'])} is best, {times(gain)} the tokens per second{roofed}; recomputing "
            f"all leaves {times(last['tokens_per_s'] / none['tokens_per_s'])}"
        )
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}."


def _roof_chart(recompute: pl.DataFrame) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("recompute"))
    labels, colours, shapes = zip(*MODES.values(), strict=True)
    hue = alt.Color("said:N", scale=alt.Scale(domain=list(labels), range=list(colours)), legend=LEGEND)
    shape = alt.Shape("said:N", scale=alt.Scale(domain=list(labels), range=list(shapes)), legend=LEGEND)
    x = alt.X(
        "ops_per_byte:Q",
        title="operational intensity (operations per byte, log scale)",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(values=[1, 10, 100, 1000, 10000], format=",d"),
    )
    y = alt.Y(
        "ops_per_s:Q", title="throughput (operations per second, log scale)", scale=alt.Scale(type="log"),
        axis=alt.Axis(format="~s", values=[10.0**n for n in range(11, 15)]),
    )  # fmt: skip
    tips = [
        alt.Tooltip("said:N", title="latencies"),
        alt.Tooltip("frac:Q", title="recomputed", format=".1%"),
        alt.Tooltip("ops_per_byte:Q", format=",.0f"),
        alt.Tooltip("ops_per_s:Q", format=".3s"),
        alt.Tooltip("roof:Q", title="the roof", format=".3s"),
        alt.Tooltip("tokens_per_s:Q", title="tokens per second", format=".1f"),
    ]
    roof = alt.Chart(alt.NamedData("roof")).mark_line(color=theme.INK, strokeWidth=2.4).encode(x, alt.Y("roof:Q"))
    marks = base.mark_point(size=45).encode(x, y, hue, shape, tooltip=tips)
    named = base.transform_filter("datum.label !== ''")
    words = named.mark_text(align="right", dx=-8, dy=-9, fontSize=12, color=theme.INK).encode(x, y, text="label:N")
    left = alt.layer(roof, marks, words).properties(width=560, height=300)
    share = alt.X("frac:Q", title="recomputed KV vectors (%)", axis=alt.Axis(format=".0%"))
    speed = alt.Y("tokens_per_s:Q", title="decoded (tokens per second)")
    right = base.mark_line(point={"size": 30, "filled": True}).encode(share, speed, hue, tooltip=tips)
    drawn = alt.hconcat(left, right.properties(width=380, height=300), spacing=50)
    return stacked([drawn], source("line: the roof of array and DRAM", reading=None))


def _requests_figure(requests: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "What does a whole request cost, prompt and output?"
    found = requests.filter(pl.col("reading").is_in([PAPER, ZERO]))
    if found.is_empty():
        return Figure("requests", question, None, {}, (), "", NO_REQUESTS)
    said = {str(name): requests_answer(of) for (name,), of in found.group_by(["reading"], maintain_order=True)}
    row = found.row(0, named=True)
    reading = (
        f"The paper's Figure 16b: {row['model']}, a batch of {row['batch']}, lengths of prompt and output above each panel. The "
        "paper gives averages of 2.1, 5.6 and 1.8 ×; how it counts a prompt is not said, so the prompt is ours and nothing is "
        "held against it. The whole cache of such batches is many times the DRAM."
    )
    return Figure("requests", question, _requests_chart(found, start), said, ("reading",), reading, NO_REQUESTS)


def requests_answer(found: pl.DataFrame) -> str:
    """Kelle's gain and the prompt's share of its energy at each length; rows of one reading."""
    ours = found.filter(pl.col("system") == KELLE).sort("context", "decode")
    if ours.is_empty():
        return f"{KELLE} was not computed."
    each = [f"{times(gain)} ({lengths}; the prompt is {percent(prompt / total, 0)} of it)" for gain, lengths, prompt, total in
            ours.select("gain", "lengths", "prefill_j", "saved").rows()]  # fmt: skip
    base = found.filter(pl.col("system") == BASELINE)["saved"]
    most = f", which takes up to {quantity(float(base.max()), 'J')}" if not base.is_empty() else ""  # type: ignore[arg-type]
    return f"{KELLE} is {joined(each)} as efficient as {BASELINE}{most}."


def _requests_chart(requests: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    base = (
        alt.Chart(alt.NamedData("requests"))
        .transform_filter("datum.reading === reading")
        .transform_fold(["prefill_j", "decode_j"], as_=["of", "j"])
        .transform_calculate(phase="datum.of === 'prefill_j' ? 'prompt' : 'decode'", kj="datum.j / 1000")
    )
    names = known(SYSTEMS, requests["system"])
    y = alt.Y("system:N", title=None, sort=names, axis=alt.Axis(ticks=False, domain=False))
    x = alt.X("kj:Q", title="energy of a batch (kJ)", axis=alt.Axis(tickCount=4, format=",.0f"))
    tips = [alt.Tooltip("system:N"), alt.Tooltip("phase:N"), alt.Tooltip("kj:Q", title="kJ", format=",.1f")]
    bars = base.mark_bar(height=14).encode(x, y, colour(PHASES, "phase", list(PHASES), SQUARES), tooltip=tips)
    lengths = requests.sort("context", "decode")["lengths"].unique(maintain_order=True).to_list()
    drawn = bars.properties(width=225, height=115).facet(
        column=alt.Column("lengths:N", title=None, sort=lengths, header=HEADER), spacing=18
    )
    return stacked([drawn.resolve_scale(x="independent")], source("axes differ"), params(start, "reading"))

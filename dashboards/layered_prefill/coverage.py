"""The Layered Prefill page on what is read: experts that tokens touch together, and bytes and time of a prompt in chunks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import altair as alt
import duckdb
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.claims import signed
from tokentape.dashboards.layered_prefill.rows import coverage
from tokentape.dashboards.layered_prefill.words import HEADER, STUDY, WIDE, of_series
from tokentape.dashboards.shell import Control, Figure, Part
from tokentape.dashboards.units import joined, quantity

NO_COVERAGE = f"Nothing to draw: no coverage of experts is recorded. {STUDY}"
NO_PROMPT = f"Nothing to draw: no single prompt was served in chunks of several sizes. {STUDY}"
# Forms that a curve may have; the first that is there is the one the others are compared with.
FORMS = {"recorded": "recorded", "recorded_curve": "recorded", "paper_table": "the paper's Table 1", "independent": "independent"}
PARTS = {"moe": "MoE", "attention": "attention", "dense": "dense", "communication": "communication", "other": "other"}
PART_COLOURS = (theme.VERMILLION, theme.ORANGE, theme.BLUE, theme.PURPLE, theme.QUIET)
PAPER, ALL_LAYERS = "layered_prefill", "all"  # as rows name a source and a band
BANDS = {ALL_LAYERS: 0, "first third": 1, "middle third": 2, "last third": 3}
PROMPT = "one prompt"  # the series
TOKENS_OF = {"decode": "decode: tokens of different requests", "prefill": "prefill: consecutive tokens of one prompt"}


def coverage_part(connection: duckdb.DuckDBPyConnection, size: int) -> Part:
    """Coverage of the paper and of the first tapes, `size` in all."""
    question = "How many experts do tokens touch together?"
    found = _named(coverage(connection), size)
    if found.is_empty():
        return Part((Figure("coverage", question, None, {}, (), "", NO_COVERAGE),))
    routed = found["routed"].unique(maintain_order=True).to_list()
    lines = found["line"].unique(maintain_order=True).to_list()
    return Part(
        (
            Figure(
                "coverage",
                question,
                _coverage_chart(routed[0], lines),
                {str(name): coverage_answer(of) for (name,), of in found.group_by(["routed"], maintain_order=True)},
                ("routed",),
                "Share of a layer's experts that n tokens touch. Independent: every token draws its experts afresh. Recorded: "
                "as the tape routed its tokens, mean over the layers of a band. The paper's Table 1 was measured on "
                "Qwen3-30B-A3B; for another model it is moved there through the number of effectively independent tokens. "
                "Bands: the least and the most of the layers.",
                NO_COVERAGE,
            ),
        ),
        controls=(Control("routed", "Coverage of"),),
        choices=tuple({"routed": name} for name in routed),
        data={"coverage": found},
    )


def _named(found: pl.DataFrame, size: int) -> pl.DataFrame:
    """Rows of the first `size` sources with the words of their curve and panel; the paper's first."""
    order = {name: n for n, name in enumerate(FORMS)}
    told = found.filter((pl.col("band") == ALL_LAYERS) | pl.col("form").str.starts_with("recorded")).with_columns(
        routed=pl.when(pl.col("source") == PAPER).then(pl.format("{} (the paper)", "model")).otherwise("source"),
        line=pl.format("{}{}", pl.col("form").replace(FORMS), _band()),
        panel=pl.col("tokens_of").replace(TOKENS_OF),
        place=pl.col("form").replace_strict(order, default=len(order), return_dtype=pl.Int64),
        depth=pl.col("band").replace_strict(BANDS, default=len(BANDS), return_dtype=pl.Int64),
        is_paper=pl.col("source") == PAPER,
    )
    told = told.sort("is_paper", "routed", "place", "depth", "line", "tokens_of", "n_tokens", descending=[True, *[False] * 6])
    kept = told["routed"].unique(maintain_order=True).head(size)
    return told.filter(pl.col("routed").is_in(kept.implode())).drop("is_paper", "source", "depth")


def _band() -> pl.Expr:
    """A band of layers, as it follows the name of a curve."""
    return pl.when(pl.col("band") == ALL_LAYERS).then(pl.lit("")).otherwise(pl.format(", {}", "band"))


def coverage_answer(found: pl.DataFrame) -> str:
    """Every other form's error, mean and largest, against the first form that is there, for decode tokens of one model."""
    decode = found.filter((pl.col("tokens_of") == "decode") & (pl.col("n_tokens") > 1))
    if decode.is_empty():
        return "Decode tokens are not measured."
    first = decode["place"].min()
    measured = decode.filter((pl.col("place") == first) & (pl.col("band") == ALL_LAYERS)).sort("n_tokens")
    level = measured.group_by("n_tokens").agg(pl.mean("covered").alias("level"))
    said = []
    others = (
        decode.filter(pl.col("place") > first)
        .join(level, on="n_tokens")
        .with_columns(error=pl.col("covered") / pl.col("level") - 1)
    )
    for (line,), of in others.group_by(["line"], maintain_order=True):
        worst = of.sort(pl.col("error").abs(), "n_tokens").row(-1, named=True)
        said.append(
            f"{line} is off by {percent(statistics.mean(of['error'].abs().to_list()), 0)} on average and "
            f"{signed(worst['error'])} at most ({worst['n_tokens']:,} tokens: {percent(worst['covered'])} for "
            f"{percent(worst['level'])})"
        )
    near = [row for row in measured.to_dicts() if row["n_tokens"] in (8, 32, 128)] or measured.tail(1).to_dicts()
    touched = f"{joined([percent(row['covered']) for row in near])} of a layer's experts"
    touched += f" for {joined([str(row['n_tokens']) for row in near])} tokens"
    against = f" Against it, {joined(said)}." if said else ""
    return f"Decode, {FORMS.get(measured['form'][0], measured['form'][0])}: {touched}.{against}"


def _coverage_chart(start: str, lines: Sequence[str]) -> alt.FacetChart:
    base = alt.Chart(alt.NamedData("coverage")).transform_filter("datum.routed === routed")
    scale = alt.Scale(type="log", base=2, nice=False)
    x = alt.X(
        "n_tokens:Q",
        title="tokens together (log scale)",
        scale=scale,
        axis=alt.Axis(format=",.0f", values=[2**n for n in range(16)], labelOverlap="greedy"),
    )
    y = alt.Y("covered:Q", title="experts touched (%)", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%"))
    recorded = [name for name in lines if name.startswith("recorded")]
    colours = {"the paper's Table 1": theme.VERMILLION, "independent": theme.QUIET}
    spare = [theme.BLUE, theme.SKY, theme.GREEN, theme.PURPLE, theme.ORANGE]
    colours |= {name: spare[n % len(spare)] for n, name in enumerate(name for name in lines if name not in colours)}
    dashes = {name: [1, 0] if name in recorded or name.startswith("the paper") else [6, 4] for name in lines}
    legend = alt.Legend(title=None, orient="top", columns=6, symbolType="circle", symbolOpacity=1, symbolStrokeWidth=0)
    colour = alt.Color("line:N", scale=alt.Scale(domain=list(lines), range=[colours[name] for name in lines]), legend=legend)
    dash = alt.StrokeDash("line:N", scale=alt.Scale(domain=list(lines), range=[dashes[name] for name in lines]), legend=legend)
    tips = [
        alt.Tooltip("line:N", title="form"),
        alt.Tooltip("n_tokens:Q"),
        alt.Tooltip("covered:Q", title="experts touched", format=".1%"),
    ]
    band = base.mark_area(opacity=0.12).encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), colour)
    line = base.mark_line().encode(x, y, colour, dash)
    marks = base.mark_point(size=30).encode(x, y, colour, tooltip=tips)
    return (
        alt.layer(band, line, marks)
        .properties(width=WIDE / 2, height=270)
        .add_params(alt.param(name="routed", value=start))
        .facet(alt.Facet("panel:N", title=None, sort=list(TOKENS_OF.values()), header=HEADER), columns=2, spacing=24)
    )


def chunk_part(points: pl.DataFrame) -> Part:
    """One prompt alone: bytes and time against the chunk. points: rows.points."""
    question = "What does cutting a prompt into chunks cost?"
    found = of_series(points, PROMPT)
    if found.is_empty():
        return Part((Figure("chunks", question, None, {}, (), "", NO_PROMPT),))
    chunked = pl.col("chunk_tokens").is_not_null()
    size = pl.when(chunked).then(pl.col("chunk_tokens").cast(pl.String)).otherwise("system")
    most = found.filter(chunked).group_by("setting").len().sort("len", "setting")["setting"].to_list()[-1:]
    told = (
        found.filter(pl.col("setting").is_in(most))
        .with_columns(size=size)
        .sort(chunked, "chunk_tokens", descending=[True, False])
    )
    names = [f"{part}_frac" for part in PARTS if f"{part}_frac" in told.columns]
    kept = told.select("setting", "system", "size", "chunk_tokens", "expert_bytes_per_request", "ttft_mean_s", *names)
    return Part(
        (
            Figure(
                "chunks",
                question,
                _chunk_chart(kept["size"].to_list()),
                {"": chunk_answer(kept)},
                (),
                f"{kept['setting'][0]}: one prompt in an empty engine. Left: bytes of experts read from memory, whole experts "
                "of all layers and devices. Right: time to the first token by what it is spent on. Layered reads every layer "
                "once, however many groups it walks through.",
                NO_PROMPT,
            ),
        ),
        data={"chunks": kept},
    )


def chunk_answer(found: pl.DataFrame) -> str:
    """Bytes, time and the MoE's share at the least and the largest chunk, and layered beside them."""
    chunked, others = found.filter(pl.col("chunk_tokens").is_not_null()), found.filter(pl.col("chunk_tokens").is_null())
    least, most = chunked.row(0, named=True), chunked.row(-1, named=True)
    said = [
        f"in chunks of {row['size']} it reads {_bytes(row)} and takes {quantity(row['ttft_mean_s'], 's')}"
        for row in (least, most)
    ]
    said += [f"{row['system']} reads {_bytes(row)} and takes {quantity(row['ttft_mean_s'], 's')}" for row in others.to_dicts()]
    share = (
        f" The MoE takes {percent(least['moe_frac'])} of the time in chunks of {least['size']}." if "moe_frac" in least else ""
    )
    return f"One prompt alone: {joined(said)}.{share}"


def _bytes(row: dict[str, float]) -> str:
    return f"{row['expert_bytes_per_request'] / 1e9:,.0f} GB of experts"


def _chunk_chart(sizes: Sequence[str]) -> alt.HConcatChart:
    base = alt.Chart(alt.NamedData("chunks"))
    x = alt.X("size:N", title="chunk (tokens)", sort=list(sizes), axis=alt.Axis(labelAngle=0, ticks=False))
    bars = base.transform_calculate(gb="datum.expert_bytes_per_request / 1e9")
    y = alt.Y("gb:Q", title="experts read (GB)")
    tips = [alt.Tooltip("system:N"), alt.Tooltip("gb:Q", title="GB", format=".4~g")]
    left = bars.mark_bar(color=theme.BLUE, opacity=0.85).encode(x, y, tooltip=tips)
    words = bars.mark_text(dy=-7, fontSize=12, color=theme.INK).encode(x, y, text=alt.Text("gb:Q", format=",.0f"))
    right = _parts_chart(x)
    return alt.hconcat(alt.layer(left, words).properties(width=WIDE / 2 - 40, height=270), right, spacing=60).resolve_scale(
        color="independent"
    )


def _parts_chart(x: alt.X) -> alt.Chart:
    names = list(PARTS)
    base = alt.Chart(alt.NamedData("chunks")).transform_fold([f"{name}_frac" for name in names], as_=["part", "frac"])
    base = base.transform_calculate(
        ms="datum.frac * datum.ttft_mean_s * 1000",
        words=f"({theme.literal({f'{name}_frac': said for name, said in PARTS.items()})})[datum.part]",
        place=f"indexof({[f'{name}_frac' for name in names]}, datum.part)",
    )
    scale = alt.Scale(domain=list(PARTS.values()), range=list(PART_COLOURS))
    colour = alt.Color("words:N", scale=scale, legend=alt.Legend(title=None, orient="top", columns=5))
    y = alt.Y("ms:Q", title="time to the first token (ms)", stack="zero")
    tips = [
        alt.Tooltip("system:N"),
        alt.Tooltip("words:N", title="spent on"),
        alt.Tooltip("ms:Q", title="ms", format=".1f"),
        alt.Tooltip("frac:Q", title="share", format=".1%"),
    ]
    return base.mark_bar().encode(x, y, colour, alt.Order("place:Q"), tooltip=tips).properties(width=WIDE / 2 - 40, height=270)

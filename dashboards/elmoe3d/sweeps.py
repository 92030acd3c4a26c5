"""The ELMoE-3D page past the paper: capacity and bandwidth of HB, context, and the acceptance that speculation needs."""

from __future__ import annotations

import math
from itertools import pairwise

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.claims import signed
from tokentape.dashboards.elmoe3d.words import (
    DIGITS,
    HEADLINE_FIT,
    LEGEND,
    SCHEMES,
    STUDY,
    TABLE,
    by_mode,
    mode_dash,
    scheme_colour,
    source,
)
from tokentape.dashboards.panels import hollow, known, params, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

NO_SWEEPS = f"Nothing to draw: no sweep past the paper was computed. {STUDY}"
NO_ALPHA = f"Nothing to draw: no sweep over acceptance was computed. {STUDY}"
# Series -> what varies, its title, its unit where the sentence tells it.
SWEEPS = {
    "hb-capacity": ("gib", "capacity of HB (GiB, log scale)", "{:g} GiB"),
    "hb-bandwidth": ("hb_gb_per_s", "bandwidth of HB (GB/s, log scale)", "{:,.0f} GB/s"),
    "context": ("context_tokens", "context of a request (tokens, log scale)", "{:,.0f} tokens"),
}
SAME_FRAC = 1e-6  # values nearer than this are the same
HELD = (
    "Acceptance is held at the paper's value for the 8 GB machine: an input. It is too kind to Elastic-SD where HB holds few "
    "experts, because a smaller pool drafts worse."
)


def sweeps_part(points: pl.DataFrame, start: dict[str, str]) -> Part:
    """Speed-ups over capacity, bandwidth and context. points: rows.points."""
    question = "Past the paper: what do more fast memory, more bandwidth and longer contexts change?"
    found = _swept(points)
    if found.is_empty():
        return Part((Figure("sweeps", question, None, {}, (), "", NO_SWEEPS),))
    said = {
        f"{law}|{model}|{batch}": sweeps_answer(of)
        for (law, model, batch), of in found.group_by(["law", "model", "batch_words"], maintain_order=True)
    }
    reading = (
        f"Dashed: AR, solid: SD, of the machine with 8 GB but for what varies. {HELD} Hollow: the paper's own numbers for the "
        "model and batch on this machine. Static weights and KV that no longer fit in HB are read from EXT in every pass; "
        "the drafter's own KV is modelled for the small model only."
    )
    figure = Figure("sweeps", question, _sweeps_chart(found, start), said, ("law", "model", "batch"), reading, NO_SWEEPS)
    return Part((figure,), data={"sweeps": _packed(found)})


def _swept(points: pl.DataFrame) -> pl.DataFrame:
    """A row per point and mode with `at`, the value of what varies; the paper's number where the point is the paper's."""
    keys = ["hardware", "model", "scheme", "batch"]
    paper = points.filter((pl.col("series") == TABLE) & (pl.col("fit") == HEADLINE_FIT))
    paper = paper.select(*keys, "published_ar", "published_sd").unique()
    made = []
    for series, (column, _, _) in SWEEPS.items():
        of = points.filter(pl.col("series") == series).drop("published_ar", "published_sd").join(paper, on=keys, how="left")
        at, own = pl.col(column).cast(pl.Float64).alias("at"), _own(points, column)
        long = by_mode(of, "series", "law", "level", "model", "scheme", "batch", "fidelity", at)
        made.append(long.with_columns(published=pl.when((pl.col("at") / own - 1).abs() < SAME_FRAC).then("published")))
    order = ["law", "model", "batch", "series", "scheme", "mode", "at"]
    return (
        pl.concat(made)
        .with_columns(batch_words=pl.col("batch").cast(pl.String))
        .sort(order, descending=[False, True, *[False] * 5])
    )


def _packed(found: pl.DataFrame) -> pl.DataFrame:
    """A row per line, its points as lists: a page stays small."""
    keys = ["series", "law", "model", "scheme", "batch_words", "mode"]
    stated = pl.col("published").is_not_null()
    own = [pl.col(name).filter(stated).first().alias(said) for name, said in (("at", "paper_at"), ("published", "published"))]
    return found.group_by(keys, maintain_order=True).agg("at", pl.col("speedup").round_sig_figs(DIGITS), *own)


def _own(points: pl.DataFrame, column: str) -> float:
    """The swept machine's own value, where the paper's numbers stand: Table 3's, on the hardware that the sweeps use."""
    hardware = points.filter(pl.col("series").is_in(list(SWEEPS)))["hardware"]
    own = points.filter((pl.col("series") == TABLE) & pl.col("hardware").is_in(hardware.unique().implode()))[column]
    return float(own[0]) if own.len() else float("nan")


def sweeps_answer(found: pl.DataFrame) -> str:
    """What is fastest at both ends of each sweep; rows of one law, model and batch."""
    said = []
    for series, (_, _, form) in SWEEPS.items():
        of = found.filter(pl.col("series") == series)
        if of.is_empty():
            continue
        ends = []
        for at in (of["at"].min(), of["at"].max()):
            best = (
                of.filter(pl.col("at") == at)
                .sort(pl.col("speedup").round_sig_figs(4), "scheme", descending=[True, False])
                .row(0, named=True)
            )
            ends.append(f"{best['scheme']} in {best['mode']} with {form.format(at)} ({best['speedup']:.1f} ×)")
        said.append(f"from {ends[0]} to {ends[1]}")
    return f"The fastest goes {'; '.join(said)}."


def _sweeps_chart(found: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    panels = []
    for n, (series, (_, title, _)) in enumerate(SWEEPS.items()):
        of = (
            f"datum.law === law && datum.model === model && datum.batch_words === batch && datum.series === {theme.quote(series)}"
        )
        base = alt.Chart(alt.NamedData("sweeps")).transform_filter(of)
        scale = alt.Scale(type="log", base=2, nice=False, padding=10)
        x = alt.X(
            "at:Q",
            title=title,
            scale=scale,
            axis=_axis(found.filter(pl.col("series") == series)["at"].unique().sort().to_list(), series == "context"),
        )
        title_y = "speed-up over the xPU's AR (×, log)" if n == 0 else None
        y = alt.Y(
            "speedup:Q",
            title=title_y,
            scale=alt.Scale(type="log", nice=False, padding=8),
            axis=alt.Axis(values=[0.5, 1, 2, 4, 8, 16, 32], format="~g"),
        )
        tips = [
            alt.Tooltip("scheme:N"),
            alt.Tooltip("mode:N"),
            alt.Tooltip("at:Q", title=title.split(" (")[0], format=",.4~f"),
            alt.Tooltip("speedup:Q", format=".2f"),
        ]
        each = base.transform_flatten(["at", "speedup"])
        line = each.mark_line(strokeWidth=1.8).encode(x, y, scheme_colour(), mode_dash())
        marks = each.mark_point(size=28).encode(x, y, scheme_colour(), tooltip=tips)
        stated = [*tips[:2], alt.Tooltip("published:Q", title="paper", format=".2f")]
        paper = hollow(base, x=("paper_at", "datum.at[0]"), y=("published", "datum.speedup[0]"))
        rings = paper.encode(alt.X("x:Q"), alt.Y("y:Q"), scheme_colour(), tooltip=stated)
        panels.append(alt.layer(line, marks, rings).properties(width=310, height=270))
    title = source(found, "hollow: the paper's", level=joined(found["level"].unique().to_list()))
    return stacked([alt.hconcat(*panels, spacing=18)], title, params(start, "law", "model", "batch"))


def _axis(values: list[float], is_tokens: bool) -> alt.Axis:
    """Every doubling; tokens in thousands of 1,024."""
    doublings = [at for at in values if abs(math.log2(at / values[0]) % 1) < SAME_FRAC]
    words = "datum.value / 1024 + 'k'" if is_tokens else "format(datum.value, ',.0f')"
    return alt.Axis(values=doublings, labelExpr=words, labelOverlap="greedy")


def alpha_part(points: pl.DataFrame, start: dict[str, str]) -> Part:
    """Speed-up over the acceptance rate, and the other form of accepted length."""
    question = "How many drafted tokens must be accepted before speculation pays?"
    swept = points.filter(pl.col("series") == "alpha")
    if swept.is_empty():
        return Part((Figure("alpha", question, None, {}, (), "", NO_ALPHA),))
    found = _with_paper(swept, points)
    said = {
        f"{model}|{batch}": f"{alpha_answer(of)} {_forms(points)}"
        for (model, batch), of in found.group_by(["model", "batch_words"], maintain_order=True)
    }
    reading = (
        "Solid: SD's speed-up over the xPU by the acceptance rate alpha; dashed: the scheme's own AR, which SD has to beat. "
        "Hollow: the paper's alpha and speed-up. An accepted length of alpha times the draft steps is inferred, the paper "
        "never defines alpha; a chain, where one rejected token ends the round, fits its table worse."
    )
    return Part(
        (Figure("alpha", question, _alpha_chart(found, start), said, ("model", "batch"), reading, NO_ALPHA),),
        data={"alpha": _packed_alpha(found)},
    )


def _with_paper(swept: pl.DataFrame, points: pl.DataFrame) -> pl.DataFrame:
    keys = ["hardware", "law", "level", "model", "scheme", "batch"]
    paper = points.filter((pl.col("series") == TABLE) & (pl.col("fit") == HEADLINE_FIT))
    paper = paper.select(*keys, "published_sd", paper_alpha="alpha")
    found = swept.drop("published_sd").join(paper, on=keys, how="left").with_columns(batch_words=pl.col("batch").cast(pl.String))
    chosen = [
        "law",
        "level",
        "model",
        "scheme",
        "batch",
        "batch_words",
        "alpha",
        "phi_sd",
        "phi_ar",
        "published_sd",
        "paper_alpha",
        "fidelity",
    ]
    return found.select(chosen).sort("model", "batch", "scheme", "alpha", descending=[True, False, False, False])


def _packed_alpha(found: pl.DataFrame) -> pl.DataFrame:
    """A row per line; AR does not depend on alpha."""
    keys = ["model", "scheme", "batch_words", "phi_ar", "published_sd", "paper_alpha"]
    return found.group_by(keys, maintain_order=True).agg("alpha", pl.col("phi_sd").round_sig_figs(DIGITS))


def needed(alphas: list[float], gains: list[float]) -> float | None:
    """The acceptance at which SD equals AR, linear between two recorded ones; None: at none of them."""
    ordered = list(zip(alphas, gains, strict=True))
    for (before, low), (after, high) in pairwise(ordered):
        if low < 1 <= high:
            return before + (1 - low) / (high - low) * (after - before)
    return alphas[0] if gains and gains[0] >= 1 else None


def alpha_answer(found: pl.DataFrame) -> str:
    """The acceptance that each scheme needs, beside the one it has; rows of one model and batch."""
    said = []
    for name in known(SCHEMES, found["scheme"]):
        of = found.filter(pl.col("scheme") == name).sort("alpha")
        at, has = needed(of["alpha"].to_list(), (of["phi_sd"] / of["phi_ar"]).to_list()), of["paper_alpha"][0]
        need = f"needs {at:.2f}" if at is not None else "never pays"
        said.append(f"{name} {need}" + (f" and has {has:.2f}" if has is not None else ""))
    return f"To beat its own AR, {'; '.join(said)}."


def _forms(points: pl.DataFrame) -> str:
    """Mean error of SD over open rows with the chain instead of the linear form."""
    chain = points.filter(pl.col("series") == "accepted-form").drop_nulls("published_sd")
    if chain.is_empty():
        return ""
    error = chain["phi_sd"] / chain["published_sd"] - 1
    off = f"{percent(error.abs().mean())} on average ({signed(error.mean())})"
    return f"With acceptance as a chain, constants not refitted, SD would be off by {off}."


def _alpha_chart(found: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("alpha")).transform_filter("datum.model === model && datum.batch_words === batch")
    x = alt.X("alpha:Q", title="acceptance rate alpha (accepted per draft step)", axis=alt.Axis(format=".1f"))
    y = alt.Y("phi_sd:Q", title="speed-up over the xPU's AR (×)")
    tips = [
        alt.Tooltip("scheme:N"),
        alt.Tooltip("alpha:Q", format=".2f"),
        alt.Tooltip("phi_sd:Q", title="SD", format=".2f"),
        alt.Tooltip("phi_ar:Q", title="AR", format=".2f"),
    ]
    each = base.transform_flatten(["alpha", "phi_sd"])
    line = each.mark_line().encode(x, y, scheme_colour(), tooltip=tips)
    own = each.mark_line(strokeDash=[6, 4], strokeWidth=1.4).encode(x, alt.Y("phi_ar:Q"), scheme_colour())
    paper = hollow(base, 120, x=("paper_alpha", "datum.alpha[0]"), y=("published_sd", "datum.phi_sd[0]"))
    rings = paper.encode(alt.X("x:Q"), alt.Y("y:Q"), scheme_colour(LEGEND))
    drawn = alt.layer(own, line, rings).properties(width=620, height=270)
    laws, levels = (joined(found[name].unique().to_list()) for name in ("law", "level"))
    title = source(found, "hollow: the paper's", law=laws.replace("_", " "), level=levels)
    return stacked([drawn], title, params(start, "model", "batch"))

"""The ELMoE-3D page on what a live model accepts (Figure 17): by pool, batch, bits and drafter, replayed against live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.elmoe3d.words import HEADER, LEGEND, MODES, law_words, scheme_colour, source
from tokentape.dashboards.panels import known, stacked
from tokentape.dashboards.shell import Control, Figure, Part
from tokentape.dashboards.units import joined

NO_ACCEPTANCE = (
    "Nothing to draw: no live model's acceptance is recorded. Run: tokentape study elmoe3d, "
    "then tokentape load and tokentape site."
)
NO_MEASURED = (
    "Nothing to draw: no tape with recorded acceptance went through the machine. Run: tokentape capture with --tables "
    "acceptance,rounds, then tokentape study elmoe3d, tokentape load and tokentape site."
)
HOTNESS, RANDOM = "hotness", "random"
LOOKS = {
    HOTNESS: theme.VERMILLION,
    "oracle": theme.INK,
    "lru": theme.BLUE,
    "static": theme.PURPLE,
    RANDOM: theme.QUIET,
    "all": theme.GREEN,
}
SCHEME_WORDS = {
    "lsb_aug": "slice, LSB augmentation", "trunc_sym": "slice, truncated", "round_sym": "rounded",
    "base_sym": "quantised at the width",    "amat": "AMAT", "full": "as loaded",
}  # fmt: skip
SCHEME_LOOKS = (theme.VERMILLION, theme.QUIET, theme.BLUE, theme.GREEN, theme.PURPLE, theme.INK)
PAPER_LAW = "paper_law"
RUNS = {"pool": "live run", "replay": "replayed from a tape"}  # of a series


@dataclass(frozen=True)
class Curve:
    """A figure of lines: its series and metric, what varies along x and what a colour means."""

    name: str
    question: str
    series: str
    metric: str
    x: str
    x_title: str
    colour: str
    y_title: str
    reading: str


TAU = "accepted tokens of a round (mean)"
FIGURES = (
    Curve(
        "pool", "Does a pool of hot experts draft better than a random one?", "pool", "tau_accepted", "pool_frac",
        "pool (% of a layer's experts)", "pool_policy", TAU,
        "Experts that the drafter may use: hotness keeps those most often wanted in the last round, random draws them, "
        "oracle knows the next round. The paper's Figure 17a has GLM-4.7-Flash; its curves carry no numbers but the gain "
        "that the sentence names.",
    ),
    Curve(
        "shared", "Does a pool still serve when more requests share it?", "batch", "tau_accepted", "batch",
        "batch (requests that share a pool)",        "pool_policy", TAU,
        "The paper's Figure 17b, on GLM-4.7-Flash: hotness falls slightly with the batch, random does not depend on it.",
    ),
    Curve(
        "bits", "How much acceptance does a slice cost, and which way of cutting costs least?", "bits", "acceptance", "bits",
        "width of codes, and what the drafter reads (bits)", "scheme_words", "acceptance: sum of min(p, q), mean over tokens",
        "Expected acceptance of a sampled token, sum over the vocabulary of the lesser of both probabilities. Slices need no "
        "second copy; a quantiser at the width does. The paper's Figure 17c, on GLM-4.7-Flash, carries no numbers.",
    ),
    Curve(
        "drafters", "Which drafter has most accepted?", "drafters", "tau_accepted", "how",
        "draft (chain or tree, sampling)", "drafter", TAU,
        "Elastic: pool and slices; quant: a copy at 4 bits; ngram: looks the text up. A chain drafts one token per step, a "
        "tree several.",
    ),
    Curve(
        "replayed", "Does a replayed tape tell the same as a live run?", "replay", "pool_overlap_frac", "pool_frac",
        "pool (% of a layer's experts)", "run", "experts wanted and in the pool (share of top-k)",
        "A hot pool of every size. Replayed: the recorded scores of one tape's drafts restricted to another pool, as if hidden "
        "states did not drift after the first restricted layer. Live: the model run with that pool, weights as loaded.",
    ),
)  # fmt: skip


def part(acceptance: pl.DataFrame, size: int, published_gain_frac: float | None) -> Part:
    """The first `size` live models. published_gain_frac: the paper's hotness over random, less one."""
    found = _named(acceptance, size)
    made = {curve.name: _of(found, curve) for curve in FIGURES}
    figures = tuple(_figure(curve, made[curve.name], published_gain_frac) for curve in FIGURES)
    live = found["live"].unique(maintain_order=True).to_list() if not found.is_empty() else []
    return Part(
        figures,
        controls=(Control("live", "Live model"),) if live else (),
        choices=tuple({"live": name} for name in live),
        data={f"accepted_{name}": frame for name, frame in made.items() if not frame.is_empty()},
    )


def _named(found: pl.DataFrame, size: int) -> pl.DataFrame:
    """With `live`, the words of schemes, runs and drafts, and the panel that a setting belongs to."""
    if found.is_empty():
        return found
    tree = pl.when(pl.col("width") > 1).then(pl.format("tree of width {}", "width")).otherwise(pl.lit("chain"))
    sampled = pl.when(pl.col("temperature") > 0).then(pl.format("sampled at {}", "temperature")).otherwise(pl.lit("greedy"))
    told = found.with_columns(
        live=pl.format("{}, {}", "model", "dataset"),
        scheme_words=pl.col("scheme").replace(SCHEME_WORDS),
        run=pl.col("series").replace(RUNS),
        bits=pl.format("{} to {} bits", "bits_high", "bits_low"),
        panel=pl.format("{}, {}", tree, sampled),
        how=pl.format("{}, {}", tree, sampled),
    )
    kept = told["live"].unique().sort().head(size)
    return told.filter(pl.col("live").is_in(kept.implode()))


def _of(found: pl.DataFrame, curve: Curve) -> pl.DataFrame:
    """Rows of one figure; a panel per draft where the figure has several and x does not tell them apart."""
    if found.is_empty():
        return found
    is_of = pl.col("series") == curve.series
    if curve.colour == "run":  # a replay stands beside the live run of the same pools
        is_of = pl.col("series").is_in(list(RUNS)) & (pl.col("pool_policy") == HOTNESS)
    rows = found.filter(is_of & pl.col("metric").is_in([curve.metric, f"tree_{curve.metric}"]))
    is_single = curve.series in ("bits", "drafters", "replay")
    panel = pl.lit("") if is_single else pl.col("panel")
    order = pl.col("bits_low").cast(pl.Int64) if curve.x == "bits" else pl.lit(0)
    kept = ["live", "n_seeds", "n_rounds", "fidelity", "value", "low", "high", curve.colour]
    return rows.select(*kept, pl.col(curve.x).alias("at"), panel=panel, order=-order).sort(
        "live", "panel", curve.colour, "order", "at", maintain_order=True
    )


def _figure(curve: Curve, found: pl.DataFrame, published: float | None) -> Figure:
    if found.is_empty():
        return Figure(curve.name, curve.question, None, {}, (), "", NO_ACCEPTANCE)
    said = {str(live): answer(curve, of, published) for (live,), of in found.group_by(["live"], maintain_order=True)}
    reading = f"{curve.reading} Bands: least to most of the seeds."
    start = str(found["live"][0])
    return Figure(curve.name, curve.question, _chart(curve, found, start), said, ("live",), reading, NO_ACCEPTANCE)


def answer(curve: Curve, found: pl.DataFrame, published: float | None) -> str:
    """Means by colour; for pools, hotness over random beside the paper's gain. Rows of one live model."""
    if curve.colour == "pool_policy" and {HOTNESS, RANDOM} <= set(found["pool_policy"]):
        return _over_random(curve, found, published)
    said = []
    for at in found.sort("order", "at")["at"].unique(maintain_order=True):
        of = (
            found.filter(pl.col("at") == at)
            .group_by(curve.colour)
            .agg(pl.mean("value"))
            .sort("value", curve.colour, descending=[True, False])
        )
        words = at if isinstance(at, str) else percent(float(at), 0)
        said.append(f"{words}: {joined([f'{name} {value:.2f}' for name, value in of.rows()])}")
    return f"{'; '.join(said)}."


def _over_random(curve: Curve, found: pl.DataFrame, published: float | None) -> str:
    keys = ["panel", "at"]
    hot, drawn = (found.filter(pl.col("pool_policy") == name).select(*keys, "value") for name in (HOTNESS, RANDOM))
    both = hot.join(drawn, on=keys, suffix="_random").filter(pl.col("value_random") > 0).sort(*keys)
    if both.is_empty():
        return "Hotness and random pools were not measured at the same setting."
    ratios = (both["value"] / both["value_random"]).to_list()
    won = sum(r > 1 for r in ratios)
    paper = f"; the paper says {percent(published, 0)} on GLM-4.7-Flash" if published is not None else ""
    ends = both.row(0, named=True), both.row(-1, named=True)
    words = [f"{row['value']:.2f} for {row['value_random']:.2f} at {_at(curve, row['at'])}" for row in ends]
    return (
        f"Hotness has more accepted than random in {won} of {len(ratios)} settings, "
        f"{percent(sum(ratios) / len(ratios) - 1, 0)} more on average{paper}: {joined(words)}."
    )


def _at(curve: Curve, value: float) -> str:
    return f"batch {value:g}" if curve.x == "batch" else f"a pool of {percent(value, 0)}"


def _chart(curve: Curve, found: pl.DataFrame, start: str) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData(f"accepted_{curve.name}")).transform_filter("datum.live === live")
    names = known(
        LOOKS if curve.colour == "pool_policy" else dict.fromkeys((*SCHEME_WORDS.values(), *RUNS.values()), ""),
        found[curve.colour],
    )
    spare = iter(SCHEME_LOOKS * 3)
    colours = [LOOKS[n] if n in LOOKS else next(spare) for n in names]
    colour = alt.Color(f"{curve.colour}:N", scale=alt.Scale(domain=names, range=colours), legend=LEGEND)
    is_words = found["at"].dtype == pl.String
    x = _x(
        curve, found["at"].unique(maintain_order=True).to_list() if is_words else found["at"].unique().sort().to_list(), is_words
    )
    y = alt.Y("value:Q", title=curve.y_title, scale=alt.Scale(zero=True))
    tips = [
        alt.Tooltip(f"{curve.colour}:N", title="of"),
        alt.Tooltip("value:Q", format=".3f"),
        alt.Tooltip("low:Q", format=".3f"),
        alt.Tooltip("high:Q", format=".3f"),
        alt.Tooltip("n_seeds:Q", title="seeds"),
        alt.Tooltip("n_rounds:Q", title="rounds"),
        alt.Tooltip("fidelity:N"),
    ]
    if is_words:
        beside = alt.XOffset(f"{curve.colour}:N", sort=names)
        band = base.mark_rule(strokeWidth=1.5, color=theme.INK).encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), beside)
        layers = [base.mark_bar().encode(x, y, colour, beside, tooltip=tips), band]
    else:
        band = base.mark_area(opacity=0.13).encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), colour)
        layers = [band, base.mark_line(point=True).encode(x, y, colour, tooltip=tips)]
    panels = found["panel"].unique(maintain_order=True).to_list()
    drawn: alt.LayerChart | alt.FacetChart = alt.layer(*layers).properties(width=680 if len(panels) == 1 else 430, height=250)
    if len(panels) > 1:
        drawn = drawn.facet(alt.Facet("panel:N", title=None, sort=panels, header=HEADER), columns=2, spacing=20)
    made = [alt.param(name="live", value=start).param]
    return stacked([drawn], source(found, "no value in the paper but where said", law=None), made)


def _x(curve: Curve, values: Sequence[object], is_words: bool) -> alt.X:
    if is_words:
        return alt.X("at:N", title=curve.x_title, sort=list(values), axis=alt.Axis(labelAngle=0, labelLimit=200))
    form = ".0%" if curve.x == "pool_frac" else ",d"
    scale = alt.Scale(nice=False, padding=12) if curve.x == "pool_frac" else alt.Scale(type="log", base=2, nice=False, padding=12)
    return alt.X("at:Q", title=curve.x_title, scale=scale, axis=alt.Axis(format=form, values=list(values)))


def measured_part(points: pl.DataFrame) -> Part:
    """Tapes whose own accepted length went through the machine. points: rows.points."""
    question = "A captured model's own acceptance, through the same machine: does it gain?"
    found = points.filter(pl.col("series") == "measured") if not points.is_empty() else points
    if found.is_empty():
        return Part((Figure("measured", question, None, {}, (), "", NO_MEASURED),))
    told = pl.concat(
        found.select(
            "model", "machine", "scheme", "batch", "law", "fidelity", "accepted_len", mode=pl.lit(words), speedup=f"phi_{mode}",
            label=pl.format("{}, {}, batch {}: {}", "model", "machine", "batch", law_words()),
        )
        for mode, words in MODES.items()
    )  # fmt: skip
    rows = found.filter(pl.col("law") == PAPER_LAW).sort("model", "gib", "batch").to_dicts()
    said = [
        f"{row['model']} ({row['scheme']}, {row['machine']}, batch {row['batch']}) accepts {row['accepted_len']:.2f} tokens a "
        f"round: {row['phi_sd']:.2f} × in SD, {row['phi_ar']:.2f} × in AR"
        for row in rows[:4]
    ]
    reading = (
        "The accepted length is the tape's own mean, not the paper's; capacity, bandwidth and sizes are the machine's and "
        "the model's. Popularity and hit law of a model the paper does not have follow its tape."
    )
    base = alt.Chart(alt.NamedData("measured"))
    labels = told["label"].unique(maintain_order=True).to_list()
    y = alt.Y("label:N", title=None, sort=labels, axis=alt.Axis(labelLimit=330, ticks=False, domain=False))
    x = alt.X("speedup:Q", title="speed-up over the xPU's AR (×)")
    strength = alt.Opacity("mode:O", scale=alt.Scale(domain=list(MODES.values()), range=[0.4, 1]), legend=LEGEND)
    tips = [alt.Tooltip("label:N"), alt.Tooltip("scheme:N"), alt.Tooltip("mode:N"), alt.Tooltip("speedup:Q", format=".2f")]
    beside = alt.YOffset("mode:N", sort=list(MODES.values()))
    bars = (
        base.mark_bar()
        .encode(x, y, beside, scheme_colour(), strength, tooltip=tips)
        .properties(width=620, height=alt.Step(14, **{"for": "offset"}))
    )
    laws = joined([str(law).replace("_", " ") for law in found["law"].unique()])
    chart = stacked([bars], source(found, law=laws, level=joined(found["level"].unique().to_list())))
    figure = Figure("measured", question, chart, {"": f"{'; '.join(said)}."}, (), reading, NO_MEASURED)
    return Part((figure,), data={"measured": told})

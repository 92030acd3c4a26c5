"""The Layered Prefill page's figures that no query makes: who attains the paper's limits at which rate, each alone, and any two;
schedulers side by side under other arrivals, beside older ones, elsewhere; a stretch of one run as a Gantt chart."""

from collections.abc import Iterator, Sequence

import polars as pl

from tokentape.dashboards.engine import Ask, Control, Drawn, some, turn_of
from tokentape.dashboards.layered_prefill import rows
from tokentape.dashboards.layered_prefill.words import ATTAINED_FRAC, capacity, drawing_order, in_order, looks, named, of_series
from tokentape.dashboards.units import percent, quantity

SERIES, MAX_PANELS = "slo ", 4
HALVES = {"slo_ttft_frac": "first token in time", "slo_tbt_frac": "gaps in time"}
OPENS_AT_S = {"ttft": {"sharegpt": 5.0, "arxiv": 10.0}, "tbt": {"sharegpt": 0.125, "arxiv": 0.125}}  # of Table 5, for Qwen
# Metric -> title and what turns it into what is shown; times on logarithmic axes.
MEASURES = {
    "ttft_mean_s": ("mean TTFT (s, log)", "1", "~s"),
    "tbt_p99_s": ("TBT p99 (ms, log)", "1000", "~s"),
    "energy_j_per_token": ("energy per token (mJ)", "1000", ",.0f"),
    "jain": ("Jain index (1: all alike)", "1", ".2f"),
}
LOG = ("ttft_mean_s", "tbt_p99_s")


def attainment(ask: Ask) -> Drawn:
    told = some(ask.made(_rates))
    own = {"panels": in_order(told), "at": percent(ATTAINED_FRAC, 0)}
    return Drawn(
        {"rates": _shown(told)}, facts=looks(told["system"]) | own, said=capacities(told, "slo_frac", "setting", "system")
    )


def split(ask: Ask) -> Drawn:
    told = some(ask.made(_rates))
    panels = in_order(told)
    own = {"panels": panels, "width": 1040 / len(panels) - 20}
    halves = pl.concat(_half(told, *half) for half in HALVES.items())
    served = capacities(halves, "frac", "setting", "system", "words").sort("setting", "system")
    return Drawn({"halves": halves}, facts=looks(told["system"]) | own, said=served)


def _rates(ask: Ask) -> pl.DataFrame:
    """Points of the first settings."""
    found = of_series(ask.made(rows.points), SERIES)
    return found if found.is_empty() else found.filter(pl.col("setting").is_in(in_order(found)[:MAX_PANELS]))


def _shown(told: pl.DataFrame) -> pl.DataFrame:
    bands = [f"{name}{end}" for name in ("slo_frac", *HALVES) for end in ("", "_low", "_high")]
    kept = ("setting", "system", "rate", "n_seeds", "decode_batch_mean")
    return told.select(*kept, *(name for name in bands if name in told.columns))


def capacities(found: pl.DataFrame, column: str, *keys: str) -> pl.DataFrame:
    """A row for each value of the keys, systems in drawing order; `words`: the capacity as it is said."""
    names = drawing_order(found["system"])
    told = found.drop_nulls(column).sort("rate").group_by(keys, maintain_order=True).agg(capacity(column))
    words = pl.format("{} {}", "kind", pl.col("per_s").map_elements(lambda rate: f"{rate:.2f}", pl.String)).str.strip_chars()
    return told.with_columns(said=words).sort(*keys[: keys.index("system")], turn_of("system", names), maintain_order=True)


def _flat(told: pl.DataFrame) -> pl.DataFrame:
    limits = {name: _text(f"{name}_limit_s") for name in ("tbt", "ttft")}
    kind = pl.when(pl.col("kind") == "").then(pl.lit("at")).otherwise("kind")
    return told.select("setting", "system", pl.col("per_s").round(4), kind=kind, **limits)


def _text(limit: str) -> pl.Expr:
    """As the sliders name it."""
    return pl.col(limit).map_elements(lambda value: f"{value:g}", pl.String)


def _half(found: pl.DataFrame, column: str, words: str) -> pl.DataFrame:
    """One limit alone."""
    ends = {"frac": column, "low": f"{column}_low", "high": f"{column}_high"}
    return found.select("setting", "system", "rate", *(pl.col(of).alias(name) for name, of in ends.items()), words=pl.lit(words))


def explorer(ask: Ask) -> Drawn:
    """The first settings."""
    found = some(grid(ask, ask.made(rows.points)))
    found = found.filter(pl.col("setting").is_in(in_order(found)[: ask.size]))
    told = capacities(found, "attained_frac", "setting", "ttft_limit_s", "tbt_limit_s", "system", "scheduler")
    return Drawn(
        {"grid": _packed(found), "capacities": _flat(told)},
        facts={"at": percent(ATTAINED_FRAC, 0), **looks(found["system"])},
        said=told,
        controls=(
            Control("served", "Model and workload"),
            Control("ttft", "First token within", _labels(found["ttft_limit_s"]), "slider"),
            Control("tbt", "No gap above", _labels(found["tbt_limit_s"]), "slider"),
        ),
        choices=tuple(_choices(found)),
    )


def grid(ask: Ask, points: pl.DataFrame) -> pl.DataFrame:
    """setting, system, rate, both limits, attained_frac; settings of limits ascending."""
    if points.is_empty():
        return pl.DataFrame()
    limits = ask("attainment").filter(pl.col("point_id").is_in(points["point_id"].implode()))
    held = points.filter(pl.col("point_id").is_in(limits["point_id"].unique().implode()) & pl.col("rate").is_not_null())
    kept = ("point_id", "setting", "system", "scheduler", "rate", "model", "workload", "is_dense")
    found = limits.join(named(held).select(kept), on="point_id")
    return found.drop("point_id").sort("setting", "system", "rate", "ttft_limit_s", "tbt_limit_s")


def _choices(found: pl.DataFrame) -> Iterator[dict[str, str]]:
    """Each setting with its limits; the paper's come first, so that the sliders open there."""
    for setting in in_order(found):
        of = found.filter(pl.col("setting") == setting)
        for name in ("ttft", "tbt"):
            opens = OPENS_AT_S[name].get(of["workload"][0], 0.0)
            limits = of[f"{name}_limit_s"].unique().sort().to_list()
            for limit in sorted(limits, key=lambda limit: (abs(limit - opens) > 1e-9, limit)):
                yield {"served": setting, name: f"{limit:g}"}


def _labels(limits: pl.Series) -> dict[str, str]:
    return {f"{limit:g}": quantity(limit, "s") for limit in limits.unique().sort().to_list()}


def _packed(found: pl.DataFrame) -> pl.DataFrame:
    """A row per setting, system and rate with the attainment at all limits as one list: a page stays small."""
    keys = ["setting", "system", "rate"]
    texts = found.with_columns(ttft=_text("ttft_limit_s"), tbt=_text("tbt_limit_s"))
    return texts.group_by(keys, maintain_order=True).agg(
        pl.col("ttft").unique(maintain_order=True),
        pl.col("tbt").unique(maintain_order=True),
        pl.col("attained_frac").round(4).alias("attained"),
    )


def beside(ask: Ask, name: str, series: Sequence[str], row: Sequence[str]) -> Drawn:
    """series: of the figure; row: what of a point names its row."""
    found = some(_beside(ask.made(rows.points), name, series, row))
    scales = {True: "log tight padding=16", False: "free padding=16 tight"}
    measures = [
        {"of": of, "title": title, "factor": factor, "form": form, "scale": scales[of in LOG]}
        for of, (title, factor, form) in MEASURES.items()
        if of in found.columns
    ]
    return Drawn({name: found}, facts={"name": name, "measures": measures, **looks(found["system"])})


def _beside(points: pl.DataFrame, figure: str, series: Sequence[str], row: Sequence[str]) -> pl.DataFrame:
    """A row per point, named by place and rate; only where the first of the series or more than one system is there."""
    held = of_series(points, *series)
    if held.is_empty():
        return held
    metrics = [name for name in MEASURES if name in held.columns and held[name].count()]
    turn = [turn_of("series", held["series"].unique(maintain_order=True)), "model", "hardware", "arrival", "rate", "system"]
    told = held.filter(pl.col("rate").is_not_null()).sort(turn).with_columns(label=_label(row))
    if figure == "others":
        is_other = ~pl.col("scheduler").is_in(["chunked", "layered"]) | pl.col("series").eq("other schedulers")
        told = told.filter(pl.col("rate").is_in(told.filter(is_other)["rate"].unique().implode()))
    if figure == "arrivals" and told["arrival"].n_unique() < 2:
        return told.clear()
    bands = [f"{name}{end}" for name in metrics for end in ("", "_low", "_high")]
    order = turn_of("label", told["label"].unique(maintain_order=True))
    return told.select("label", "system", "scheduler", "n_seeds", *bands, order=order)


def _label(row: Sequence[str]) -> pl.Expr:
    """A row's name; a trace is called as its series, not as its tape."""
    cached = pl.when(pl.col("workload").str.contains("prefix cache")).then(pl.lit(" with prefix cache")).otherwise(pl.lit(""))
    named = pl.concat_str([pl.col(name) for name in row], separator=", ")
    trace = pl.format("{} trace{}", pl.col("series").str.to_titlecase(), cached)
    return pl.format("{}, {}/s", pl.when(pl.col("arrival") == "trace").then(trace).otherwise(named), "rate")


def window(ask: Ask, name: str) -> Drawn:
    """Iterations (schedule), requests (lives) or a request's tokens."""
    found = some(_shared(_of(ask.made(rows.points), ask(name))) if name == "tokens" else ask.made(_stretch)[name])
    own = {**looks(found["system"]), "where": _where(found), "request_id": found.row(0, named=True).get("request_id")}
    return Drawn({name: found}, facts=own)


def _stretch(ask: Ask) -> dict[str, pl.DataFrame]:
    points = ask.made(rows.points)
    return _together(schedule=_of(points, ask("iterations")), lives=_of(points, ask("spans")))


def _of(points: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """The rows with setting, rate and system of their points, of the setting and rate that most of them share."""
    if found.is_empty() or points.is_empty():
        return found.clear()
    held = points.filter(pl.col("point_id").is_in(found["point_id"].unique().implode()))
    held = named(held).select("point_id", "setting", "rate", "system")
    told = found.join(held.unique("point_id"), on="point_id", maintain_order="left").drop("point_id")
    first = (
        told.group_by("setting", "rate")
        .agg(pl.col("system").n_unique(), pl.len().alias("n"))
        .sort("system", "n", "setting")
        .tail(1)
    )
    return told.join(first.select("setting", "rate"), on=["setting", "rate"], how="semi", maintain_order="left", nulls_equal=True)


def _together(**found: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """What lies in the stretch that all frames tell of every scheduler, cut at its ends; start_s counts from its beginning."""
    stop = pl.col("start_s") + pl.col("seconds")
    told = [of.group_by("system").agg(pl.min("start_s"), stop.max().alias("end")) for of in found.values() if not of.is_empty()]
    if not told:
        return found
    begin, end = pl.concat(told).select(pl.max("start_s"), pl.min("end")).row(0)
    return {name: of if of.is_empty() else _cut(of, begin, end) for name, of in found.items()}


def _cut(found: pl.DataFrame, begin: float, end: float) -> pl.DataFrame:
    start = pl.max_horizontal("start_s", pl.lit(begin))
    left = pl.min_horizontal(pl.col("start_s") + pl.col("seconds"), pl.lit(end)) - start
    return found.with_columns(start_s=start - begin, seconds=left, whole_s="seconds").filter(pl.col("seconds") > 1e-9)


def _shared(found: pl.DataFrame) -> pl.DataFrame:
    """Tokens of the request that most schedulers have."""
    if found.is_empty():
        return found
    counts = found.group_by("request_id").agg(pl.col("system").n_unique().alias("n"), pl.len().alias("tokens"))
    first = counts.sort("n", "tokens", "request_id", descending=[True, True, False])["request_id"][0]
    return found.filter(pl.col("request_id") == first)


def _where(found: pl.DataFrame) -> str:
    row = found.row(0, named=True)
    return str(row["setting"]) + ("" if row["rate"] is None else f" at {row['rate']:g} requests per second")

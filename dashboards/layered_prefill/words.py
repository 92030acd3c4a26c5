"""How the Layered Prefill page names and draws schedulers and settings, and where a service level is last met."""

from collections.abc import Iterable
from typing import Any

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, turn_of
from tokentape.dashboards.layered_prefill.rows import KNOBS, SETTING, points

STUDY = "Run: tokentape study layered_prefill, then tokentape load and tokentape site."
BAND = "Bands: 5 to 95 % of the seeds; lines: their median."
JITTER = "The engine's iterations do not jitter: in the paper chunks of 1024 tokens miss the limit on gaps, here they keep it."
ATTAINED_FRAC = 0.9  # share of requests that must be in time: the paper's level, which its 90 % line shows
HEADER = "labelFontSize=14 labelLimit=480 labelFontWeight=600"
LEGEND = "top columns=6 symbolStrokeWidth=0"
WORK_LEGEND = "top symbolType=square"
BESIDE = "labelFontSize=14 labelFontWeight=600 labelAngle=0 labelOrient=top labelAnchor=start labelPadding=4"
TOKENS_OF = {"decode": "decode: tokens of different requests", "prefill": "prefill: consecutive tokens of one prompt"}
TOKENS_OF_NAMES = list(TOKENS_OF.values())
PARTS = {"moe": "MoE", "attention": "attention", "dense": "dense", "communication": "communication", "other": "other"}
SPENT_WORDS = theme.literal({f"{name}_frac": words for name, words in PARTS.items()})
SPENT_ON = dict(zip(PARTS.values(), (theme.VERMILLION, theme.ORANGE, theme.BLUE, theme.PURPLE, theme.QUIET), strict=True))
SPENT_AS = {"static power": theme.QUIET, "bytes moved": theme.BLUE, "operations": theme.ORANGE}
# Forms that a curve may have; the first that is there is the one the others are compared with.
FORMS = {"recorded": "recorded", "recorded_curve": "recorded", "paper_table": "the paper's Table 1", "independent": "independent"}
LINE_COLOURS = [theme.BLUE, theme.SKY, theme.GREEN, theme.PURPLE, theme.ORANGE]  # of curves that are not known
STATES = {"queued": theme.GRID, **theme.PHASE_COLOURS}
WORK = {"decode": theme.PHASE_COLOURS["decode"], "prefill": theme.PHASE_COLOURS["prefill"]}
MARKS = [m * 10**n for n in range(-2, 5) for m in (1, 2, 5)]  # of a logarithmic axis of times
SPARE_SHAPES = ("triangle-left", "diamond", "square", "triangle-right")
# First word of a system's name -> colour and shape; chunked ones differ by chunk.
LOOKS = {
    "chunked 512": (theme.BLUE, "circle"),
    "chunked 1024": (theme.SKY, "square"),
    "chunked 2048": (theme.GREEN, "square"),
    "layered": (theme.VERMILLION, "triangle-up"),
    "orca": (theme.ORANGE, "diamond"),
    "static": (theme.QUIET, "cross"),
    "disaggregated": (theme.PURPLE, "triangle-down"),
}


def points_of(ask: Ask, name: str, series: list[str]) -> pl.DataFrame:
    """As below, with `turn`, in which systems are drawn. name: of a figure."""
    found = of_series(ask.made(points), *series)
    return found if found.is_empty() else found.with_columns(turn=turn_of("system", drawing_order(found["system"])))


def of_series(points: pl.DataFrame, *series: str) -> pl.DataFrame:
    """Points of the series whose names begin so, in the order of these beginnings, each setting, rate and scheduler once; with
    `setting` and `system` in words."""
    if points.is_empty():
        return points
    found = pl.concat([points.filter(pl.col("series").str.starts_with(name)) for name in series])
    once = found.unique((*SETTING, "rate", "scheduler", *KNOBS), keep="first", maintain_order=True)
    return named(once)


def named(points: pl.DataFrame) -> pl.DataFrame:
    """With `setting`: model and workload, and of the rest what differs between the points; and with `system`: the scheduler, its
    chunk, and other parameters where they differ at the same setting and rate."""
    told = ["model", "workload"] + [name for name in SETTING[2:] if points[name].n_unique() > 1]
    usual = {"arrival": "poisson"}  # said only where it is another
    words = [", ".join(str(row[name]) for name in told if row[name] != usual.get(name)) for row in points.to_dicts()]
    points = points.with_columns(pl.Series("setting", words, pl.String))
    alike = points.group_by("setting", "rate", "scheduler").agg(pl.col(*KNOBS).n_unique())
    differing = {name: set(alike.filter(pl.col(name) > 1)["scheduler"]) for name in KNOBS}
    words = [_system(row, {name for name, of in differing.items() if row["scheduler"] in of}) for row in points.to_dicts()]
    return points.with_columns(pl.Series("system", words, pl.String))


def _system(row: dict[str, Any], differing: set[str]) -> str:
    said = [row["scheduler"]]
    if row["chunk_tokens"] is not None and (row["scheduler"] == "chunked" or "chunk_tokens" in differing):
        said.append(str(row["chunk_tokens"]))
    written = {"n_max": "N {}", "n_lg_rule": "{} rule", "pass_tokens": "passes of {}"}
    said += [form.format(row[name]) for name, form in written.items() if name in differing and row[name] is not None]
    return " ".join(said[:2]) + "".join(f", {more}" for more in said[2:])


def in_order(found: pl.DataFrame) -> list[str]:
    """Settings: MoE models before dense ones, then by model, the paper's main one first, and workload."""
    columns = ["is_dense", "model", "workload", "setting"]
    order = found.select(columns).unique().sort(columns, descending=[False, True, False, False])
    return order["setting"].to_list()


def drawing_order(names: Iterable[str]) -> list[str]:
    """Names of systems: known looks first, then by name, numbers by size."""
    there = set(names)
    known = [name for name in LOOKS if name in there]
    return known + sorted(there - set(known), key=lambda name: [(len(word), word) for word in name.split(" ")])


def looks(found: Iterable[str]) -> dict[str, Any]:
    """What files of figures call by name: systems in drawing order with their looks.

    The first of several layered ones has the look of layered; others take a spare one.
    """
    names = drawing_order(found)
    taken = {name: LOOKS[name] for name in names if name in LOOKS}
    spare = theme.spares(SPARE_SHAPES)
    for name in names:
        kind = LOOKS.get(name.split(" ", 1)[0])
        if name not in taken:
            taken[name] = kind if kind and kind not in taken.values() else next(spare)
    return {"names": names, "colours": [taken[name][0] for name in names], "shapes": [taken[name][1] for name in names]}


def capacity(column: str) -> list[pl.Expr]:
    """Of a group by ascending rate: per_s, the rate at which attainment first falls below the level, linear between two rates.

    kind: "", "at least" (every rate keeps the level) or "below" (none does): then it is the last rate or the first.
    """
    frac, rate = pl.col(column), pl.col("rate")
    is_below, before = frac < ATTAINED_FRAC, frac.shift()
    crossing = rate.shift() + (before - ATTAINED_FRAC) / (before - frac) * (rate - rate.shift())
    end = pl.when(is_below.first()).then(rate.first()).otherwise(rate.last())
    kind = pl.when(is_below.first()).then(pl.lit("below")).when(~is_below.any()).then(pl.lit("at least")).otherwise(pl.lit(""))
    return [pl.coalesce(crossing.filter(is_below).first(), end).alias("per_s"), kind.alias("kind")]

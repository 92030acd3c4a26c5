"""How the Layered Prefill page names and draws schedulers and settings."""

from collections.abc import Iterable
from typing import Any

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask
from tokentape.dashboards.layered_prefill.rows import KNOBS, SETTING, points
from tokentape.dashboards.units import percent

STUDY = "Run: tokentape study layered_prefill, then tokentape load and tokentape site."
BAND = "Bands: 5 to 95 % of the seeds; lines: their median."
JITTER = "The engine's iterations do not jitter: in the paper chunks of 1024 tokens miss the limit on gaps, here they keep it."
ATTAINED_FRAC = 0.9  # share of requests that must be in time: the paper's level, which its 90 % line shows
AT = percent(ATTAINED_FRAC, 0)
OPENS_TTFT = {"sharegpt": 5.0, "arxiv": 10.0}  # seconds of Table 5, for Qwen
OPENS_TBT = {"sharegpt": 0.125, "arxiv": 0.125}
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


def points_of(ask: Ask, name: str, series: list[str], row: tuple[str, ...] = ()) -> pl.DataFrame:
    """Points of the series whose names begin so, in the order of these beginnings, each setting, rate and scheduler once, as
    `named`. name: of a figure; row: what of a point makes `called`."""
    every = ask.made(points)
    if every.is_empty():
        return every
    found = pl.concat([every.filter(pl.col("series").str.starts_with(start)) for start in series])
    once = named(ask, found.unique((*SETTING, "rate", "scheduler", *KNOBS), keep="first", maintain_order=True))
    return once.with_columns(called=pl.concat_str(row, separator=", ")) if row else once


def points_in(ask: Ask, name: str, query: str) -> pl.DataFrame:
    """The points that rows of a query are of, as `named`. name: of a figure."""
    every, held = ask.made(points), ask(query)["point_id"].unique()
    return every if every.is_empty() else named(ask, every.filter(pl.col("point_id").is_in(held.implode())))


def named(ask: Ask, found: pl.DataFrame) -> pl.DataFrame:
    """With `setting` and `system` in words (rows.sql), the looks of systems and `turn`, in which they are drawn."""
    told = ask.sql("named", found)
    of = pl.DataFrame(list(looks(told["system"]).values()), dict.fromkeys(("system", "colour", "shape"), pl.String))
    return told.join(of.with_row_index("turn"), on="system", maintain_order="left")


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

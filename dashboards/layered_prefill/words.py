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
    """As below, with the looks of systems and `turn`, in which they are drawn. name: of a figure; row: what of a point makes
    `called`."""
    found = _with_looks(of_series(ask.made(points), *series))
    return found.with_columns(called=pl.concat_str(row, separator=", ")) if row and not found.is_empty() else found


def points_in(ask: Ask, name: str, query: str) -> pl.DataFrame:
    """The points that rows of a query are of, as above."""
    found, held = ask.made(points), ask(query)["point_id"].unique()
    return found if found.is_empty() else _with_looks(named(found.filter(pl.col("point_id").is_in(held.implode()))))


def _with_looks(found: pl.DataFrame) -> pl.DataFrame:
    if found.is_empty():
        return found
    of = dict(zip(("system", "colour", "shape"), looks(found["system"]).values(), strict=True))
    return found.join(pl.DataFrame(of).with_row_index("turn"), on="system", maintain_order="left")


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

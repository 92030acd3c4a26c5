"""The SliceMoE page's figures of claims and of what the study's replays show: Flash under budgets, gains, sweeps, warm-ups."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import claims as stated
from tokentape.dashboards import claims_chart
from tokentape.dashboards.answers import percent
from tokentape.dashboards.shell import Figure
from tokentape.dashboards.slicemoe import answers, charts, words
from tokentape.dashboards.slicemoe.rows import MATCHED_FRAC

STUDY = "Run: tokentape study slicemoe, then tokentape load and tokentape site."
NO_CLAIMS = f"Nothing to draw: no number of the paper is answered. {STUDY}"
NO_POINTS = f"Nothing to draw: no sliced replay is recorded. {STUDY}"
NO_BUDGETS = f"Nothing to draw: no sliced replay was held to a budget. {STUDY}"
NO_WARMUPS = f"Nothing to draw: no warm-up is recorded over windows of steps. {STUDY}"
SEEDS = "Bands: least to most of the seeds."
PROXY = "Kept gate mass is a proxy that a replay can see, less a charge for low precision; it says nothing certain of answers."


def claims(found: pl.DataFrame) -> Figure:
    is_answered = not found.drop_nulls("replay").is_empty()
    return Figure(
        "claims",
        "How near are our numbers to the paper's?",
        claims_chart.ratios() if is_answered else None,
        {"": stated.answer(found)} if is_answered else {},
        (),
        f"{SEEDS} Calibrated numbers were fitted, so their nearness proves nothing; predicted ones were never looked at. A "
        "number that the paper states as a bound has words only. Numbers without an answer need the real models' weights.",
        NO_CLAIMS,
    )


def flash(found: pl.DataFrame) -> Figure:
    panels = found["panel"].unique(maintain_order=True).to_list()
    strength = None if found.is_empty() else found["strength"][0]
    return Figure(
        "flash",
        "How much of the energy does Flash take when few misses are allowed?",
        None if found.is_empty() else charts.flash(panels, charts.drawing_order(found["configuration"])),
        {} if found.is_empty() else {"": answers.flash(found)},
        (),
        f"Replayed under a hard budget. High-bit routes as the model does; Cache-Prior is the same cache with that router at "
        f"{strength:g}, as low-bit and DBSC have it. Dashed: misses as allowed. "
        f"What a budget costs in quality: the next figure. {SEEDS}"
        if strength is not None
        else "",
        NO_BUDGETS,
    )


def gains(found: pl.DataFrame, start: dict[str, str]) -> Figure:
    places = found.filter(pl.col("series") == "DBSC").select("pair", "tau").unique(maintain_order=True)
    at = percent(MATCHED_FRAC, 0)
    is_merged = words.BOTH in found["series"].to_list()
    both = (
        f" AMAT moves the same bytes as low-bit (within {percent(words.SAME_FRAC)} in gain): they share a line."
        if is_merged
        else ""
    )
    return Figure(
        "gains",
        "What does bit-sliced caching gain at equal kept gate mass?",
        None
        if places.is_empty()
        else charts.gains(start, charts.drawing_order(found["series"]), found["gb"].unique().sort().to_list()),
        {"|".join(place): answers.gains(found, *place) for place in places.iter_rows()},
        ("pair", "tau"),
        f"Over the high-bit cache with Cache-Prior at the same pair, both read where they keep {at} of the natural route's gate "
        f"mass.{both} {PROXY} Dashed: the largest gain that the paper prints, without its pair. *: a sweep does not cross {at} "
        f"and is read at its end. {SEEDS}",
        NO_POINTS,
    )


def sweeps(found: pl.DataFrame, gains: pl.DataFrame, start: dict[str, str]) -> Figure:
    """gains: of every model, as rows.gains has them."""
    places = found.filter(pl.col("tau") != "").select("model", "cache", "pair", "tau").unique(maintain_order=True)
    told = {place: _of(gains, *place) for place in places.iter_rows()}
    return Figure(
        "sweeps",
        "How much gate mass is kept at which miss rate and energy?",
        None if places.is_empty() else charts.sweeps(start, charts.drawing_order(found["configuration"])),
        {"|".join(place): answers.sweep(words.merged(of)) for place, of in told.items() if not of.is_empty()},
        ("model", "cache", "pair", "tau"),
        f"Each point is a strength of the router, Cache-Prior but for Cumsum; stronger goes left. Dashed: "
        f"{percent(MATCHED_FRAC, 0)}, where the systems are compared. AMAT moves the same bytes as low-bit but for the prompt's: "
        f"it differs in the weights. {PROXY} {SEEDS}",
        NO_POINTS,
    )


def warmups(found: pl.DataFrame, start: dict[str, str]) -> Figure:
    held = found.row(0, named=True) if not found.is_empty() else {}
    panels = found["panel"].unique(maintain_order=True).sort().to_list()
    return Figure(
        "warmups",
        "What does the cache's content at the first decoded token matter?",
        charts.warmups(start, panels) if held else None,
        {str(steps): answers.warmups(of) for (steps,), of in found.partition_by("steps", as_dict=True).items()},
        ("steps",),
        f"The slider above sets how many steps from the start of a generation count. DBSC with {held['gb']:g} GB, budget "
        f"{held['budget']}, Cache-Prior {held['strength']:g}. Dashed, in the first {words.EARLY_STEPS} steps: what the paper's "
        f"gains of PCW over an empty cache amount to. {SEEDS}"
        if held
        else "",
        NO_WARMUPS,
    )


def _of(gains: pl.DataFrame, model: str, cache: str, pair: str, tau: str) -> pl.DataFrame:
    """Gains of one place; those of low-bit have no tau."""
    here = (pl.col("model") == model) & (pl.col("cache") == cache) & (pl.col("pair") == pair)
    return gains.filter(here & pl.col("tau").is_in(["", tau]))

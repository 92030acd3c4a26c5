"""The SliceMoE page's figures of what was measured inside a model: budgets, misses, schemes, fidelity."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Drawn, Nothing, some
from tokentape.dashboards.slicemoe import live_words as words
from tokentape.dashboards.slicemoe import rows
from tokentape.dashboards.slicemoe.words import looks
from tokentape.dashboards.units import highest


def budgets(ask: Ask) -> Drawn:
    """The other half of Fig. 2: quality and misses at the budgets whose energy replayed.flash shows."""
    found = ask.made(rows.live)
    held = some(found.filter((pl.col("budget") == "hard") & pl.col("target").is_not_null()))
    return Drawn({"live": found}, facts=_facts(held), said=held)


def live(ask: Ask) -> Drawn:
    found = ask.made(rows.live)
    drawn = some(found.filter("is_drawn"))
    return Drawn({"live": found}, facts=_facts(drawn), said=drawn)


def _facts(held: pl.DataFrame) -> dict[str, object]:
    return {**looks(held["configuration"]), "panels": held["panel"].unique().sort().to_list()}


def sparing(ask: Ask) -> Drawn:
    return Drawn({"sparing": words.sparing(ask.made(rows.live))})


def proxies(ask: Ask) -> Drawn:
    """What replay sees of quality beside what the model lost."""
    found = some(words.proxies(ask("proxies")))
    return Drawn({"proxies": found}, facts=looks(found["configuration"]))


def schemes(ask: Ask) -> Drawn:
    """The paper's Table 1."""
    found = words.schemes(ask("schemes"))
    pairs = found.filter(pl.col("pair") != "")["pair"].unique().sort().to_list()
    if not pairs:
        raise Nothing
    shapes = ("circle", "square", "diamond", "triangle-up", *theme.SPARE_SHAPES)
    own = {
        "where": f" ({found['model'][0]}, {found['dataset'][0]})",
        "pairs": pairs,
        "shapes": [shapes[n % len(shapes)] for n in range(len(pairs))],
    }
    return Drawn({"schemes": found}, facts=own | {"paper": ask("paper_schemes")})


def fidelity(ask: Ask) -> Drawn:
    """The axis ends at the largest error of a seed; the scale goes on, for the words."""
    found = some(words.fidelity(ask("fidelity"), ask.size))
    longest = max(highest(found["low"].abs()), highest(found["high"].abs())) or 0.01
    own = {"domain": [-longest, 3.2 * longest], "ticks": [share * longest for share in (-1, -0.5, 0, 0.5, 1)]}
    return Drawn({"fidelity": found}, facts=own)

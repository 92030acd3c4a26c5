"""The SliceMoE page's menus, and what its figures are drawn from: what the study's replays show, what was measured in a model."""

from typing import Any

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Control, Drawn, Nothing, options, some
from tokentape.dashboards.slicemoe import live_words, words
from tokentape.dashboards.units import highest, percent


def own(ask: Ask) -> dict[str, Any]:
    """Every swept model, cache, pair and tau, the tau that the study chose first; every live setup; every window of steps."""
    steps, chosen = sorted(ask.made(words.warmups)["steps"].unique(), key=int), ask("operating")["tau"]
    is_swept = pl.col("configuration") == "DBSC"
    swept = ask.made(words.swept).filter(is_swept).select("model", "cache", "pair", "tau").unique(maintain_order=True)
    swept = swept.sort(pl.col("tau").is_in(chosen.unique().implode()), descending=True, maintain_order=True)
    controls = (
        Control("model", "Model", ask.made(words.names)),
        Control("cache", "Cache"),
        Control("pair", "Bit pair"),
        Control("tau", "Threshold tau of DBSC"),
        Control("steps", "Steps from the start", {name: f"first {name}" for name in steps}, "slider"),
        Control("setup", "Live model"),
    )
    setups = ask.made(live_words.measured)["setup"].unique(maintain_order=True)
    return {"controls": controls, "choices": (*swept.to_dicts(), *options("steps", steps), *options("setup", setups))}


def budgets(ask: Ask) -> Drawn:
    """The other half of Fig. 2: quality and misses at the budgets whose energy `flash` shows."""
    return _live(ask, (pl.col("budget") == "hard") & pl.col("target").is_not_null())


def live(ask: Ask) -> Drawn:
    return _live(ask, pl.col("is_drawn"))


def _live(ask: Ask, is_told: pl.Expr) -> Drawn:
    found = ask.made(live_words.measured)
    held = some(found.filter(is_told))
    own = {**words.looks(held["configuration"]), "panels": held["panel"].unique().sort().to_list()}
    return Drawn({"live": found}, facts=own, said=held)


def sparing(ask: Ask) -> pl.DataFrame:
    return live_words.sparing(ask.made(live_words.measured))


def proxies(ask: Ask) -> Drawn:
    """What replay sees of quality beside what the model lost."""
    found = some(live_words.proxies(ask("proxies")))
    return Drawn({"proxies": found}, facts=words.looks(found["configuration"]))


def schemes(ask: Ask) -> Drawn:
    """The paper's Table 1."""
    found = live_words.schemes(ask("schemes"))
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
    found = some(live_words.fidelity(ask("fidelity"), ask.size))
    longest = max(highest(found["low"].abs()), highest(found["high"].abs())) or 0.01
    own = {"domain": [-longest, 3.2 * longest], "ticks": [share * longest for share in (-1, -0.5, 0, 0.5, 1)]}
    return Drawn({"fidelity": found}, facts=own)


def flash(ask: Ask) -> Drawn:
    found = some(words.flash(ask))
    return Drawn({"flash": found}, facts=words.looks(found["configuration"]))


def gains(ask: Ask) -> Drawn:
    found = words.gains(ask("gains"), ask("paper_gains"))
    places = some(found.filter(pl.col("series") == "DBSC").select("pair", "tau").unique(maintain_order=True))
    is_merged = words.BOTH in found["series"].to_list()
    both = f" AMAT moves the same bytes as low-bit (within {percent(words.SAME_FRAC)} in gain): they share a line."
    own = words.looks(found["series"]) | {"both": both if is_merged else ""}
    return Drawn({"gains": found}, facts=own, said=_at(places, found, "pair"))


def sweeps(ask: Ask) -> Drawn:
    found, gained = ask.made(words.swept), ask("gains")
    places = some(found.filter(pl.col("tau") != "").select("model", "cache", "pair", "tau").unique(maintain_order=True))
    each = _at(places, gained, "model", "cache", "pair")
    told = [words.merged(of) for of in each.partition_by("model", "cache", "pair", "tau", maintain_order=True)]
    return Drawn({"sweeps": found}, facts=words.looks(found["configuration"]), said=pl.concat(told) if told else each)


def _at(places: pl.DataFrame, found: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Rows of each place; those of low-bit have no tau."""
    both = places.join(found.rename({"tau": "own_tau"}), on=columns, maintain_order="left_right")
    return both.filter((pl.col("own_tau") == "") | (pl.col("own_tau") == pl.col("tau")))

"""What the SliceMoE page's figures are drawn from of what the study's replays show."""

from collections.abc import Iterable
from typing import Any

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Drawn, known, some, turn_of
from tokentape.dashboards.engine.ask import words_of
from tokentape.dashboards.units import percent

WORDS = words_of("slicemoe")
SAME_FRAC, BOTH = WORDS["SAME_FRAC"], WORDS["BOTH"]


def looks(found: Iterable[str]) -> dict[str, Any]:
    """What files of figures call by name: configurations in drawing order, with their looks; unknown ones take a spare one."""
    names, spare, of = (
        known(WORDS["LOOKS"], found),
        theme.spares(),
        [WORDS[f"LOOKS_{look}"] for look in ("colour", "shape", "dash")],
    )
    each = [[look[name] for look in of] if name in of[0] else (*next(spare), [1, 0]) for name in names]
    return {"names": names, **{key: [look[n] for look in each] for n, key in enumerate(("colours", "shapes", "dashes"))}}


def flash(ask: Ask) -> Drawn:
    found = some(ask("flash"))
    return Drawn({"flash": found}, facts=looks(found["configuration"]))


def gains(ask: Ask) -> Drawn:
    """Gains with the paper's largest beside them, the model's name as the paper has it, and one line for what moves one load.

    A captured model without a published number is left out: its caches are of another size.
    """
    found, paper = ask("gains"), ask("paper_gains")
    wanted = found.filter(~pl.col("is_captured") | pl.col("model").is_in(paper["model"].implode())).drop("is_captured")
    said = _merged(wanted).join(paper, on=["model", "metric"], how="left", maintain_order="left")
    name, metric_name = pl.col("name").max().over("model").fill_null(pl.col("model")), pl.col("metric").replace(WORDS["METRICS"])
    told = said.with_columns(name, metric_name=metric_name)
    places = some(told.filter(pl.col("series") == "DBSC").select("pair", "tau").unique(maintain_order=True))
    both = f" AMAT moves the same bytes as low-bit (within {percent(SAME_FRAC)} in gain): they share a line."
    own = looks(told["series"]) | {"both": both if BOTH in told["series"].to_list() else ""}
    return Drawn({"gains": told}, facts=own, said=_at(places, told, "pair"))


def sweeps(ask: Ask) -> Drawn:
    found, gained = ask("sweeps"), ask("gains")
    places = some(found.filter(pl.col("tau") != "").select("model", "cache", "pair", "tau").unique(maintain_order=True))
    each = _at(places, gained, "model", "cache", "pair")
    told = [_merged(of) for of in each.partition_by("model", "cache", "pair", "tau", maintain_order=True)]
    return Drawn({"sweeps": found}, facts=looks(found["configuration"]), said=pl.concat(told) if told else each)


def _at(places: pl.DataFrame, found: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Rows of each place; those of low-bit have no tau."""
    both = places.join(found.rename({"tau": "own_tau"}), on=columns, maintain_order="left_right")
    return both.filter((pl.col("own_tau") == "") | (pl.col("own_tau") == pl.col("tau")))


def _merged(found: pl.DataFrame) -> pl.DataFrame:
    """Series by name, in drawing order; AMAT together with low-bit where the two agree everywhere."""
    named = found.with_columns(pl.col("series").replace(WORDS["CONFIGURATIONS"]))
    named = named.sort(turn_of("series", WORDS["LOOKS"]), maintain_order=True)
    low, amat = (named.filter(pl.col("series") == name) for name in ("low-bit", "AMAT"))
    pairs = low.join(amat, on=["model", "cache", "pair", "metric"])
    agree = (pl.col("gain") / pl.col("gain_right") - 1).abs() <= SAME_FRAC
    if amat.is_empty() or pairs.height != amat.height or not pairs.select(agree.all()).item():
        return named
    return named.filter(pl.col("series") != "AMAT").with_columns(pl.col("series").replace({"low-bit": BOTH}))

"""The SliceMoE page's menus, and what its figures are drawn from of what the study's replays show."""

from typing import Any

import polars as pl

from tokentape.dashboards import claims
from tokentape.dashboards.engine import Ask, Control, Drawn, options, some
from tokentape.dashboards.slicemoe import live
from tokentape.dashboards.slicemoe.words import BOTH, EARLY_STEPS, METRICS, SAME_FRAC, WARMUPS, configured, looks
from tokentape.dashboards.units import percent


def own(ask: Ask) -> dict[str, Any]:
    """Every swept model, cache, pair and tau, the tau that the study chose first; every live setup; every window of steps."""
    steps, chosen = sorted(ask.made(warmups)["steps"].unique(), key=int), ask("operating")["tau"]
    menu = ask.made(swept).filter(configuration="DBSC").select("model", "cache", "pair", "tau").unique(maintain_order=True)
    menu = menu.sort(pl.col("tau").is_in(chosen.unique().implode()), descending=True, maintain_order=True)
    controls = (
        Control("model", "Model", ask.made(names)),
        Control("cache", "Cache"),
        Control("pair", "Bit pair"),
        Control("tau", "Threshold tau of DBSC"),
        Control("steps", "Steps from the start", {name: f"first {name}" for name in steps}, "slider"),
        Control("setup", "Live model"),
    )
    setups = ask.made(live.measured)["setup"].unique(maintain_order=True)
    return {"controls": controls, "choices": (*menu.to_dicts(), *options("steps", steps), *options("setup", setups))}


def flash(ask: Ask) -> Drawn:
    """Shares of Flash, a panel for each model, cache and pair."""
    found, name = some(configured(ask("flash"))), pl.col("model").replace(ask.made(names))
    told = found.with_columns(name=name, panel=pl.format("{}, {} GB, {}", name, "gb", "pair"))
    return Drawn({"flash": told}, facts=looks(told["configuration"]))


def gains(ask: Ask) -> Drawn:
    """Gains with the paper's largest beside them, the model's name as the paper has it, and one line for what moves one load.

    A captured model without a published number is left out: its caches are of another size.
    """
    found, paper = ask("gains"), ask("paper_gains")
    wanted = found.filter(~pl.col("is_captured") | pl.col("model").is_in(paper["model"].implode())).drop("is_captured")
    said = _merged(wanted).join(paper, on=["model", "metric"], how="left", maintain_order="left")
    name, metric_name = pl.col("name").max().over("model").fill_null(pl.col("model")), pl.col("metric").replace(METRICS)
    told = said.with_columns(name, metric_name=metric_name)
    places = some(told.filter(pl.col("series") == "DBSC").select("pair", "tau").unique(maintain_order=True))
    both = f" AMAT moves the same bytes as low-bit (within {percent(SAME_FRAC)} in gain): they share a line."
    own = looks(told["series"]) | {"both": both if BOTH in told["series"].to_list() else ""}
    return Drawn({"gains": told}, facts=own, said=_at(places, told, "pair"))


def sweeps(ask: Ask) -> Drawn:
    found, gained = ask.made(swept), ask("gains")
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
    named = configured(found, "series")
    low, amat = (named.filter(pl.col("series") == name) for name in ("low-bit", "AMAT"))
    pairs = low.join(amat, on=["model", "cache", "pair", "metric"])
    agree = (pl.col("gain") / pl.col("gain_right") - 1).abs() <= SAME_FRAC
    if amat.is_empty() or pairs.height != amat.height or not pairs.select(agree.all()).item():
        return named
    return named.filter(pl.col("series") != "AMAT").with_columns(pl.col("series").replace({"low-bit": BOTH}))


def names(ask: Ask) -> dict[str, str]:
    """Model -> as the paper has it."""
    return dict(ask("paper_gains").select("model", "name").unique().iter_rows())


def swept(ask: Ask) -> pl.DataFrame:
    """Points of sweeps: drawn models first, wide pairs first, configurations in drawing order."""
    placed = configured(ask("sweeps")).sort(
        "is_captured", "model", "gb", "pair", descending=[False, False, False, True], maintain_order=True
    )
    return placed.drop("is_captured", "gb")


def warmups(ask: Ask) -> pl.DataFrame:
    """Ratios with the paper's own where it speaks of them: its gains, turned over, for the first ten steps."""
    found, stated = ask("warmups"), claims.rows(ask.connection, "slicemoe")
    stated = stated.filter(pl.col("claim_id").str.contains("pcw-over-empty")).drop_nulls("paper")
    metrics = {"energy gain": "energy", "speed-up": "latency"}
    paper = {metrics[row["quantity"]]: 1 / row["paper"] for row in stated.to_dicts() if row["quantity"] in metrics}
    said = pl.col("metric").replace_strict(paper, default=None, return_dtype=pl.Float64)
    name = pl.col("model").replace(ask.made(names))
    return found.with_columns(
        pl.col("warmup").replace(WARMUPS),
        pl.col("steps").cast(pl.String),
        paper=pl.when(pl.col("steps") == EARLY_STEPS).then(said),
        name=name,
        panel=pl.format("{}: {}", name, "metric"),
    )

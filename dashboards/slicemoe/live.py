"""What the SliceMoE page's figures are drawn from of what was measured inside a model, as people say it."""

import json

import polars as pl

from tokentape.dashboards.engine import Ask, Control, Drawn, options, some, turn_of
from tokentape.dashboards.slicemoe.page import WORDS, looks
from tokentape.dashboards.units import percent, quantity


def measured(ask: Ask) -> pl.DataFrame:
    """Live rows of the setups that have most of them, each named in words."""
    return _largest(_with_setup(ask("quality"), ("model", "dataset", "rest")), ask.size).drop("rest", "tau")


def budgets(ask: Ask) -> Drawn:
    """The other half of Fig. 2: quality and misses at the budgets whose energy `flash` shows."""
    return _live(ask, (pl.col("budget") == "hard") & pl.col("target").is_not_null())


def live(ask: Ask) -> Drawn:
    return _live(ask, pl.col("is_drawn"))


def _live(ask: Ask, is_told: pl.Expr) -> Drawn:
    found = ask.made(measured)
    held = some(found.filter(is_told))
    own = {**looks(held["configuration"]), "panels": held["panel"].unique().sort().to_list()}
    menu = options("setup", found["setup"].unique(maintain_order=True))
    return Drawn({"live": found}, facts=own, said=held, controls=(Control("setup", "Live model"),), choices=menu)


def proxies(ask: Ask) -> Drawn:
    """What replay sees of quality beside what the model lost: points of the model, text and pairs that most were measured of, by
    configuration."""
    found = some(_largest(_with_setup(ask("proxies"), ("model", "dataset", "rest")), 1).drop("rest"))
    return Drawn({"proxies": found}, facts=looks(found["configuration"]))


def fidelity(ask: Ask) -> Drawn:
    """The axis ends at the largest error of a seed; the scale goes on, for the words."""
    compared = ask("fidelity")
    said = [
        ", ".join(
            quantity(value, row["unit"]) if row["unit"] != "1" else percent(value) for value in (row["opened"], row["closed"])
        )
        for row in compared.to_dicts()
    ]
    named = compared.with_columns(
        pl.Series("words", said, pl.String),
        quantity=pl.col("metric").replace(WORDS["QUANTITIES"]),
        order=turn_of("metric", WORDS["QUANTITIES"]),
    )
    told = ("model", "dataset", "rest") + (("hardware",) if named["hardware"].n_unique() > 1 else ())
    found = some(_largest(_with_setup(named, told), ask.size).drop("rest"))
    longest = found.select(pl.max_horizontal(pl.col("low", "high").abs()).max()).item() or 0.01
    own = {"domain": [-longest, 3.2 * longest], "ticks": [share * longest for share in (-1, -0.5, 0, 0.5, 1)]}
    return Drawn({"fidelity": found}, facts=own)


def _with_setup(found: pl.DataFrame, columns: tuple[str, ...]) -> pl.DataFrame:
    said = [_setup_words(*(str(row[name]) for name in columns)) for row in found.to_dicts()]
    return found.with_columns(pl.Series("setup", said, pl.String))


def _setup_words(model: str, dataset: str, rest: str, hardware: str = "") -> str:
    """A model, a text and a policy's parameters, as people say them."""
    parameters = json.loads(rest)
    cache = parameters.pop("cache_frac", None)
    words = [model, dataset] + ([f"cache {100 * cache:g} %"] if cache is not None else [])
    if parameters.get("scheme") == "amat":  # as the policy has it unless told otherwise
        parameters.pop("scheme")
    named = [parameters.pop(name, "") for name in ("precision", "pair", "router")]
    words += [{**WORDS["CONFIGURATIONS"], **WORDS["ROUTERS"]}.get(name, name) for name in named if name]
    budget, target = parameters.pop("budget", ""), parameters.pop("budget.target_frac", None)
    words += [budget if target is None else f"{budget} {100 * float(target):g} %"] if budget else []
    words += [f"{name.rpartition('.')[2].replace('_', ' ')} {value}" for name, value in parameters.items()]
    return ", ".join([*words, *filter(None, [hardware])])


def _largest(found: pl.DataFrame, size: int) -> pl.DataFrame:
    """The rows of the `size` setups with most rows, those first."""
    sized = found.with_columns(n_rows=pl.len().over("setup")).sort(
        ["n_rows", "setup"], descending=[True, False], maintain_order=True
    )
    kept = sized["setup"].unique(maintain_order=True).head(size)
    return sized.filter(pl.col("setup").is_in(kept.implode())).drop("n_rows")

"""What the SliceMoE page's figures are drawn from of what was measured inside a model, as people say it."""

import json

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Drawn, Nothing, some, turn_of
from tokentape.dashboards.slicemoe.words import CONFIGURATIONS, PROXIES, ROUTERS, configured, looks
from tokentape.dashboards.units import percent, quantity, significant

SCHEMES = {
    "base_asym": "asymmetric,|at the low width",
    "amat": "AMAT",
    "amat_mid": "AMAT,|mid-point",
    "base_sym": "symmetric,|at the low width",
    "lsb_aug": "symmetric, cut|to the middle",
    "trunc_asym_floor": "low bits zeroed,|high grid",
    "trunc_sym": "symmetric,|truncated",
    "trunc_sym_unscaled": "symmetric,|scale not shifted",
    "trunc_asym": "zero point|not shifted",
    "trunc_sym_unshifted": "symmetric, mid-|point not shifted",
}
QUANTITIES = {
    "miss_frac": "miss rate",
    "kept_gate_mass_frac": "kept gate mass",
    "strayed_frac": "output error",
    "flash_bytes_per_token": "Flash bytes per token",
    "dram_bytes_per_token": "DRAM bytes per token",
    "step_s": "time per token",
    "step_j": "energy per token",
}
_TAU = pl.when(pl.col("tau") == "").then(pl.lit("")).otherwise(pl.format(", tau {}", "tau"))


def measured(ask: Ask) -> pl.DataFrame:
    """Live rows of the setups that have most of them, each named in words.

    is_drawn: the panel has budgets, or none of its setup has.
    """
    found = ask("quality")
    budget = (
        pl.when(pl.col("target").is_null())
        .then(pl.col("budget"))
        .otherwise(pl.format("{} {} %", "budget", pl.col("target") * 100))
    )
    scale = pl.when("is_accuracy").then(100).otherwise(1)
    shown = {"level": "value", "least": "low", "most": "high"}  # on one axis: perplexity, or exact match in per cent
    at = ["" if cache is None else f", {100 * cache:g} % cached" for cache in found["cache"]]
    named = configured(found.with_columns(panel=pl.col("pair") + pl.Series(at, dtype=pl.String))).with_columns(
        pl.concat_str("configuration", _TAU), budget_words=budget, **{name: pl.col(of) * scale for name, of in shown.items()}
    )
    has_budget = pl.col("target").is_not_null().any()
    setups = _with_setup(named, ("model", "dataset", "rest")).with_columns(
        is_drawn=has_budget.over("setup", "panel") | ~has_budget.over("setup")
    )
    return _largest(setups, ask.size).drop("rest", "tau")


def budgets(ask: Ask) -> Drawn:
    """The other half of Fig. 2: quality and misses at the budgets whose energy `flash` shows."""
    return _live(ask, (pl.col("budget") == "hard") & pl.col("target").is_not_null())


def live(ask: Ask) -> Drawn:
    return _live(ask, pl.col("is_drawn"))


def _live(ask: Ask, is_told: pl.Expr) -> Drawn:
    found = ask.made(measured)
    held = some(found.filter(is_told))
    own = {**looks(held["configuration"]), "panels": held["panel"].unique().sort().to_list()}
    return Drawn({"live": found}, facts=own, said=held)


def sparing(ask: Ask) -> pl.DataFrame:
    """DBSC beside the high-bit cache where neither has a budget: how much worse, at which misses; fewest misses first."""
    free = ask.made(measured).filter((pl.col("budget") == "none") & pl.col("worse").is_not_null())
    high = free.filter(pl.col("configuration") == "high-bit").select("setup", "panel", miss_high_bit="miss")
    pairs = (
        free.filter(pl.col("configuration") == "DBSC")
        .join(high, on=["setup", "panel"])
        .sort(pl.col("miss_high_bit").round(2), "panel")
    )
    said = pl.when(pl.col("worse_low") > 0).then(pl.lit("loses")).when(pl.col("worse_high") < 0).then(pl.lit("wins"))
    misses = [f"{percent(row['miss_high_bit'])} and {percent(row['miss'])}" for row in pairs.to_dicts()]
    kept = pairs.select("setup", "panel", "is_accuracy", "miss", "miss_high_bit", "worse", "worse_low", "worse_high", "seeds")
    return kept.with_columns(
        pl.Series("said_misses", misses, pl.String),
        said_verdict=said.otherwise(pl.lit("depends on the seed")),
        order=pl.int_range(pl.len()),
    )


def schemes(ask: Ask) -> Drawn:
    """The paper's Table 1: schemes by name, the study's order first; the model with most rows. Rows that diverged altogether have
    no mark."""
    kept = (
        ask("schemes")
        .with_columns(n_rows=pl.len().over("model", "dataset"))
        .sort("n_rows", "model", "dataset", descending=[True, False, False])
    )
    first = kept.select("model", "dataset").head(1)
    of_first = kept.join(first, on=["model", "dataset"], how="semi", maintain_order="left").drop("n_rows")
    words = ["" if row["value"] is None else _of_scheme(row["pair"], row["value"]) for row in of_first.to_dicts()]
    named = of_first.with_columns(
        pl.Series("words", words, pl.String),
        order=turn_of("scheme", SCHEMES),
        code="scheme",
        scheme=pl.col("scheme").replace(SCHEMES),
    )
    found = named.sort("order", "scheme", "pair")
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


def _of_scheme(pair: str, value: float) -> str:
    said = significant(value) if value < 1e3 else f"{value / 1e3:.1f}k"
    return said if pair else f"- - - as loaded: {said}"


def proxies(ask: Ask) -> Drawn:
    """What replay sees of quality beside what the model lost: points of the model, text and pairs that most were measured of, by
    configuration."""
    words = {"proxy_name": pl.col("proxy").replace(PROXIES), "rest": pl.lit("{}")}
    named = configured(ask("proxies")).with_columns(pl.concat_str("configuration", _TAU), **words)
    found = some(_largest(_with_setup(named, ("model", "dataset", "rest")), 1).drop("rest"))
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
        quantity=pl.col("metric").replace(QUANTITIES),
        order=turn_of("metric", QUANTITIES),
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
    words += [{**CONFIGURATIONS, **ROUTERS}.get(name, name) for name in named if name]
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

"""The validation page's figures: GPU operators on rows fitted, held out and of other devices; DRAM bandwidth in closed form."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Drawn, some, turn_of
from tokentape.dashboards.units import highest, joined, mean_of, percent
from tokentape.dashboards.validation.words import OPERATORS, SPLITS

ROOM_WIDE, ROOM_NARROW = 1.42, 1.75  # axis length over the longest mark: room for words in wide and in narrow panels


def errors(ask: Ask) -> Drawn:
    found = some(ask.made(_errors))
    domain = [0, ROOM_WIDE * highest(found["p95"])]
    return Drawn({"errors": found}, {"": errors_answer(found)}, _facts(found) | {"domain": domain})


def points(ask: Ask) -> Drawn:
    """The menu is the operators that have points."""
    found, by_operator = some(_worded(ask("points"))), ask.made(_errors).partition_by("operator", as_dict=True)
    names = found["operator"].unique(maintain_order=True).to_list()
    own = {
        **_facts(ask.made(_errors)),
        "shown": {"expr": "regimes_of[operator] || [' ']"},
        "regimes_of": {str(name): of["regime"].unique().sort().to_list() for (name,), of in found.group_by("operator")},
    }
    said = {name: spread_answer(name, by_operator[name,]) for name in names if (name,) in by_operator}
    return Drawn({"points": found}, said, own)


def regimes(ask: Ask) -> Drawn:
    found = some(_worded(ask("regimes")))
    longest = dict(found.group_by("operator", maintain_order=True).agg(pl.max("p95")).iter_rows())
    own = {"longest": longest, "domain": [0, {"expr": f"{ROOM_NARROW} * (longest[operator] || 1)"}]}
    said = {str(key[0]): regimes_answer(str(key[0]), of) for key, of in found.partition_by("operator", as_dict=True).items()}
    return Drawn({"regimes": found}, said, _facts(ask.made(_errors)) | own)


def dram(ask: Ask) -> Drawn:
    found = some(ask("dram"))
    return Drawn({"dram": found}, {"": dram_answer(found)}, {"width": 78 * found["preset"].n_unique()})


def _errors(ask: Ask) -> pl.DataFrame:
    return _worded(ask("errors"))


def _facts(errors: pl.DataFrame) -> dict[str, object]:
    """Devices and splits in order; a row is as high as its bars, one per device."""
    setups = errors["setup"].unique().sort().to_list()
    splits = [word for word in SPLITS.values() if word in errors["split"]]
    return {
        "setups": setups,
        "splits": splits,
        "colours": list(theme.colours(setups).values()),
        "height": f"{19 * len(setups) + 12} row",
    }


def errors_answer(errors: pl.DataFrame) -> str:
    """Mean error of every operator on rows never seen and on a device never seen, as a range over the devices."""
    said = []
    for split, words in (
        ("held_out", "rows never seen"),
        ("other_device", "a device never seen"),
        ("fitted", "the rows fitted on"),
    ):
        rows = errors.filter(pl.col("split") == SPLITS[split])
        ranges = rows.group_by("operator", maintain_order=True).agg(pl.min("mape").alias("low"), pl.max("mape").alias("high"))
        parts = [f"{row['operator']} {_range(row['low'], row['high'])}" for row in ranges.to_dicts()]
        said += [f"Mean error on {words}: {joined(parts)}."] if parts else []
    return " ".join(said[:2])


def spread_answer(operator: str, errors: pl.DataFrame) -> str:
    """Median and 95th percentile of one operator, on rows never seen if there are any."""
    best = _unseen(errors)
    said = [f"within {percent(row['median'])} and {percent(row['p95'])} on {row['setup']}" for row in best.to_dicts()]
    return f"On {best['split'][0]}, half and 95 % of the {operator} times are predicted {joined(said)}."


def regimes_answer(operator: str, regimes: pl.DataFrame) -> str:
    """The regimes with the largest and the smallest mean error over all devices, on rows never seen if there are any."""
    best = _unseen(regimes)
    mean = (pl.col("mape") * pl.col("n")).sum() / pl.col("n").sum()
    means = best.group_by("regime").agg(mean).sort("mape", "regime").rows()
    (least, low), (most, high) = means[0], means[-1]
    where = f"On {best['split'][0]}, {operator} is off"
    if len(means) == 1:
        return f"{where} by {percent(high)} on average; {most} alone binds it."
    return f"{where} most where {most} binds ({percent(high)} on average) and least where {least} binds ({percent(low)})."


def dram_answer(dram: pl.DataFrame) -> str:
    """Mean and largest error of the anchors the form covers, and the largest of those it does not."""
    ranked = dram.with_columns(size=pl.col("error").abs()).sort("size", "preset", "pattern", descending=[True, False, False])
    inside, outside = ranked.filter("covered"), ranked.filter(~pl.col("covered"))
    said = "With nothing fitted, "
    for worst in inside.head(1).to_dicts():
        said += (
            f"the form is off by {percent(mean_of(inside['size']))} on average over the {inside.height} anchors that it covers, "
            f"at most by {percent(worst['size'])} ({worst['pattern']} on {worst['preset']})"
        )
    for worst in outside.head(1).to_dicts():
        said += "; " if not inside.is_empty() else "the form covers none of the anchors; "
        said += f"outside, by up to {percent(worst['size'], 0)} ({worst['pattern']} on {worst['preset']})"
    return f"{said}."


def _unseen(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of the split that says most: held out, else another device, else fitted."""
    place = turn_of("split", [SPLITS[split] for split in ("held_out", "other_device", "fitted")])
    return rows.filter(place == place.min())


def _range(low: float, high: float) -> str:
    return percent(high) if percent(low) == percent(high) else f"{percent(low).removesuffix(' %')} to {percent(high)}"


def _worded(rows: pl.DataFrame) -> pl.DataFrame:
    """Operators and splits as people say them."""
    said = pl.col("operator").replace(OPERATORS).str.replace_all("_", " ", literal=True)
    worded = rows.with_columns(said, pl.col("split").replace(SPLITS))
    if "framework" in rows.columns:
        worded = worded.with_columns(measured_in=pl.format("{} {}", "framework", "version")).drop("framework", "version")
    return worded

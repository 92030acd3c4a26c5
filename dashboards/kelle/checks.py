"""The Kelle page on what holds: errors against the paper's ratios, what gains rest on, derived checks, parts, all claims."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import claims, theme
from tokentape.dashboards.engine import Ask, Drawn, in_words, sentences, some
from tokentape.dashboards.kelle import rows
from tokentape.dashboards.kelle.words import NAME, PAPER, READINGS, ZERO, times
from tokentape.dashboards.units import joined, percent, significant

KNOB_WORDS = {"calibrated": "calibrated", "zero": "nothing fitted"}
OF_READING = {PAPER: "calibrated", ZERO: "zero"}
MEDIAN = "median error"
BARS = {("predicted", "calibrated"): 0.15, (MEDIAN, "zero"): 0.10}  # what the study set out to hold
NEAR = 0.1
AS_IS = "as is"
EVERYWHERE = "; average over evaluated models and tasks"
# How a part is called, and where its power is counted.
CHIP = {
    "array": ("array", "array and special functions"),
    "special functions": ("special functions", "array and special functions"),
    "edram": ("eDRAM", "eDRAM"),
    "sram": ("SRAM", "SRAM"),
    "dram": ("DRAM", "DRAM"),
}
AREA, POWER = "area (mm2)", "power (W)"
ON_MODELS = ("Table 2", "Table 3", "Table 4", "Table 5", "Table 6")  # answers of models that are not run here


def ratios(ask: Ask) -> Drawn:
    found = some(errors(ask("checks")))
    order = ["predicted", "Table 7", "Table 9 at batch 16", "calibrated", "all", MEDIAN]
    own = {"groups": [name for name in order if name in set(found["group"])], "knobs": list(KNOB_WORDS.values())}
    return Drawn({"errors": found}, {"": f"{errors_answer(found)}{orders_answer(ask('checks'))}"}, own)


def sensitivity(ask: Ask) -> Drawn:
    """Settings by the gain that they have in the reading that the page opens with."""
    found = some(ask("sensitivity"))
    own = found.filter(pl.col("reading") == next(iter(ask.made(rows.readings)), "")).sort("energy")["setting"].to_list()
    names = [*own, *found.filter(~pl.col("setting").is_in(own))["setting"].unique().sort()]
    return Drawn({"sensitivity": found}, sentences(found, ["reading"], sensitivity_answer), {"names": names})


def checks(ask: Ask) -> Drawn:
    found = some(_derived(ask("checks")))
    return Drawn({"checks": found}, {"": checks_answer(found)})


def area(ask: Ask) -> Drawn:
    found = some(_area(ask("chip_parts")))
    return Drawn({"area": found}, sentences(found, ["reading"], area_answer))


def stated(ask: Ask) -> Drawn:
    found = claims.rows(ask.connection, NAME).filter(
        pl.col("role").is_in(list(theme.ROLES)) & ~pl.col("location").is_in(ON_MODELS)
    )
    found = found.with_columns(pl.col("claim", "setting").str.replace(EVERYWHERE, ", average"))
    answered, silent = some(found.drop_nulls("replay")), found.filter(pl.col("replay").is_null())
    said = {
        name: claims.answer(pl.concat([answered.filter(pl.col("mode") == name), silent]))
        for name in READINGS
        if name in set(answered["mode"])
    }
    return Drawn({"claims": answered.with_columns(reading="mode")}, said)


def errors(checks: pl.DataFrame) -> pl.DataFrame:
    """Errors by group of ratios and knobs, with the bar each is held to."""
    found = checks.drop_nulls(["group", "knobs"]).drop("is_verdict", "turned")
    bars = pl.DataFrame([{"group": group, "knobs": knobs, "bar": bar} for (group, knobs), bar in BARS.items()])
    return found.join(bars, on=["group", "knobs"], how="left").with_columns(said=pl.col("knobs").replace(KNOB_WORDS))


def orders_answer(checks: pl.DataFrame) -> str:
    """Systems that the fit sets in another order than the model with nothing fitted, as the paper counts."""
    turned = checks.drop_nulls("turned").sort("value", descending=True).to_dicts()
    said = [f"{row['turned']} in {percent(row['value'], 0)} of cells" for row in turned]
    return f" Only the fit puts {joined(said)}." if said else ""


def errors_answer(found: pl.DataFrame) -> str:
    """Which bars are held, and the error on fitted rows."""
    at = {(row["group"], row["knobs"]): row for row in found.to_dicts()}
    said = []
    for (group, knobs), bar in BARS.items():
        if (group, knobs) in at:
            value = at[group, knobs]["value"]
            words = "median error" if group == MEDIAN else f"mean |ln| error on {group} ratios"
            verdict = "held" if value <= bar else "missed"
            said.append(f"{KNOB_WORDS[knobs]}, the {words} is {value:.3f} (bar {bar:.2f}: {verdict})")
    fitted = at.get(("calibrated", "calibrated"))
    text = "; ".join(said) + (f"; on the ratios that were fitted it is {fitted['value']:.3f}" if fitted else "")
    return f"{text[:1].upper()}{text[1:]}."


def sensitivity_answer(found: pl.DataFrame) -> str:
    """The gain as it is, its range, and the least error; rows of one reading."""
    base = found.filter(pl.col("setting") == AS_IS)
    changed = found.filter(pl.col("setting") != AS_IS).sort("energy")
    if base.is_empty() or changed.is_empty():
        return "Nothing was changed that fits into the DRAM."
    least, most = changed.row(0, named=True), changed.row(-1, named=True)
    unchanged = found.drop_nulls("error").sort("error")
    best = ""
    if not unchanged.is_empty():
        first = unchanged.row(0, named=True)
        best = f" The paper's ratios are met best {'unchanged' if first['setting'] == AS_IS else 'with ' + first['setting']}."
    return (
        f"{times(base['energy'][0])} as it is, over {base['cells'][0]} cells; from {times(least['energy'])} ({least['setting']}) "
        f"to {times(most['energy'])} ({most['setting']}).{best}"
    )


def _derived(checks: pl.DataFrame) -> pl.DataFrame:
    """What is no error, sensitivity or order of systems, with words and the ratio to the paper's number, farthest first."""
    found = checks.filter(~pl.col("is_verdict")).drop("is_verdict", "group", "knobs", "turned")
    told = found.with_columns(ratio=pl.col("value") / pl.col("published"))
    far = told.sort(pl.col("ratio").log().abs(), "name", descending=[True, False], nulls_last=True)
    words = [
        {"ours": _written(row["value"], row["unit"]), "theirs": _written(row["published"], row["unit"])} for row in far.to_dicts()
    ]
    return far.with_columns(
        pl.DataFrame(words, schema=dict.fromkeys(("ours", "theirs"), pl.String)), order=pl.int_range(pl.len())
    )


def _written(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{significant(value)} {'' if unit == '1' else unit}".strip() if abs(value) >= 0.01 else f"{value:.2g}"


def checks_answer(found: pl.DataFrame) -> str:
    """How many agree, and the farthest ones."""
    both = found.drop_nulls("ratio")
    near = both.filter((pl.col("ratio") - 1).abs() <= NEAR).height
    said = [f"{row['name']} ({row['ours']} against {row['theirs']})" for row in both.head(3).to_dicts()]
    far = f"; farthest off: {joined(said)}" if near < both.height else ""
    return f"{near} of {both.height} agree within {percent(NEAR, 0)}{far}."


def _area(chip: pl.DataFrame) -> pl.DataFrame:
    """A row per part and measure, by the reading whose knobs it has; of power, array and special functions are one part."""
    back = {knobs: reading for reading, knobs in OF_READING.items()}
    parts = in_words("part", CHIP)
    joint = pl.col("part").replace({name: words for name, (_, words) in CHIP.items()})
    each = [
        chip.select(reading=pl.col("knobs").replace(back), measure=pl.lit(title), part=named, ours=name, theirs=f"{name}_paper")
        for name, title, named in (("area", AREA, parts), ("power", POWER, joint))
    ]
    total = [pl.when(pl.col(name).count() > 0).then(pl.sum(name)).alias(name) for name in ("ours", "theirs")]
    return pl.concat(each).group_by("reading", "measure", "part").agg(total).sort("reading", "measure", "part")


def area_answer(found: pl.DataFrame) -> str:
    """Each part's power beside the paper's, and how near the areas are; rows of one reading."""
    both = found.drop_nulls(["ours", "theirs"])
    power = [
        f"{row['part']} {row['ours']:.2f} W ({row['theirs']:.2f})" for row in both.filter(pl.col("measure") == POWER).to_dicts()
    ]
    area = both.filter(pl.col("measure") == AREA)
    worst = float((area["ours"] / area["theirs"] - 1).abs().max() or 0.0)  # type: ignore[arg-type]
    return f"Areas are within {percent(worst, 0)} of the paper's shares. Power, in brackets the paper's: {joined(power)}."

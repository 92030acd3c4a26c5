"""The Kelle page on what holds: errors against the paper's ratios, what gains rest on, derived checks, parts, all claims."""

from __future__ import annotations

import altair as alt
import duckdb
import polars as pl

from tokentape.dashboards import claims, claims_chart, theme
from tokentape.dashboards.answers import percent, significant
from tokentape.dashboards.kelle.rows import PAPER as NAME
from tokentape.dashboards.kelle.words import HERE, NOT_HERE, PAPER, READINGS, SQUARES, STUDY, ZERO, by_reading, source, times
from tokentape.dashboards.panels import colour, hollow, params, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

NO_CHECKS = f"Nothing to draw: nothing was derived anew. {STUDY}"
NO_CLAIMS = f"Nothing to draw: no number of the paper is answered. {STUDY}"
KNOBS = {"calibrated": theme.VERMILLION, "zero": theme.BLUE}
KNOB_WORDS = {"calibrated": "calibrated", "zero": "nothing fitted"}
OF_READING = {PAPER: "calibrated", ZERO: "zero"}
MEAN, MEDIAN, ORDER = "mean |ln| error", "median error", "order"
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
TURNED = "order reversed, paper, "
AREA, POWER = "area (mm2)", "power (W)"
ON_MODELS = ("Table 2", "Table 3", "Table 4", "Table 5", "Table 6")  # answers of models that are not run here


def part(
    connection: duckdb.DuckDBPyConnection,
    checks: pl.DataFrame,
    sensitivity: pl.DataFrame,
    chip: pl.DataFrame,
    start: dict[str, str],
) -> Part:
    """checks, sensitivity: rows' of these names; chip: chip_parts."""
    stated = claims.rows(connection, NAME).filter(
        pl.col("role").is_in(list(claims_chart.ROLES)) & ~pl.col("location").is_in(ON_MODELS)
    )
    stated = stated.with_columns(pl.col("claim", "setting").str.replace(EVERYWHERE, ", average"))
    off, derived, area = errors(checks), _derived(checks), _area(chip)
    figures = (
        _errors_figure(off, checks),
        _sensitivity_figure(sensitivity, start),
        _checks_figure(derived),
        _area_figure(area, start),
        _claims_figure(stated, start),
    )
    answered = stated.drop_nulls("replay").with_columns(reading="mode")
    data = {"errors": off, "sensitivity": sensitivity, "checks": derived, "area": area, "claims": answered}
    return Part(figures, data={name: frame for name, frame in data.items() if not frame.is_empty()})


def errors(checks: pl.DataFrame) -> pl.DataFrame:
    """Errors by group of ratios and knobs, with the bar each is held to."""
    found = checks.with_columns(
        group=pl.when(pl.col("name").str.starts_with(MEDIAN))
        .then(pl.lit(MEDIAN))
        .otherwise(pl.col("name").str.extract(r"^mean \|ln\| error, (.*), knobs")),
        knobs=pl.col("name").str.extract(r"knobs (\w+)$"),
    ).drop_nulls(["group", "knobs"])
    bars = pl.DataFrame([{"group": group, "knobs": knobs, "bar": bar} for (group, knobs), bar in BARS.items()])
    return found.join(bars, on=["group", "knobs"], how="left").with_columns(said=pl.col("knobs").replace(KNOB_WORDS))


def _errors_figure(found: pl.DataFrame, checks: pl.DataFrame) -> Figure:
    question = "Are the paper's ratios reproduced?"
    if found.is_empty():
        return Figure("errors", question, None, {}, (), "", NO_CHECKS)
    reading = (
        "Mean |ln(ours / published)| over the ten average ratios, Table 7 and Table 9, and the median of |ours / published - 1|. "
        "Three knobs are fitted on the 13 ratios called calibrated; the predicted ones never. Black: the bars that "
        "the study set itself before fitting."
    )
    answer = f"{errors_answer(found)}{orders_answer(checks)}"
    return Figure("errors", question, _errors_chart(found), {"": answer}, (), reading, NO_CHECKS)


def orders_answer(checks: pl.DataFrame) -> str:
    """Systems that the fit sets in another order than the model with nothing fitted, as the paper counts."""
    turned = checks.filter(pl.col("name").str.starts_with(TURNED)).sort("value", descending=True)
    said = [f"{row['name'].removeprefix(TURNED)} in {percent(row['value'], 0)} of cells" for row in turned.to_dicts()]
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


def _errors_chart(found: pl.DataFrame) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("errors"))
    names = ["predicted", "Table 7", "Table 9 at batch 16", "calibrated", "all", MEDIAN]
    groups = [name for name in names if name in set(found["group"])]
    labels = [KNOB_WORDS[name] for name in KNOBS]
    y = alt.Y("group:N", title=None, sort=groups, axis=alt.Axis(ticks=False, domain=False, labelFontSize=13, labelLimit=200))
    beside = alt.YOffset("said:N", scale=alt.Scale(domain=labels))
    hue = colour({KNOB_WORDS[name]: look for name, look in KNOBS.items()}, "said", labels, SQUARES)
    tips = [alt.Tooltip("name:N"), alt.Tooltip("value:Q", format=".4f"), alt.Tooltip("how:N"), alt.Tooltip("bar:Q")]
    bars = base.mark_bar().encode(alt.X("value:Q", title="error (1 = a factor of e)"), y, beside, hue, tooltip=tips)
    held = base.transform_filter("isValid(datum.bar)").mark_tick(color=theme.INK, thickness=3, size=18)
    drawn = alt.layer(bars, held.encode(alt.X("bar:Q"), y, beside)).properties(
        width=760, height=alt.Step(13, **{"for": "offset"})
    )
    return stacked([drawn], source("as the paper counts", reading=None))


def _sensitivity_figure(found: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "What does Kelle's gain rest on?"
    if found.is_empty():
        return Figure("sensitivity", question, None, {}, (), "", NOT_HERE)
    said = {name: sensitivity_answer(of) for name, of in by_reading(found)}
    reading = (
        "Kelle's mean energy gain over models and tasks with one thing changed and everything else, knobs too, as it is. Right: "
        "the error over all 26 ratios of the paper that the change brings, calibrated. DRAM at the constants of other papers; "
        "failures: all four intervals scaled so that the assumed retention curves lose one bit in a thousand; true GQA and the "
        "mean over the decode are what the paper's numbers do not have."
    )
    return Figure("sensitivity", question, _sensitivity_chart(found, start), said, ("reading",), reading, NOT_HERE)


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


def _sensitivity_chart(found: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("sensitivity"))
    own = found.filter(pl.col("reading") == start.get("reading", "")).sort("energy")
    rest = found.filter(~pl.col("setting").is_in(own["setting"].implode()))["setting"].unique().sort()
    names = [*own["setting"].to_list(), *rest.to_list()]
    axis = alt.Axis(ticks=False, domain=False, labelLimit=300)
    here = base.transform_filter(HERE)
    scale = alt.Scale(domain=names)
    y = alt.Y("setting:N", title=None, scale=scale, axis=axis)
    is_base = f"datum.setting === {theme.quote(AS_IS)}"
    tips = [
        alt.Tooltip("setting:N"),
        alt.Tooltip("energy:Q", format=".3f"),
        alt.Tooltip("change:Q", format="+.1%"),
        alt.Tooltip("cells:Q"),
        alt.Tooltip("error:Q", title="mean |ln| error", format=".3f"),
    ]
    hue = alt.when(is_base).then(alt.value(theme.VERMILLION)).otherwise(alt.value(theme.SKY))
    bars = here.mark_bar().encode(alt.X("energy:Q", title="mean energy gain over Original+SRAM (×)"), y, color=hue, tooltip=tips)
    level = here.transform_filter(is_base).mark_rule(color=theme.INK, strokeDash=[5, 4]).encode(alt.X("energy:Q"))
    words = here.transform_calculate(said="format(datum.energy, '.2f') + ' (' + format(datum.change, '+.0%') + ')'")
    text = words.mark_text(align="left", fontSize=12).encode(y, x=alt.value(448), text="said:N")
    left = alt.layer(bars, level, text).properties(width=440, height=alt.Step(22))
    bare = alt.Y("setting:N", title=None, sort=names, axis=alt.Axis(ticks=False, domain=False, labels=False))
    right = here.transform_filter("isValid(datum.error)").mark_bar(color=theme.QUIET)
    drawn = right.encode(
        alt.X("error:Q", title="mean |ln| error over the paper's ratios (1 = a factor of e)"), bare, tooltip=tips
    )
    both = alt.hconcat(left, drawn.properties(width=280, height=alt.Step(22)), spacing=110)
    return stacked([both], source(), params(start, "reading"))


def _derived(checks: pl.DataFrame) -> pl.DataFrame:
    """What is no error, sensitivity or order of systems, with words and the ratio to the paper's number, farthest first."""
    found = checks.filter(~pl.any_horizontal(pl.col("name").str.starts_with(word) for word in (MEAN, MEDIAN, ORDER)))
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


def _checks_figure(found: pl.DataFrame) -> Figure:
    question = "Where does the paper disagree with itself, or with what follows from it?"
    if found.is_empty():
        return Figure("checks", question, None, {}, (), "", NO_CHECKS)
    reading = (
        "Derived a second way from the paper's own constants. Beside: what the paper has for it, or what the last column names. "
        "Reported, not chased: no knob is turned for any of these."
    )
    return Figure("checks", question, _checks_chart(), {"": checks_answer(found)}, (), reading, NO_CHECKS)


def checks_answer(found: pl.DataFrame) -> str:
    """How many agree, and the farthest ones."""
    both = found.drop_nulls("ratio")
    near = both.filter((pl.col("ratio") - 1).abs() <= NEAR).height
    said = [f"{row['name']} ({row['ours']} against {row['theirs']})" for row in both.head(3).to_dicts()]
    far = f"; farthest off: {joined(said)}" if near < both.height else ""
    return f"{near} of {both.height} agree within {percent(NEAR, 0)}{far}."


def _checks_chart() -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("checks"))
    y = alt.Y(
        "name:N",
        title=None,
        sort=alt.EncodingSortField("order", op="min"),
        axis=alt.Axis(ticks=False, domain=False, grid=True, labelLimit=260),
    )
    scale = alt.Scale(type="log", nice=False, padding=14)
    ticks = alt.Axis(values=[0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10], format="~g")
    x = alt.X("ratio:Q", title="ours / the paper's (×, log scale)", scale=scale, axis=ticks)
    there = base.transform_filter("isValid(datum.ratio)")
    even = there.transform_aggregate(n="count()").transform_calculate(one="1")
    rule = even.mark_rule(color=theme.INK, strokeDash=[3, 3]).encode(alt.X("one:Q", scale=scale))
    marks = there.mark_point(size=70, color=theme.BLUE).encode(x, y, tooltip=[alt.Tooltip("name:N"), alt.Tooltip("how:N")])
    layers = [rule, marks]
    for field, title, at, align in (
        ("ours", "ours", 330, "right"), ("theirs", "paper", 425, "right"), ("how", "how", 445, "left")
    ):  # fmt: skip
        mark = {"align": align, "fontSize": 12, "color": theme.QUIET if field == "how" else theme.INK}
        layers.append(base.mark_text(**mark, limit=460).encode(y, x=alt.value(at), text=f"{field}:N"))
        head = base.transform_aggregate(n="count()").transform_calculate(title=theme.quote(title))
        layers.append(head.mark_text(fontWeight=600, **mark).encode(x=alt.value(at), y=alt.value(-10), text="title:N"))
    return stacked([alt.layer(*layers).properties(width=250, height=alt.Step(21))], source(reading=None))


def _area(chip: pl.DataFrame) -> pl.DataFrame:
    """A row per part and measure, by the reading whose knobs it has; of power, array and special functions are one part."""
    back = {knobs: reading for reading, knobs in OF_READING.items()}
    parts = pl.col("part").replace({name: words for name, (words, _) in CHIP.items()})
    joint = pl.col("part").replace({name: words for name, (_, words) in CHIP.items()})
    each = [
        chip.select(reading=pl.col("knobs").replace(back), measure=pl.lit(title), part=named, ours=name, theirs=f"{name}_paper")
        for name, title, named in (("area", AREA, parts), ("power", POWER, joint))
    ]
    total = [pl.when(pl.col(name).count() > 0).then(pl.sum(name)).alias(name) for name in ("ours", "theirs")]
    return pl.concat(each).group_by("reading", "measure", "part").agg(total).sort("reading", "measure", "part")


def _area_figure(area: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "What area and power do the parts have, beside the paper's shares?"
    if area.is_empty():
        return Figure("area", question, None, {}, (), "", NOT_HERE)
    said = {name: area_answer(of) for name, of in by_reading(area)}
    reading = (
        "Bars: by the constants of Table 1 and, for power, the energy of a step over its time; hollow: the paper's area of 9.5 "
        "mm2 and power of 6.52 W times its shares, and its DRAM. The power of array and special functions is the paper's, and "
        "ours by assumption. Power has no reading that is counted physically."
    )
    return Figure("area", question, _area_chart(area, start), said, ("reading",), reading, NOT_HERE)


def area_answer(found: pl.DataFrame) -> str:
    """Each part's power beside the paper's, and how near the areas are; rows of one reading."""
    both = found.drop_nulls(["ours", "theirs"])
    power = [
        f"{row['part']} {row['ours']:.2f} W ({row['theirs']:.2f})" for row in both.filter(pl.col("measure") == POWER).to_dicts()
    ]
    area = both.filter(pl.col("measure") == AREA)
    worst = float((area["ours"] / area["theirs"] - 1).abs().max() or 0.0)  # type: ignore[arg-type]
    return f"Areas are within {percent(worst, 0)} of the paper's shares. Power, in brackets the paper's: {joined(power)}."


def _area_chart(area: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    panels = []
    for n, title in enumerate((AREA, POWER)):
        base = alt.Chart(alt.NamedData("area")).transform_filter(f"{HERE} && datum.measure === {theme.quote(title)}")
        y = alt.Y("part:N", title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=200))
        x = alt.X("ours:Q", title=title)
        tips = [alt.Tooltip("part:N"), alt.Tooltip("ours:Q", format=".3f"), alt.Tooltip("theirs:Q", title="paper", format=".3f")]
        bars = base.mark_bar(height=16, color=(theme.GREEN, theme.ORANGE)[n]).encode(x, y, tooltip=tips)
        paper = hollow(base, 90, at=("theirs", "0")).encode(alt.X("at:Q"), y, color=alt.value(theme.INK), tooltip=tips)
        panels.append(alt.layer(bars, paper).properties(width=420, height=130))
    drawn = alt.hconcat(*panels, spacing=40)
    return stacked([drawn], source("hollow: the paper's"), params(start, "reading"))


def _claims_figure(stated: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "How near is every number to the paper's?"
    answered = stated.drop_nulls("replay")
    if answered.is_empty():
        return Figure("claims", question, None, {}, (), "", NO_CLAIMS)
    silent = stated.filter(pl.col("replay").is_null())
    said = {
        name: claims.answer(pl.concat([answered.filter(pl.col("mode") == name), silent]))
        for name in READINGS
        if name in set(answered["mode"])
    }
    reading = (
        "Fitted numbers prove nothing by being near. The same numbers under three readings: the menu chooses; a number that no "
        "knob and no way of counting changes stands in the first only. There are no seeds: the model is closed form. Tables 2 to "
        "6 are answers of models of billions of weights, which are not run here."
    )
    chart = stacked([claims_chart.ratios(HERE, spread=None)], source(), params(start, "reading"))
    return Figure("claims", question, chart, said, ("reading",), reading, NO_CLAIMS)

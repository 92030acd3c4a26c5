"""The validation page: how far the cost models are from measurements, on rows fitted, held out and of other devices."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import polars as pl

from tokentape.dashboards.answers import percent
from tokentape.dashboards.shell import Control, Figure, Page
from tokentape.dashboards.units import joined
from tokentape.dashboards.validation import charts as validation_charts
from tokentape.dashboards.validation import rows as validation_rows

FILE, TITLE = "validation.html", "Validation"
LEAD = (
    "How far the cost models are from measurements: GPU operators on the rows they were fitted on, on rows never seen, and on a "
    "device never seen; DRAM bandwidth in closed form against a cycle-level simulator."
)
VALIDATE = (
    "Run: tokentape hardware validate FILES --record, where FILES are measured tables, then tokentape load and tokentape site."
)
NO_OPERATORS = f"Nothing to draw: no comparison with measured GPU operators is recorded. {VALIDATE}"
NO_DRAM = (
    "Nothing to draw: no DRAM comparison is recorded. Run: tokentape hardware validate --record, then tokentape load and site."
)
BARS = "Bar: mean of |predicted / measured - 1|; white tick: median; circle: 95th percentile."
SPLITS = {"fitted": "rows fitted on", "held_out": "rows never seen", "other_device": "device never seen"}
OPERATORS = {"gemm": "GEMM", "moe": "MoE"}
POINTS_PER_PAGE_UNIT = 12  # points of each operator, split and device, per unit of the page's size


def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
    """The page over everything recorded; `size` says how many points of each operator, split and device it carries."""
    errors, regimes = (_worded(validation_rows.errors(connection, check)) for check in ("gpu_operator", "gpu_operator_regime"))
    points = _worded(validation_rows.points(connection, POINTS_PER_PAGE_UNIT * size))
    dram = validation_rows.dram(connection)
    choices = [{"operator": name} for name in points["operator"].unique(maintain_order=True)]
    data = {"errors": errors, "regimes": regimes, "points": points, "dram": dram}
    return Page(
        FILE,
        TITLE,
        LEAD,
        "page.html",
        figures=(*_operator_figures(errors, regimes, points, choices), _dram_figure(dram)),
        controls=(Control("operator", "Operator"),) if choices else (),
        choices=tuple(choices),
        data={name: frame for name, frame in data.items() if not frame.is_empty()},
    )


def _operator_figures(
    errors: pl.DataFrame, regimes: pl.DataFrame, points: pl.DataFrame, choices: list[dict[str, str]]
) -> Iterator[Figure]:
    """Errors of all operators, then the chosen one's points and regimes."""
    start = choices[0] if choices else {}
    setups = errors["setup"].unique().sort().to_list()
    splits = [word for word in SPLITS.values() if word in errors["split"]]
    yield Figure(
        "errors",
        "How far off are predicted operator times?",
        None if errors.is_empty() else validation_charts.errors(setups, splits, errors["p95"].max()),
        {"": errors_answer(errors)},
        (),
        f"{BARS} Every fifth distinct shape is held out of a second fit: those are the rows never seen. A device never seen is "
        "predicted with the constants of the other one and its own datasheet.",
        NO_OPERATORS,
    )
    by_operator = errors.partition_by("operator", as_dict=True)
    regimes_of = {
        str(key[0]): group["regime"].unique().sort().to_list() for key, group in points.group_by("operator", maintain_order=True)
    }
    yield Figure(
        "points",
        "Where does the model miss?",
        None if points.is_empty() else validation_charts.scatter(start, splits, regimes_of),
        {
            c["operator"]: spread_answer(c["operator"], by_operator[c["operator"],])
            for c in choices
            if (c["operator"],) in by_operator
        },
        ("operator",),
        "An even sample of the measurements. On the solid line prediction and measurement agree; dashed: "
        f"{percent(validation_charts.BAND, 0)} off. Above the line the model is too slow.",
        NO_OPERATORS,
    )
    longest = dict(regimes.group_by("operator", maintain_order=True).agg(pl.max("p95")).iter_rows())
    yield Figure(
        "regimes",
        "In which regime is it off?",
        None if regimes.is_empty() else validation_charts.regimes(start, setups, splits, longest),
        {
            str(key[0]): regimes_answer(str(key[0]), group)
            for key, group in regimes.partition_by("operator", as_dict=True).items()
        },
        ("operator",),
        f"{BARS} A regime is the term of the model that binds.",
        NO_OPERATORS,
    )


def _dram_figure(dram: pl.DataFrame) -> Figure:
    presets = dram["preset"].unique().sort().to_list()
    return Figure(
        "dram",
        "How good is DRAM bandwidth in closed form?",
        None if dram.is_empty() else validation_charts.dram(presets),
        {"": dram_answer(dram)} if not dram.is_empty() else {},
        (),
        "Left: each anchor, on the line if form and simulator agree. Right: predicted / measured - 1, blue where the form is too "
        "pessimistic, red where too optimistic; pale cells lie outside what the form covers.",
        NO_DRAM,
    )


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
            f"the form is off by {percent(inside['size'].mean())} on average over the {inside.height} anchors that it covers, "
            f"at most by {percent(worst['size'])} ({worst['pattern']} on {worst['preset']})"
        )
    for worst in outside.head(1).to_dicts():
        said += "; " if not inside.is_empty() else "the form covers none of the anchors; "
        said += f"outside, by up to {percent(worst['size'], 0)} ({worst['pattern']} on {worst['preset']})"
    return f"{said}."


def _unseen(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of the split that says most: held out, else another device, else fitted."""
    order = {SPLITS[split]: n for n, split in enumerate(("held_out", "other_device", "fitted"))}
    place = pl.col("split").replace_strict(order, default=len(order))
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

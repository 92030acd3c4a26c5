"""The CXL GPU-NDP page on bars: numbers as they are written."""

import polars as pl

from tokentape.dashboards.cxl_ndp.words import VERDICTS
from tokentape.dashboards.engine import Ask, some
from tokentape.dashboards.units import quantity

UNITS = {"percentage points": "points", "percentage_points": "points", "1e9": "billion"}


def checks(ask: Ask) -> pl.DataFrame:
    """With what has a bar or a published number, missed ones first."""
    found = some(ask("checks"))
    return found.with_columns(pl.DataFrame([_said(row) for row in found.to_dicts()])).with_columns(order=pl.int_range(pl.len()))


def _said(row: dict[str, object]) -> dict[str, str]:
    """Numbers as they are written, and where a value lies within its bar: 0 at its least, 1 at its most."""
    unit = UNITS.get(str(row["unit"]), str(row["unit"]))

    def written(value: object) -> str:
        return "" if value is None else f"{value:.4g} ×" if unit == "x" else quantity(float(value), unit)  # type: ignore[arg-type]

    low, high = written(row["bar_low"]), written(row["bar_high"])
    ends = f"{low} to {high}" if low and high else f"≥ {low}" if low else f"≤ {high}" if high else ""
    return {
        "value_said": written(row["value"]),
        "published_said": written(row["published"]),
        "bar_said": ends,
        "verdict_said": VERDICTS[str(row["verdict"])][0],
    }

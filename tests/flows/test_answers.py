"""Answers by pattern: which rows a claim is read from, what is held against what, and with which band."""

from pathlib import Path
from typing import Any

import pytest
from readme_errors import AGAIN, stands

from tokentape.flows import error_table
from tokentape.flows.answers import Answer, answered, bars_held
from tokentape.warehouse.tape import Store

MIGRATION = "cxl_ndp/sec-1/migration_share_of_block_time/min/expert-moved-cpu-to-gpu-cited"


def point(system: str, metric: str, value: float, **more: Any) -> dict[str, Any]:
    return {"system": system, "metric": metric, "value": value, "low": value - 1.0, "high": value + 1.0, "cell": 0} | more


ROWS = [
    point("A", "step_s", 4.0),
    point("A", "step_s", 6.0, cell=1),
    point("B", "step_s", 2.0),
    point("B", "step_s", 12.0, cell=1),
]


def asked(**fields: Any) -> list[dict[str, Any]]:
    given = {"claim": "sec-1/migration_share_of_block_time/{end}/*", "of": "cxl_ndp_points", "how": "{end} of {n}"} | fields
    return answered([Answer.model_validate(given)], "cxl_ndp", {"cxl_ndp_points": ROWS})


@pytest.mark.slow
@pytest.mark.parametrize("system", ["slicemoe", "cxl_ndp"])
def test_the_errors_of_the_readme_are_those_of_the_study(system: str, tmp_path: Path) -> None:
    made = error_table.answers(system, Store(str(tmp_path / "tape")))
    assert error_table.lines(made) == stands(system), AGAIN


@pytest.mark.parametrize(
    ("fields", "value", "ends"),
    [
        ({"where": {"system": "A"}, "pick": "{end}"}, 4.0, (3.0, 5.0)),
        ({"where": {"system": ["A", "B"]}, "pick": "max"}, 12.0, (11.0, 13.0)),
        ({"where": {"system": "A"}, "pick": "least"}, 4.0, (3.0, 7.0)),
        ({"where": {"system": "A"}, "pick": "mean"}, 5.0, (None, None)),
        ({"where": {"system": "A", "cell": 0}, "over": {"system": "B"}, "is_banded": True}, 2.0, (1.0, 5.0)),
        ({"where": {"system": "A", "cell": 0}, "over": {"system": "B"}, "form": "percent more"}, 100.0, (None, None)),
        ({"where": {"system": "A"}, "over": {"system": "B"}, "cells": ["cell"], "pick": "mean"}, 1.25, (None, None)),
        (
            {"where": {"system": "A"}, "over": {"system": "B"}, "cells": ["cell"], "form": "percent less", "pick": "max"},
            50.0,
            (None,) * 2,
        ),
        ({"where": {"system": "A"}, "value": "value / high", "pick": "max"}, 6.0 / 7.0, (None, None)),
    ],
)
def test_what_is_picked_and_held_against_what(fields: dict[str, Any], value: float, ends: tuple[float | None, ...]) -> None:
    (row,) = asked(**fields)
    assert (row["claim_id"], row["mode"]) == (MIGRATION, "paper")
    assert (row["value"], row["low"], row["high"]) == (pytest.approx(value), *ends)
    assert row["how"].startswith("min of ")


def test_modes_are_readings_of_their_own_and_nothing_is_said_where_no_row_fits() -> None:
    modes = {"one": {"cell": 0}, "other": {"cell": 1}, "none": {"cell": 2}}
    found = {row["mode"]: row["value"] for row in asked(where={"system": "B"}, modes=modes)}
    assert found == {"one": 2.0, "other": 12.0}


def test_what_cannot_be_answered_is_named() -> None:
    with pytest.raises(ValueError, match=r"2 rows of cxl_ndp_points fit; say which to pick"):
        asked(where={"system": "A"})
    with pytest.raises(ValueError, match=r"no claim is named cxl_ndp/sec-99/"):
        asked(claim="sec-99/*")


def test_bars_that_do_not_hold_are_named() -> None:
    rows = [
        {"check": name, "value": value, "bar_low": low, "bar_high": 2.0}
        for name, value, low in (("a", 1, 0), ("b", 3, 0), ("c", 9, None))
    ]
    assert bars_held(rows) == "1 of 2 bars held; not: b"

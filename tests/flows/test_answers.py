"""Answers by queries: what they ask, and what is refused; bars."""

from pathlib import Path
from typing import Any

import pytest
from readme_errors import AGAIN, stands

from bench.docs import errors as error_table
from tokentape.flows.answers import Query, answered, bars_held
from tokentape.warehouse.tape import Store

MIGRATION = "cxl_ndp/sec-1/migration_share_of_block_time/min/expert-moved-cpu-to-gpu-cited"


ROWS = [{"system": "A", "value": 4.0}, {"system": "B", "value": 6.0}]


def asked(text: str) -> list[dict[str, Any]]:
    return answered([Query(sql=text)], "cxl_ndp", {"points": ROWS, "cxl_ndp_similarity": []})


@pytest.mark.slow
@pytest.mark.parametrize("system", ["slicemoe", "cxl_ndp", "offloaders"])
def test_the_errors_of_the_readme_are_those_of_the_study(system: str, tmp_path: Path) -> None:
    made = error_table.answers(system, Store(str(tmp_path / "tape")))
    assert error_table.lines(made) == stands(system), AGAIN


def test_what_queries_ask() -> None:
    """Rows in their order, the paper's claims, and views that have no rows yet; columns that may be null are."""
    (row,) = asked("""
        from points p join claims on metric = 'migration_share_of_block_time'
        select claim_id, 'paper' as mode, p.value, 'row ' || p.row_at as how
        where system = 'B' and not exists (from cxl_ndp_similarity where own_cosine > 0)
    """)
    assert row == {"claim_id": MIGRATION, "mode": "paper", "value": 6.0, "how": "row 1", "low": None, "high": None}


@pytest.mark.parametrize(("claim", "why"), [(MIGRATION, "a second row; say which to pick"), ("x", "no claim of this name")])
def test_what_cannot_be_answered_is_named(claim: str, why: str) -> None:
    with pytest.raises(ValueError, match=rf"\[\[answers\]\] of cxl_ndp: {claim}, mode paper: {why}"):
        asked(f"from points select '{claim}' as claim_id, 'paper' as mode, value, '' as how")


def test_bars_that_do_not_hold_are_named() -> None:
    rows = [
        {"check": name, "value": value, "bar_low": low, "bar_high": 2.0}
        for name, value, low in (("a", 1, 0), ("b", 3, 0), ("c", 9, None))
    ]
    assert bars_held(rows) == "1 of 2 bars held; not: b"

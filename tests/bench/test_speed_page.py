"""The table of docs/speed.md: a row per number, and no number that no run made."""

from bench.docs.speed import figures


def test_numbers_and_conditions_are_rows_and_quotations_are_not():
    report = {"rate": 1234567.8, "ratio": 2.345, "conditions": "one core", "published": {"vidur": 465}}
    assert figures(report).splitlines()[2:] == ["| `rate` | 1,234,568 |", "| `ratio` | 2.35 |", "| `conditions` | one core |"]

"""What a question answers does not hang on the order in which DuckDB's threads bring its rows.

A mean of floating-point numbers has another last digit in another order, and of two rows that tie the first to come is taken.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(path for room in ("warehouse", "dashboards", "flows") for path in ROOT.glob(f"{room}/**/*.sql"))
EXACT = re.compile(r"n_lookups|n_hits|backing_bytes|\(.*\)::int")  # integers add up to the same in any order
MEAN = re.compile(r"\bavg\(((?:[^()]|\([^()]*\))*)\)")
TIES = re.compile(r"\b(?:arg_max|arg_min|max_by|min_by)\(")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_means_say_their_order_and_ties_are_broken(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    unordered = [of for of in MEAN.findall(text) if " order by " not in of and not EXACT.fullmatch(of)]
    assert not unordered, f"avg({unordered[0]}): say in which order, `avg(x order by seed)`"
    assert not TIES.search(text), "which of two equal rows? `first(x order by y desc, key)`"

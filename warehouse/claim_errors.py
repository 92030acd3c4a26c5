"""The papers' numbers beside what the studies answer: the rows of view `claim_answers`, and how far off they are together."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokentape.warehouse.in_memory import in_memory
from tokentape.warehouse.sql import named
from tokentape.warehouse.tables import schema

COMPARED, BY_SYSTEM = (
    (Path(__file__).parent / f"{name}.sql").read_text(encoding="utf-8") for name in ("claim_answers", "claims_by_system")
)
POINTS = "percent"  # the unit whose errors are in points
AS_THE_PAPER = "paper"  # of answers.mode: counted as the paper counts
Row = dict[str, Any]


def compared(claims: pa.Table, answers: Sequence[Mapping[str, Any]]) -> tuple[list[Row], list[Row]]:
    """Rows of view `claim_answers`, one per claim and answer, claims without an answer too; and of query `claim_errors`."""
    rows, errors = _asked(claims, answers, "from claim_answers", "from claim_errors")
    return rows, errors


def by_system(claims: pa.Table, answers: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One row per system that was studied; see BY_SYSTEM."""
    (rows,) = _asked(claims, answers, BY_SYSTEM)
    return rows


def _asked(claims: pa.Table, answers: Sequence[Mapping[str, Any]], *questions: str) -> list[list[Row]]:
    with in_memory() as connection:
        connection.register("claims", claims)
        connection.register("answers", pa.Table.from_pylist([dict(row) for row in answers], schema=schema("answers")))
        views = {"claim_answers": f"from ({COMPARED}) order by claim_id, mode", "claim_errors": named()["claim_errors"].sql}
        for name, sql in views.items():
            connection.register(name, connection.sql(sql).to_arrow_table())
        return [connection.sql(question).to_arrow_table().to_pylist() for question in questions]


def signed(error: float, unit: str = "") -> str:
    """An error of view `claim_answers` as it is said: with its sign, of a percentage in points; a zero has no sign."""
    text = f"{100 * error:+.1f}"
    return f"{'0.0' if text in ('+0.0', '-0.0') else text} {'points' if unit == POINTS else '%'}"

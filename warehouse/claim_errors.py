"""The papers' numbers beside what the studies answer: the rows of view `claim_answers`, and how far off they are together."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokentape.warehouse.in_memory import in_memory
from tokentape.warehouse.sql import named
from tokentape.warehouse.tables import schema

COMPARED = (Path(__file__).parent / "claim_answers.sql").read_text(encoding="utf-8")
POINTS = "percent"  # the unit whose errors are in points
AS_THE_PAPER = "paper"  # of answers.mode: counted as the paper counts
Row = dict[str, Any]


def compared(claims: pa.Table, answers: Sequence[Mapping[str, Any]]) -> tuple[list[Row], list[Row]]:
    """Rows of view `claim_answers`, one per claim and answer, claims without an answer too; and of query `claim_errors`."""
    with in_memory() as connection:
        connection.register("claims", claims)
        connection.register("answers", pa.Table.from_pylist([dict(row) for row in answers], schema=schema("answers")))
        found = connection.sql(f"from ({COMPARED}) order by claim_id, mode").to_arrow_table()
        connection.register("claim_answers", found)
        return found.to_pylist(), connection.sql(named()["claim_errors"].sql).to_arrow_table().to_pylist()


def signed(error: float, unit: str = "") -> str:
    """An error of view `claim_answers` as it is said: with its sign, of a percentage in points; a zero has no sign."""
    text = f"{100 * error:+.1f}"
    return f"{'0.0' if text in ('+0.0', '-0.0') else text} {'points' if unit == POINTS else '%'}"


def by_system(found: Sequence[Mapping[str, Any]], errors: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One row per system that was studied: rows fitted and predicted, their errors, the worst predicted one. As the paper counts.

    found, errors: of compared(). worst_row: metric, model and setting of the claim; null errors where no row is predicted.
    """
    said = {row["claim_id"]: row for row in found}
    of = {(row["system"], row["role"]): row for row in errors if row["mode"] == AS_THE_PAPER}
    rows = []
    for system in sorted({row["system"] for row in errors}):
        fitted, predicted = (of.get((system, role), {}) for role in ("calibrate", "predict"))
        worst = said.get(predicted.get("worst_claim_id"), {})
        rows.append(
            {
                "system": system,
                "n_fitted": fitted.get("n_values", 0),
                "fitted_median": fitted.get("median_error"),
                "fitted_mean": fitted.get("mean_error"),
                "n_predicted": predicted.get("n_values", 0),
                "median": predicted.get("median_error"),
                "mean": predicted.get("mean_error"),
                "worst": predicted.get("worst_error"),
                "worst_unit": worst.get("unit"),
                "worst_row": ", ".join(worst[name] for name in ("metric", "model", "setting") if worst.get(name)),
            }
        )
    return rows

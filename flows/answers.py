"""What a study's rows say of a paper's numbers: rows of view `answers`, by the `[[answers]]` of its file; bars that hold."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import polars as pl

from tokentape.flows.study_file import Made, Part
from tokentape.hw.spec import HardwareSpec
from tokentape.warehouse.in_memory import in_memory
from tokentape.warehouse.load import claims
from tokentape.warehouse.tables import TABLES, schema

Row = dict[str, Any]


@lru_cache
def stated(paper: str) -> dict[str, Row]:
    """The paper's claims by id."""
    return {row["claim_id"]: row for row in claims().to_pylist() if row["paper"] == paper}


def answer(claim_id: str, value: float, how: str, mode: str = "paper") -> Row:
    """A row of view `answers`, without a band."""
    return {"claim_id": claim_id, "mode": mode, "value": float(value), "low": None, "high": None, "how": how}


class Query(Part):
    """An entry of `[[checks]]` or `[[answers]]`: a query; its rows are those of the view, without columns that may be null."""

    sql: str


def answered(entries: Sequence[Query], paper: str, made: Made) -> list[Row]:
    """Rows of view `answers`. made: rows by view, and what else queries ask. Raises ValueError for an answer to no claim, or two
    to one."""
    found = {}
    for row in queried(entries, paper, made, "answers"):
        key = row["claim_id"], row["mode"]
        if key in found or key[0] not in stated(paper):
            why = "a second row; say which to pick" if key in found else "no claim of this name"
            raise ValueError(f"[[answers]] of {paper}: {key[0]}, mode {key[1]}: {why}")
        found[key] = row
    return list(found.values())


def bars_held(checks: Iterable[Mapping[str, Any]], name: str = "check") -> str:
    """How many bars hold, and which do not. checks: rows of which some have bars; name: the column that says what of."""
    held = [row for row in checks if row["bar_low"] is not None]
    missed = [row[name] for row in held if not row["bar_low"] <= row["value"] <= row["bar_high"]]
    return f"{len(held) - len(missed)} of {len(held)} bars held" + (f"; not: {', '.join(missed)}" if missed else "")


def queried(entries: Sequence[Query], paper: str, made: Made, view: str = "") -> list[Row]:
    """Rows of a view, or of none, as queries ask them of `made`, tables of rows by name; where a row stands is its column
    row_at. `claims`: the paper's."""
    if not entries:
        return []
    with in_memory() as connection:
        for name, rows in {**made, "claims": list(stated(paper).values())}.items():
            table = pl.DataFrame(rows, infer_schema_length=None).with_row_index("row_at").to_arrow()
            connection.register(name, table if rows or name not in TABLES else schema(name).empty_table())
        found = (row for one in entries for row in connection.sql(one.sql).to_arrow_table().to_pylist())
        return [dict.fromkeys(TABLES[view].nullable if view else ()) | row for row in found]


def numbers(machines: list[HardwareSpec]) -> list[Row]:
    """Every number of machines by its place in the file; of the engine that experts run on also as `compute`."""
    return [
        {"hardware": machine.name, "key": key, "value": number.value}
        for machine in {machine.name: machine for machine in machines}.values()
        for of, number in machine.numbers()
        for key in dict.fromkeys((of, of.replace(f"engines.{machine.engine}.", "compute.")))
    ]

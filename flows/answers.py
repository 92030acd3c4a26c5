"""What a study's rows say of a paper's numbers: rows of view `answers`, by the `[[answers]]` of its file; bars that hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import polars as pl
from pydantic import Field

from tokentape.flows.study_file import Made, Part
from tokentape.hw.spec import HardwareSpec
from tokentape.warehouse.load import claims
from tokentape.warehouse.tables import TABLES, VIEWS, schema

Row = dict[str, Any]
Modes = Mapping[str, Mapping[str, Any]]  # of answers, with what holds of the rows that they are read from
PAPER_ALONE: Modes = {"paper": {}}
NULL = "null"  # in a `where`: the column has no value
FORMS: dict[str, Callable[[float, float], float]] = {
    "ratio": lambda this, other: this / other,
    "percent": lambda this, other: 100.0 * this / other,
    "percent more": lambda this, other: 100.0 * (this / other - 1.0),
    "percent less": lambda this, other: 100.0 * (1.0 - this / other),
}


@lru_cache
def stated(paper: str) -> dict[str, Row]:
    """The paper's claims by id."""
    return {row["claim_id"]: row for row in claims().to_pylist() if row["paper"] == paper}


def answer(claim_id: str, value: float, how: str, mode: str = "paper", ends: Sequence[float | None] = (None, None)) -> Row:
    """A row of view `answers`. ends: of the band, in any order; none where one is missing."""
    low, high = (None, None) if None in ends else sorted(end for end in ends if end is not None)
    return {"claim_id": claim_id, "mode": mode, "value": float(value), "low": low, "high": high, "how": how}


class Answer(Part):
    """An entry of `[[answers]]`: what rows of a view say of the claims of a pattern.

    claim: pattern of ids without the paper; `{name}` stands for a part, which may be used in braces elsewhere. where: columns by
    value, or by several. value: a column, or `one / other`. over: where it differs in the rows that these are held against, cell
    by cell of the columns `cells`, as `form` says. pick: which of several values, `min` and `max` with the band of their row,
    `least` with that of all, `mean` with none; `one` takes but one. is_banded: what is held against another has a band too, the
    low of one over the high of the other. modes: of the answers, with what else holds of their rows; by default the study's. how:
    its words, with columns of the row and `n` values in braces.
    """

    claim: str
    of: str
    where: dict[str, Any] = Field(default={})
    value: str = "value"
    over: dict[str, Any] = Field(default={})
    cells: tuple[str, ...] = ()
    form: Literal["ratio", "percent", "percent more", "percent less"] = "ratio"
    pick: str = "one"
    is_banded: bool = False
    modes: Modes | None = None
    how: str

    def claims(self, paper: str) -> dict[str, dict[str, str]]:
        """Ids of the claims, with the parts that the pattern names. Raises ValueError where there is none."""
        pattern = re.escape(f"{paper}/{self.claim}").replace(r"\*", ".*")
        named = re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]*?)", pattern))
        found = {claim_id: match.groupdict() for claim_id in stated(paper) if (match := named.fullmatch(claim_id))}
        if not found:
            raise ValueError(f"[[answers]]: no claim is named {paper}/{self.claim}")
        return found

    def rows(self, claim_id: str, named: Mapping[str, str], made: Made, modes: Modes) -> Iterator[Row]:
        """Rows of view `answers`, one for each mode in which there is a value."""
        for mode, more in (self.modes or modes).items():
            where = _filled({**self.where, **more}, named)
            found = self._values(made[self.of], where)
            others = self._values(made[self.of], where | _filled(self.over, named))
            pairs = [(*of, *(others[cell] if self.over else (1.0, {}))) for cell, of in found.items() if cell in others]
            values = [
                (FORMS[self.form](value, divisor), row | {"ends": self._ends(row, other)}) for value, row, divisor, other in pairs
            ]
            if values:
                yield self._answer(claim_id, mode, values, named)

    def _values(self, rows: Iterable[Mapping[str, Any]], where: Mapping[str, Any]) -> dict[Any, tuple[float, Row]]:
        """By cell; without `cells` each row is one, and only one row is held against another."""
        column, _, divisor = self.value.partition(" / ")
        fitting = (row for row in rows if all(_holds(row[name], wanted) for name, wanted in where.items()))
        found = {}
        for i, row in enumerate(fitting):
            if row[column] is not None:
                cell = tuple(row[name] for name in self.cells) if self.cells else i
                found[cell] = (row[column] / row[divisor] if divisor else row[column], dict(row))
        return found

    def _ends(self, row: Row, other: Row) -> tuple[float | None, float | None]:
        if not self.over:
            return (row["low"], row["high"]) if self.value == (VIEWS[self.of].band or "value") else (None, None)
        if not self.is_banded:
            return None, None
        return FORMS[self.form](row["low"], other["high"]), FORMS[self.form](row["high"], other["low"])

    def _answer(self, claim_id: str, mode: str, values: list[tuple[float, Row]], named: Mapping[str, str]) -> Row:
        pick, by_value = self.pick.format(**named), sorted(values, key=lambda one: one[0])
        if pick == "one" and len(values) > 1:
            raise ValueError(f"[[answers]] {self.claim}: {len(values)} rows of {self.of} fit; say which to pick")
        value, row = by_value[-1] if pick == "max" else by_value[0]
        if pick == "mean":
            value = sum(one for one, _ in values) / len(values)
        ends = (None, None) if pick == "mean" else row["ends"]
        if pick == "least":
            ends = min(row["low"] for _, row in values), max(row["high"] for _, row in values)
        return answer(claim_id, value, self.how.format(**row | dict(named) | {"n": len(values)}), mode, ends)


class Query(Part):
    """An entry of `[[checks]]` or `[[answers]]`: a query; its rows are those of the view, without columns that may be null."""

    sql: str


def answered(entries: Iterable[Answer | Query], paper: str, made: Made, modes: Modes = PAPER_ALONE) -> list[Row]:
    """Rows of view `answers`. made: rows by view, and what else queries ask."""
    entries = list(entries)
    claimed = ((one, *claim) for one in entries if isinstance(one, Answer) for claim in one.claims(paper).items())
    found = [row for one, claim_id, named in claimed for row in one.rows(claim_id, named, made, modes)]
    return found + queried([one for one in entries if isinstance(one, Query)], paper, made, "answers")


def _filled(where: Mapping[str, Any], named: Mapping[str, str]) -> dict[str, Any]:
    return {column: value.format(**named) if isinstance(value, str) else value for column, value in where.items()}


def _holds(value: Any, wanted: Any) -> bool:
    if wanted == NULL:
        return value is None
    return value in wanted if isinstance(wanted, (list, tuple)) else bool(value == wanted)


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
    import duckdb  # only where it is asked

    with duckdb.connect(config={"threads": 1}) as connection:  # so that rows come in one order
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

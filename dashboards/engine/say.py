"""Sentences: the `answer` of a figure's file is a Jinja template over the rows that the chart shows, a sentence per selection."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import polars as pl

from tokentape.dashboards import units

Row = dict[str, Any]


class Rows:
    """Rows as a template asks for them. Conditions and values are SQL expressions over the columns: "phi_sd / phi_ar"."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame = frame

    def __len__(self) -> int:
        return self.frame.height

    def _of(self, text: str) -> pl.Expr:
        return pl.col(text) if text in self.frame.columns else expression(text)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.frame.to_dicts())

    @property
    def n(self) -> int:
        return self.frame.height

    @property
    def first(self) -> Row:
        return self.frame.row(0, named=True)

    @property
    def last(self) -> Row:
        return self.frame.row(-1, named=True)

    @property
    def rest(self) -> Rows:
        """All but the first."""
        return Rows(self.frame[1:])

    @property
    def ends(self) -> Rows:
        """The first and the last, or the one there is."""
        return Rows(self.frame[[0, -1]] if self.n > 1 else self.frame)

    def where(self, text: str = "", **same: Any) -> Rows:
        """Rows that fit the condition and have these values."""
        tests = ([expression(text)] if text else []) + [pl.col(name) == value for name, value in same.items()]
        return Rows(self.frame.filter(tests))

    def among(self, column: str, values: Sequence[Any]) -> Rows:
        return Rows(self.frame.filter(pl.col(column).is_in(list(values))))

    def without(self, **same: Any) -> Rows:
        return Rows(self.frame.filter(pl.col(name) != value for name, value in same.items()))

    def head(self, n: int) -> Rows:
        return Rows(self.frame.head(n))

    def tail(self, n: int) -> Rows:
        return Rows(self.frame.tail(n))

    def once(self, column: str) -> Rows:
        """The first row of each value."""
        return Rows(self.frame.unique(column, keep="first", maintain_order=True))

    def known(self, column: str, table: Iterable[str]) -> Rows:
        """In the order of the table, others behind by name."""
        held, turns = self.frame[column].to_list(), {name: n for n, name in enumerate(table)}
        return Rows(self.frame[sorted(range(self.n), key=lambda n: (turns.get(held[n], len(turns)), held[n]))])

    def outer(self, column: str) -> Rows:
        """Rows at the least and at the most value, in this order."""
        ends = (pl.min(column), pl.max(column))
        return Rows(self.frame.filter(pl.any_horizontal(pl.col(column) == end for end in ends))).sort(column)

    def most(self, column: str, *ties: str, digits: int = 4) -> Row:
        """The row with the most; what is alike to so many digits goes by other columns."""
        return Rows(self.frame.with_columns(_size=pl.col(column).round_sig_figs(digits))).sort("-_size", *ties).first

    def beside(self, other: Rows, *on: str) -> Rows:
        """Pairs of rows that agree in these columns: the other's columns end in _other."""
        return Rows(self.frame.join(other.frame, on=list(on), suffix="_other", maintain_order="left"))

    def like(self, row: Rows | Row, *columns: str) -> Rows:
        """Rows that have in these columns what the row has, or all of the rows."""
        of = row.first if isinstance(row, Rows) else row
        return self.where(**{name: of[name] for name in columns})

    def sort(self, *order: str) -> Rows:
        """By expressions, "-gain": the most first."""
        of, turned = [self._of(text.removeprefix("-")) for text in order], [text.startswith("-") for text in order]
        return Rows(self.frame.sort(of, descending=turned, nulls_last=True, maintain_order=True))

    def add(self, **values: str) -> Rows:
        return Rows(self.frame.with_columns(expression(text).alias(name) for name, text in values.items()))

    def only(self, *columns: str, **values: str) -> Rows:
        return Rows(self.frame.select(*columns, **{name: self._of(text) for name, text in values.items()}))

    def cells(self, values: str, place: str, *within: str) -> Rows:
        """A row for each value of a column of lists; `place`: its place among those of the same group."""
        each = self.frame.explode(values)
        return Rows(each.with_columns(pl.int_range(pl.len()).over(within).alias(place)))

    def by(self, *columns: str) -> list[tuple[Any, Rows]]:
        """A pair of value and rows for each value of a column, as found; of several columns, values of all."""
        grouped = self.frame.group_by(columns, maintain_order=True)
        return [(key if len(columns) > 1 else key[0], Rows(of)) for key, of in grouped]

    def per(self, *columns: str, **values: str) -> Rows:
        """A row for each value of the columns, with what the expressions make of its rows: "max(gain)"."""
        made = (expression(text).alias(name) for name, text in values.items())
        return Rows(self.frame.group_by(columns, maintain_order=True).agg(*made))

    def all(self, value: str) -> list[Any]:
        """Values of an expression, those that are there."""
        return self.frame.select(self._of(value).alias("of"))["of"].drop_nulls().to_list()

    def steps(self, value: str, *within: str) -> list[Any]:
        """From each row to the next of the same group."""
        return self.frame.select(pl.col(value).diff().over(within)).to_series().drop_nulls().to_list()

    def changes(self, *values: str) -> Rows:
        """From each row to the next."""
        return Rows(self.frame.select(pl.col(name).diff() for name in values)[1:])

    def names(self, column: str) -> list[Any]:
        """What a column has, each once."""
        return self.frame[column].drop_nulls().unique(maintain_order=True).to_list()

    def dict(self, key: str, value: str) -> Row:
        return dict(self.frame.select(key, value).iter_rows())

    def __call__(self, value: str) -> Any:
        """One value over all rows: "avg(abs(error))"."""
        return self.frame.select(self._of(value)).item()

    def say(self, text: str) -> list[str]:
        """Each row in words: "{system} {gain:times}", with names of FORMS or Python's formats."""
        return [WORDING.vformat(text, (), row) for row in self]


expression = cache(pl.sql_expr)
FORMS: dict[str, Callable[..., str]] = {
    **{name: getattr(units, name) for name in ("percent", "quantity", "share", "signed", "significant")},
    "times": lambda value, digits=2: f"{value:.{digits}f} ×",
}


class Wording(string.Formatter):
    """Fields as in "{share:percent 0}", "{energy:quantity J}" or "{batch:,}"."""

    def format_field(self, value: Any, format_spec: str) -> str:
        name, _, more = format_spec.partition(" ")
        if name not in FORMS:
            return format(value, format_spec)
        return str(FORMS[name](value, *([int(more) if more.isdigit() else more] if more else [])))


WORDING = Wording()
FILTERS: dict[str, Callable[..., Any]] = {
    **FORMS,
    "ends": lambda items: [*items[:1], *items[1:][-1:]],
    "joined": lambda words: units.joined([str(word) for word in words]),
    "form": lambda value, form: format(value, form),
    "capital": lambda text: text.strip()[:1].upper() + text.strip()[1:],
    "commas": lambda loop: "" if loop.last else " and " if loop.revindex == 2 else ", ",  # behind an item of a loop
    "usual": lambda items: max(dict.fromkeys(items), key=items.count),
    "then": lambda loop, text: "" if loop.last else text,
}


@cache
def template(text: str) -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parents[1])  # a template may take in others by their path in dashboards/
    made = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, extensions=["jinja2.ext.do"])
    made.filters |= FILTERS
    made.tests["search"] = lambda text, pattern: re.search(pattern, text) is not None
    return made.from_string(text)


def filled(text: str, names: Mapping[str, Any]) -> str:
    """The template filled in, on one line, without a blank before what ends a clause."""
    told = " ".join(template(text).render(names).split())
    return re.sub(r"(?<=\() | (?=[.,;:)])", "", told)

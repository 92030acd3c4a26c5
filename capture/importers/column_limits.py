"""What no importer believes of a table's column: numbers that are none, or that no trace has. As limits.py, on Polars columns.

Apart from it because responses of a server are imported without Polars, which takes a sixth of a second to load.
"""

from collections.abc import Callable
from typing import Any

import polars as pl

from tokentape.capture.importers.limits import MAX_SPAN_S, MAX_TIME_S, U32, BadImport, shown

Row = Callable[[int], str]  # where the i-th value of a column stands


def span(seconds: pl.Series, where: str) -> pl.Series:
    """Finite times, from the earliest on. Raises BadImport if they lie further apart, or later, than a trace can."""
    since = seconds - seconds.min()
    longest, latest = since.max(), seconds.max()
    if isinstance(longest, float) and not longest <= MAX_SPAN_S:
        raise BadImport(f"{where}: arrivals lie {longest:.3g} s apart, more than 30 years; give them in seconds")
    if isinstance(latest, float) and latest > MAX_TIME_S:
        raise BadImport(f"{where}: an arrival is at {latest:.4g} s, past the year 5000: of another unit? Give them in seconds")
    return since


def whole_column(column: pl.Series, where: Row, most: int = U32, from_text: bool = True) -> pl.Series:
    """Whole numbers 0..most from integers, whole floats (pandas writes them) or a CSV's text. Raises BadImport naming the row."""
    numbers = _numbers(column, r"^\s*[0-9]{1,10}(\.0*)?\s*$" if from_text else None)
    is_right = (numbers >= 0) & (numbers <= most) & (numbers % 1 == 0)
    refuse(~is_right.fill_null(False), column, where, f"a whole number from 0 to {most}")
    return numbers.cast(pl.Int64)


def finite_column(column: pl.Series, where: Row, wanted: str = "a finite number") -> pl.Series:
    """Finite floats from numbers or text. Raises BadImport naming the row."""
    numbers = _numbers(column, "")
    refuse(~numbers.is_finite().fill_null(False), column, where, wanted)
    return numbers


def _numbers(column: pl.Series, text: str | None) -> pl.Series:
    """Floats from numbers, and from texts in which `text` is found; null for all else."""
    if column.dtype == pl.String and text is not None:
        is_number = column.str.contains(text).fill_null(False)
        return column.str.strip_chars().cast(pl.Float64, strict=False).set(~is_number, None)
    numbers = plain(column)
    if numbers.dtype.is_numeric():
        return numbers.cast(pl.Float64, strict=False)
    return pl.Series(column.name, [None], pl.Float64).new_from_index(0, len(column))


def plain(column: pl.Series, depth: int = 0) -> pl.Series:
    """Of a column of several types the numbers, or lists of numbers `depth` deep, the others null; another column as it is."""
    if column.dtype != pl.Object:
        return column
    kind = (pl.Float64, pl.List(pl.Float64), pl.List(pl.List(pl.Float64)))[depth]
    return pl.Series(column.name, [value if _is_plain(value, depth) else None for value in column], kind, strict=False)


def _is_plain(value: Any, depth: int) -> bool:
    if depth:
        return isinstance(value, list) and bool(value) and all(_is_plain(of, depth - 1) for of in value)
    return type(value) in (int, float)


def refuse(is_wrong: pl.Series, column: pl.Series, where: Row, wanted: str) -> None:
    """Raises BadImport naming the first row for which `is_wrong` is true."""
    if is_wrong.any():
        row = int(is_wrong.arg_max() or 0)
        raise BadImport(f"{where(row)}: {column.name} is {shown(column[row])}, not {wanted}; the file is damaged")

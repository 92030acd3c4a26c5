"""A table from bytes: CSV with every cell as text, JSON lines, Parquet, or a JSON list of forward passes (steps). What a cell
means is decided where it is used."""

import io
import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tokentape.capture.importers.checks import BLOCK_ROWS
from tokentape.capture.importers.limits import BadImport, json_file, json_lines, reason, shown, within

FORMS = ("csv", "jsonl", "parquet", "steps")
_STRAY_QUOTE = re.compile(rb'[^",\r\n]"[^",\r\n]')


def form_of(path: Path) -> str:
    """The form that a file's name says. Raises BadImport."""
    for suffix in reversed(path.suffixes):
        name = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".json": "steps"}.get(suffix.lower())
        if name:
            return name
    if path.suffix.lower() in (".npy", ".npz", ".pt", ".pth"):
        raise BadImport(f"{path}: arrays are no table; `import vllm` takes an .npz of routed_experts and prompt_token_ids")
    raise BadImport(f"{path}: the name does not say what it is; give --form {', '.join(FORMS)}")


def table(
    raw: bytes, path: Path, form: str, keep: tuple[str, str] | None, max_bytes: int, names: tuple[str, ...] = ()
) -> tuple[pl.DataFrame, np.ndarray]:
    """The rows, and the number of each in its file (from 1; of JSON lines the line, of steps the step). keep: rows whose column
    has the value. names: see csv_text.

    Raises BadImport if it cannot be read, or has no rows.
    """
    if form == "jsonl":
        frame, rows = _json_rows(raw, path, keep)
    elif form == "steps":
        frame, rows = _steps(raw, path)
    else:
        frame = csv_text(raw, path, names) if form == "csv" else _parquet(raw, path, max_bytes)
        rows = np.arange(1, len(frame) + 1)
    if keep is not None and form != "jsonl":
        need(frame, keep[0], path)
        is_kept = (frame[keep[0]].cast(pl.String, strict=False) == keep[1]).fill_null(False)
        frame, rows = frame.filter(is_kept), rows[is_kept.to_numpy()]
    if frame.is_empty():
        raise BadImport(f"{path}: no rows{'' if keep is None else ' with ' + '='.join(keep)}; give a trace with rows")
    return frame, rows


def csv_text(raw: bytes, path: Path, names: tuple[str, ...] = ()) -> pl.DataFrame:
    """The rows of a CSV as columns of text; an empty cell is null. names: of one without a header, the last of all cells that
    follow, with commas. Raises BadImport if it is no CSV or has no rows."""
    raw = raw.removeprefix(BOM_UTF8)  # before a quoted header it would be a cell's text
    stray = _STRAY_QUOTE.search(raw) if b'"' in raw else None
    if stray:  # Polars drops it, other readers end the cell there
        line = raw.count(b"\n", 0, stray.start() + 1) + 1
        raise BadImport(f"{path}: line {line} has a quote inside a cell; double it, or write the file again")
    try:
        raw.decode()  # Polars takes any bytes for a column's name
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadImport(f"{path}: line {line} is no text in UTF-8; write the file again as UTF-8") from None
    try:
        frame = pl.read_csv(io.BytesIO(raw.rstrip(b"\r\n")), infer_schema=False, has_header=not names)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise BadImport(f"{path}: cannot be read as CSV ({reason(error)}); download it again") from None
    if frame.is_empty():
        raise BadImport(f"{path}: a header and no rows; give a trace with rows")
    if len(frame.columns) < len(names):
        raise BadImport(f"{path}: {len(frame.columns)} columns, {', '.join(names)} are expected; give the file as it was written")
    if names:
        last = pl.concat_str(frame.columns[len(names) - 1 :], separator=",").alias(names[-1])
        frame = frame.select(last, pl.col(frame.columns[: len(names) - 1])).rename(
            dict(zip(frame.columns, names[:-1], strict=False))
        )
    return frame


def need(frame: pl.DataFrame, name: str, path: Path, told: str = "") -> None:
    """Raises BadImport unless there is one column of the name; `told` is the option that names it."""
    if name not in frame.columns or f"{name}_duplicated_0" in frame.columns:
        times = "several columns" if name in frame.columns else "no column"
        raise BadImport(
            f"{path}: {times} {name!r}; it has {', '.join(frame.columns)[:200]}: name the right one{told and f' with {told}'}"
        )


def _json_rows(raw: bytes, path: Path, keep: tuple[str, str] | None) -> tuple[pl.DataFrame, np.ndarray]:
    """Objects, one per line, as columns of one type each. Raises BadImport."""
    for n_lines in (BLOCK_ROWS, len(raw)):  # taken together; all, where a column is not of one type in all blocks
        lines, blocks, rows = _objects(raw, path, keep), list[pl.DataFrame](), list[int]()
        while block := [*islice(lines, n_lines)]:
            rows += [number for number, _ in block]
            names = dict.fromkeys(chain.from_iterable(line for _, line in block))
            blocks.append(pl.DataFrame([_column(name, [line.get(name) for _, line in block]) for name in names]))
        kinds = {(name, kind) for block in blocks for name, kind in block.schema.items() if kind != pl.Null}
        if len(kinds) == len(types := dict(kinds)) and pl.Object not in types.values() and all(of.columns for of in blocks):
            break
    return pl.concat(blocks or [pl.DataFrame()], how="diagonal_relaxed"), np.array(rows, np.int64)


def _objects(raw: bytes, path: Path, keep: tuple[str, str] | None) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in json_lines(raw, path):
        if not isinstance(line, dict):
            raise BadImport(f"{path}: row {number} is {shown(line)}, not an object; give one object per line")
        said = None if keep is None else line.get(keep[0])
        if keep is None or (said if isinstance(said, str) else json.dumps(said)) == keep[1]:
            yield number, line


def _steps(raw: bytes, path: Path) -> tuple[pl.DataFrame, np.ndarray]:
    """A row per forward pass and layer of a list of passes, the prompt's first: {layer: [[expert, ...], ...] by token}."""
    passes = json_file(raw, path)
    found: list[tuple[int, str, int | None, Any]] = []
    for number, layers in enumerate(passes if isinstance(passes, list) else [passes], 1):
        if not isinstance(layers, dict):
            raise BadImport(f"{path}: step {number} is {shown(layers)}, not an object of layers; download it again")
        phase = "decode" if number > 1 else "prefill"
        found += [
            (number, phase, int(name) if name.isdecimal() else None, ids) for name, ids in layers.items() if ids is not None
        ]
    columns = [_column(name, [row[i] for row in found]) for i, name in enumerate(("phase", "layer", "expert_ids"), 1)]
    return pl.DataFrame(columns), np.array([row[0] for row in found], np.int64)


def _column(name: str, values: list[Any]) -> pl.Series:
    """Numbers, truth values, text, lists of numbers or lists of those; of mixed or other types an object column, which no reader
    takes."""
    items, depth = [value for value in values if value is not None], 0
    if not items:
        return pl.Series(name, values, pl.Null)
    while items and depth < 2 and set(map(type, items)) == {list}:
        items, depth = list(chain.from_iterable(items)), depth + 1
    kinds = set(map(type, items))
    for known, kind in (
        ({int}, pl.Int64),
        ({int, float}, pl.Float64),
        ({bool}, pl.Boolean),
        ({str}, pl.String),
    ):
        try:
            if (kinds or depth) and kinds <= known and (not depth or kind in (pl.Int64, pl.Float64)):
                return pl.Series(name, values, (kind, pl.List(kind), pl.List(pl.List(kind)))[depth])
        except (OverflowError, TypeError, pl.exceptions.PolarsError):
            break
    return pl.Series(name, values, pl.Object)


def _parquet(raw: bytes, path: Path, max_bytes: int) -> pl.DataFrame:
    """The rows of a Parquet file, page checksums verified; read piece by piece, so that what it expands to is seen in time."""
    n_bytes = 0
    batches = []
    try:
        file = pq.ParquetFile(io.BytesIO(raw), page_checksum_verification=True)
        for batch in file.iter_batches(batch_size=65_536):
            within(n_bytes := n_bytes + batch.nbytes, max_bytes, str(path))
            batches.append(batch)
        frame = pl.from_arrow(pa.Table.from_batches(batches, file.schema_arrow))
    except BadImport:
        raise
    except (pa.ArrowException, OSError, ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise BadImport(f"{path}: cannot be read as Parquet ({reason(error)}); download it again") from None
    assert isinstance(frame, pl.DataFrame)
    return frame

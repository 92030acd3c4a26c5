"""Traces of when requests came and how long they were, without routing -> tapes that hold table `requests` alone.

A form is columns of arrival (a number in its unit, of a CSV also a date and time), prompt and output tokens, in a CSV or JSON
lines; requests.toml has the published ones, each with the place that defines it, and a CSV's columns may be named by the caller.

Rows come in any order; arrivals are counted from the earliest. Several files are one trace. Rows without a prompt or an output
token cannot be served: they are left out and counted in the manifest's flags. A name that ends in .gz is unpacked.
"""

import bisect
import json
import tomllib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from tokentape.capture.importers.column_limits import Row, finite_column, refuse, span, whole_column
from tokentape.capture.importers.limits import DEFAULT_MAX_BYTES, BadImport, finite, json_lines, read_all, shown, whole
from tokentape.capture.importers.rows import NO_MODEL, Source, prefix_blocks, write_tape
from tokentape.capture.importers.table_files import csv_text, need
from tokentape.capture.rows import request_table
from tokentape.warehouse.tape import Store


@dataclass(frozen=True)
class Form:
    """columns: of arrival (empty: all at once), prompt and output tokens; or_arrival: the first one's other name; also, never: a
    further one, and those it has not, by which it is known. blocks: a list with an id for every block_tokens of the prompt.
    is_stepped: requests of a step of time have one stamp, of JSON lines if stamps are even. source: where it is defined."""

    columns: tuple[str, str, str]
    form: str = "csv"
    unit_s: float = 1.0
    or_arrival: str = ""
    also: str = ""
    never: Sequence[str] = ()
    blocks: str = ""
    block_tokens: int = 0
    is_stepped: bool = False
    source: str = ""

    def is_of(self, names: set[str]) -> bool:
        """Whether a file with these columns has the form."""
        arrival, *others = self.columns
        others += filter(None, (self.blocks, self.also))
        return {*others} <= names and names.isdisjoint(self.never) and (not arrival or bool({arrival, self.or_arrival} & names))


_FILE = (Path(__file__).parent / "requests.toml").read_text(encoding="utf-8")
FORMS = {name: Form(**(fields | {"columns": tuple(fields["columns"])})) for name, fields in tomllib.loads(_FILE).items()}
# 2023-11-16 18:17:03.9799600, 2024-05-10 00:00:00.009930+00:00 (whole seconds without the point), ISO 8601's T and Z, the
# comma of Python's logging, the hours alone of PostgreSQL's zones
_MOMENT = r"^\s*(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2}:\d{2})(?:[.,](\d{1,9}))?\s*(Z|[+-](?:0\d|1[0-4])(?::?[0-5]\d)?)?\s*$"


def import_requests(
    paths: str | Path | Sequence[str | Path],
    store: Store,
    form: str | Form,
    dataset: str = "",
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> str:
    """Imports the files, of one of FORMS or as told, as one trace; returns its id. Raises BadImport naming the row, OSError."""
    files = [Path(path) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]
    told = FORMS[form] if isinstance(form, str) else form
    contents = read_all(files, max_bytes)
    frame = (_csv if told.form == "csv" else _lines)(contents, files, told)
    settings: dict[str, Any] = {"importer": "csv", "columns": list(told.columns)} if told.form == "csv" else {"importer": form}
    settings |= {"prefix_block_tokens": told.block_tokens} if told.blocks else {}
    gaps = sorted(frame["arrival_s"].unique().sort().diff().drop_nulls())
    is_even = len(gaps) > 1 and gaps[-1 - len(gaps) // 10] < 1.1 * gaps[len(gaps) // 10]
    settings |= {"is_stepped": is_even or told.form == "csv"} if told.is_stepped else {}
    return _write(files[0], contents, store, frame, dataset or (form if isinstance(form, str) else "unknown"), settings)


def _csv(contents: list[bytes], files: list[Path], form: Form) -> pl.DataFrame:
    frames = [csv_text(raw, path) for raw, path in zip(contents, files, strict=True)]
    if twice := next((name for name in form.columns if form.columns.count(name) > 1), ""):
        raise BadImport(f"{files[0]}: column {twice} cannot be two of arrival, prompt and output; name another")
    for frame, path in zip(frames, files, strict=True):
        for name, option in zip(form.columns, ("--arrival", "--prompt", "--output"), strict=True):
            need(frame, name, path, "" if form.source else option)
    rows = pl.concat([frame.select(form.columns) for frame in frames])
    ends = [sum(map(len, frames[: i + 1])) for i in range(len(frames))]

    def where(row: int) -> str:
        file = bisect.bisect_right(ends, row)
        return f"{files[file]}: row {row + 1 - (ends[file] - len(frames[file]))}"

    arrival, n_prompt, n_output = (rows[name] for name in form.columns)
    counts = {"n_prompt_tokens": whole_column(n_prompt, where), "n_output_tokens": whole_column(n_output, where)}
    if arrival.str.contains(_MOMENT).any():
        came = _since_first(arrival, files[0], where)
    else:
        came = span(finite_column(arrival, where, "a number of seconds or a date and time") * form.unit_s, str(files[0]))
    return pl.DataFrame({"arrival_s": came, **counts})


def _lines(contents: list[bytes], files: list[Path], form: Form) -> pl.DataFrame:
    (arrival, n_prompt, n_output), rows, seen = form.columns, list[tuple[Any, ...]](), dict[tuple[int, Hashable], int]()
    came = " or ".join(filter(None, (arrival, form.or_arrival)))
    without = " or ".join(form.never)
    wanted = ", ".join(filter(None, (came, n_prompt, n_output, form.also, form.blocks, without and f"no {without}")))
    for raw, path in zip(contents, files, strict=True):
        for number, line in json_lines(raw, path):
            where = f"{path}: line {number}"
            if not isinstance(line, dict) or not form.is_of(set(line)):
                raise BadImport(f"{where} is not an object of {wanted}; name its form with --form, or download it again")
            stamp = arrival if arrival in line else form.or_arrival
            came_s = finite(line[stamp], f"{where}: {stamp}") * form.unit_s if arrival else 0.0
            lengths = [whole(line[name], f"{where}: {name}") for name in (n_prompt, n_output)]
            rows.append((came_s, *lengths, prefix_blocks(_blocks(line, lengths[0], form, where), seen) if form.blocks else None))
    if not rows:
        raise BadImport(f"{files[0]}: no lines; give a trace of requests")
    schema: dict[str, Any] = {"arrival_s": pl.Float64, "n_prompt_tokens": pl.Int64, "n_output_tokens": pl.Int64}
    frame = pl.DataFrame(rows, schema | {"prefix_blocks": pl.List(pl.UInt32)}, orient="row")
    frame = frame.with_columns(span(frame["arrival_s"], str(files[0])))
    return frame if form.blocks else frame.drop("prefix_blocks")


def _blocks(line: dict[str, Any], n_prompt: int, form: Form, where: str) -> list[int]:
    blocks = line[form.blocks]
    if not isinstance(blocks, list):
        raise BadImport(f"{where}: {form.blocks} is {shown(blocks)}, not a list; download the file again")
    if len(blocks) != -(-n_prompt // form.block_tokens):
        told = f"{len(blocks)} {form.blocks} for {n_prompt} tokens"
        raise BadImport(f"{where}: {told}, one per {form.block_tokens} is expected")
    return [whole(block, f"{where}: a hash id") for block in blocks]


def _since_first(column: pl.Series, path: Path, where: Row) -> pl.Series:
    """Seconds from the first arrival on, of dates with times; all with a time zone or all without: one that is left out could be
    any. Raises BadImport naming the row."""
    names = dict(zip("1234", ("date", "time", "decimals", "zone"), strict=True))
    parts = column.str.extract_groups(_MOMENT).struct.unnest().rename(names)
    local = (parts["date"] + " " + parts["time"]).str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ms", strict=False)
    refuse(local.is_null(), column, where, "a date and time")
    zones = parts["zone"].is_null()
    if zones.any() and not zones.all():
        row = int((zones != zones[0]).arg_max() or 0)
        raise BadImport(f"{where(row)}: some rows have a time zone and some do not; give all of them one, or none")
    zone = parts["zone"].str.replace(":", "", literal=True).str.replace("Z", "+", literal=True).fill_null("+").str.pad_end(5, "0")
    ahead_s = zone.str.slice(1, 2).cast(pl.Int64) * 3600 + zone.str.slice(3, 2).cast(pl.Int64) * 60
    whole_s = local.dt.epoch("s") - ahead_s * (1 - 2 * zone.str.starts_with("-").cast(pl.Int64))
    nanoseconds = parts["decimals"].fill_null("0").str.pad_end(9, "0").cast(pl.Int64)
    span((whole_s - whole_s.min()).cast(pl.Float64), str(path))
    since = (whole_s - whole_s.min()) * 10**9 + nanoseconds  # whole: nanoseconds since 1970 do not fit a double
    return ((since - since.min()).cast(pl.Float64) * 1e-9).rename(column.name)


def _write(path: Path, contents: list[bytes], store: Store, rows: pl.DataFrame, dataset: str, settings: dict[str, Any]) -> str:
    """One tape of the requests, in order of arrival. Raises BadImport where no request can be served."""
    served = rows.filter((pl.col("n_prompt_tokens") > 0) & (pl.col("n_output_tokens") > 0)).sort("arrival_s", maintain_order=True)
    if served.is_empty():
        raise BadImport(f"{path}: none of its {len(rows)} rows has prompt and output tokens; give a trace of requests")
    content = (*contents, json.dumps(settings, sort_keys=True).encode())
    source = Source(path, content, "unknown", NO_MODEL, None, settings, dataset=dataset)
    n, since = len(served), (served["arrival_s"] - served["arrival_s"][0]).to_numpy()
    blocks = served["prefix_blocks"].to_list() if "prefix_blocks" in served.columns else None
    table = request_table(served["n_prompt_tokens"], served["n_output_tokens"], dataset, since, blocks=blocks)
    left_out = {"empty_requests": {"left_out": len(rows) - n, "rows": len(rows)}} if n < len(rows) else {}
    return write_tape(store, source, {"requests": table}, left_out)

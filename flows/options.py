"""Options that several commands share."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

T = TypeVar("T")


def _lasting(store: str | None) -> str | None:
    if store and store.startswith("memory:"):
        raise ValueError(f"--store {store}: what lies in memory is gone when this command ends; give a folder or another URI")
    return store


StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="TOKENTAPE_STORE",
        help="Folder or fsspec URI of the tapes and results. [default: ./tape]",
        callback=_lasting,
    ),
]
TraceArgument = Annotated[
    str, typer.Argument(metavar="TRACE", help="Trace id, or the start of one (see `tokentape ls`).", show_default=False)
]
DatabaseOption = Annotated[
    str | None, typer.Option("--database", help="DuckDB file. [default: <store>/warehouse.duckdb]", show_default=False)
]
ModelOption = Annotated[
    str, typer.Option("--model", help="embedded, a hub id (owner/name) or a local directory in Hugging Face format.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="auto (the checkpoint's), float32, bfloat16, float16.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FormatOption = Annotated[str, typer.Option("--format", help="table, csv or parquet.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="Write to this file instead of the terminal (parquet needs it).")]


def asked(kind: type[T], ctx: typer.Context, **others: Any) -> T:
    """The command's options as fields of `kind`, each by its name; `others` say what is no option."""
    given = ctx.params | others
    return kind(**{of.name: given[of.name] for of in fields(cast(Any, kind)) if of.name in given})


def format_of(format: str, as_json: bool) -> str:
    """One of warehouse/sql.py's FORMATS, of which --json is one. Raises ValueError for any other."""
    if format not in ("table", "csv", "parquet"):
        raise ValueError(f"unknown format {format!r}; known: table, csv, parquet, and --json")
    return "json" if as_json else format

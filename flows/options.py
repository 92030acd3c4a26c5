"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

StoreOption = Annotated[
    str | None,
    typer.Option("--store", envvar="TOKENTAPE_STORE", help="Folder or fsspec URI of the tapes and results. [default: ./tape]"),
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

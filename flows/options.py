"""Options that several commands share."""

import os
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

T = TypeVar("T")
PHYSICAL = "physical"


def option(help: str, *names: str, **more: Any) -> Any:
    """An option, of its parameter's name unless `names` say another. A help that tells the default is followed by no other."""
    return typer.Option(*names, help=help, **{"show_default": "[default:" not in help} | more)


def argument(metavar: str, help: str, **more: Any) -> Any:
    """An argument of a command."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)


def _lasting(param: typer.CallbackParam, store: str | None) -> str | None:
    if store and store.startswith("memory:"):
        named = f"{param.opts[0]} {store}"
        raise ValueError(f"{named}: what lies in memory is gone when this command ends; give a folder or another URI")
    return store


def opened(param: typer.CallbackParam, store: str | None) -> Any:
    """The Store that an option names."""
    from tokentape.warehouse.tape import Store

    return Store(_lasting(param, store))


_STORE: Any = "Folder or fsspec URI of the tapes and results. [default: ./tape]", "--store"
_OF_STORE: dict[str, Any] = {"envvar": "TOKENTAPE_STORE", "metavar": "<str>"}
StoreOption = Annotated[Any, option(*_STORE, **_OF_STORE, parser=str, callback=opened)]  # a command is handed the Store
StoreUri = Annotated[str | None, option(*_STORE, **_OF_STORE, callback=_lasting)]  # or its place, where it may not be opened
TraceArgument = Annotated[str, argument("TRACE", "Trace id, or the start of one (see `tokentape ls`).")]
DatabaseOption = Annotated[str | None, option("DuckDB file. [default: <store>/warehouse.duckdb]", "--database")]
ModelOption = Annotated[str, option("embedded, a hub id owner/name, a directory, FILE.gguf or owner/name:FILE.gguf.", "--model")]
DeviceOption = Annotated[str, option("auto, cpu, cuda, cuda:1, mps.", "--device")]
DtypeOption = Annotated[str, option("auto (the checkpoint's), float32, bfloat16, float16.", "--dtype")]
_PROFILE = "Cost profile, by name or my.toml: physical (the default; hw/profiles), or a paper's own."
_OR_PHYSICAL: dict[str, Any] = {"metavar": "<str>", "parser": str, "callback": lambda profile: profile or PHYSICAL}
ProfileOption = Annotated[Any, option(_PROFILE, "--profile", **_OR_PHYSICAL)]
SystemOption = Annotated[
    str | None,
    option(
        "no_offload, lru_offload, layerwise_lru, near_compute, prefill_guided[_3bit], prefix_split, layered, ...; or my.toml."
    ),
]
SetOption = Annotated[
    list[str] | None,
    option("SLOT.PARAMETER=VALUE or SLOT=POLICY in place of the system's; repeatable: residency.budget=24GB.", "--set"),
]
WorkloadOption = Annotated[
    str | None,
    option("requests=N, output=N (at most), batch=B, rate=R (per second), seed=S, order=shuffled. [default: the tape's own]"),
]
WidthsOption = Annotated[
    str | None, option("Widths and heads of a tape without them: a shipped model or a config.json.", "--model")
]
CheckOption = Annotated[str | None, option("Fit nothing: print how these constants do, a shipped fit or a file.", "--check")]
JsonOption = Annotated[bool, option("Print JSON.", "--json")]
FormatOption = Annotated[str, option("table, csv, latex or parquet.", "--format")]
OutOption = Annotated[Path | None, option("Write to this file instead of the terminal (parquet needs it).", "--out")]


def asked(kind: type[T], ctx: typer.Context, **others: Any) -> T:
    """The command's options as fields of `kind`, each by its name; `others` say what is no option."""
    given = ctx.params | others
    return kind(**{of.name: given[of.name] for of in fields(cast(Any, kind)) if of.name in given})


def folder_named_by(variable: str, what: str) -> Path | None:
    """The folder that the environment names, if it names one. Raises ValueError if that does not exist."""
    named = os.environ.get(variable)
    if named and not Path(named).is_dir():
        raise ValueError(f"{variable}={named}: no such folder of {what}")
    return Path(named) if named else None


def format_of(format: str, as_json: bool) -> str:
    """One of warehouse/sql.py's FORMATS, of which --json is one. Raises ValueError for any other."""
    if format not in ("table", "csv", "latex", "parquet"):
        raise ValueError(f"unknown format {format!r}; known: table, csv, latex, parquet, and --json")
    return "json" if as_json else format

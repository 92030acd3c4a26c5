"""A store from Python: its tapes, studies and warehouse."""

from __future__ import annotations

from pathlib import Path
from typing import Any, SupportsIndex

import polars as pl

from tokentape.flows import machines
from tokentape.flows.study_run import run_study
from tokentape.warehouse import load as loader
from tokentape.warehouse import sql as asker
from tokentape.warehouse import tape as tapes
from tokentape.warehouse.recorded import Tape


def expect(what: str, value: object, kind: Any, remedy: str) -> None:
    """Raises ValueError in a line where an argument is of another type than `kind`, one or a tuple of them."""
    if not isinstance(value, kind):
        raise ValueError(f"{what}: found {type(value).__name__}; give {remedy}")


class Store:
    """A folder, or fsspec URI, of tapes and results. uri: `TOKENTAPE_STORE`, else ./tape, where it is None.

    Creating one touches nothing. Raises ValueError for a URI of an unknown kind.
    """

    def __init__(self, uri: str | Path | None = None) -> None:
        self.files = tapes.Store(None if uri is None else str(uri))

    def tapes(self) -> pl.DataFrame:
        """A row per finished tape: trace_id, origin, model_id, dataset, n_requests, n_tokens, tables. One that cannot be opened
        is named on stderr and left out."""
        rows = [
            (m.trace_id, m.origin, m.model_id, m.dataset, m.rows.get("requests", 0), m.rows.get("tokens", 0), list(m.tables))
            for m in (tape.manifest for tape in self.files.readable())
        ]
        schema = pl.Schema(dict.fromkeys(("trace_id", "origin", "model_id", "dataset"), pl.String()))
        schema |= {"n_requests": pl.Int64(), "n_tokens": pl.Int64(), "tables": pl.List(pl.String)}
        return pl.DataFrame(rows, schema=schema, orient="row")

    def tape(self, name: str) -> Tape:
        """The tape whose id is, or starts with, `name`; `tape.read("routing")` is a Polars frame.

        Raises BadTape for none, several, or one that has changed since it was written.
        """
        return self.files.open(str(name))

    def load(self) -> Store:
        """Builds the warehouse anew from what the store holds, and returns the store. Raises as `tokentape load` does."""
        loader.load(self.files, self.database, machines.shipped())
        return self

    @property
    def database(self) -> Path:
        """The warehouse of the store, a DuckDB file."""
        return loader.database_path(self.files)

    def sql(self, statement: str) -> pl.DataFrame:
        """The answer of the warehouse to one SELECT, read-only; it is built where there is none yet.

        Raises BadQuery for what is no answerable SELECT.
        """
        expect("statement", statement, str, "one SELECT as text")
        if not self.database.exists():
            self.load()
        return asker.query(self.database, statement, self.files)

    def __repr__(self) -> str:
        return f"Store({self.files.uri!r}), tapes: {len(self.files.trace_ids())}"

    def _repr_html_(self) -> str:
        frame: str = self.tapes()._repr_html_()
        return frame


def open(uri: str | Path | None = None) -> Store:
    """The store of that folder. Raises FileNotFoundError where there is none: `Store(uri)` is for one that is to be made."""
    store = Store(uri)
    if not store.files.exists:
        raise FileNotFoundError(f"no store at {store.files.uri}; give the folder that holds traces/, or record a tape first")
    return store


def study(name: str | Path, store: Store, *, in_model: bool = True, workers: int | None = None) -> dict[str, int]:
    """Runs what is missing of a study (a shipped one, or a TOML file); how many answers or replays that were.

    in_model: also what it measures inside a live model. Load the store to ask of the results. Raises ValueError for no such
    study.
    """
    expect("store", store, Store, 'a Store: tt.open("FOLDER")')
    expect("workers", workers or 0, SupportsIndex, "a whole number, or None for all cores")
    return run_study(str(name), store.files, workers=workers, in_model=in_model)

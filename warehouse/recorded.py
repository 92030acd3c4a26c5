"""A finished tape as readers see it: what it says of itself, and its rows: whole, unchanged, and in agreement, or refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ValidationError

from tokentape.warehouse import seals
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.sums import Sums, footer_sha256, sums_of
from tokentape.warehouse.tables import SCHEMA_VERSION, TABLES, TAPE_TABLES, check_schema

if TYPE_CHECKING:  # writing a tape needs no Polars, a sixth of a second to import
    import polars as pl

    from tokentape.warehouse.contradictions import Rows
    from tokentape.warehouse.tape import Store


class BadTape(ValueError):
    """A tape that cannot be read; the message names it, says why and what to do."""


class Manifest(BaseModel, frozen=True, extra="forbid"):
    """What makes a tape's rows meaningful. Written last; a tape without it is unfinished."""

    schema_version: int = SCHEMA_VERSION
    trace_id: str
    origin: str  # captured | imported | synthetic
    source: str  # model id, file name or generator
    model_id: str
    model_revision: str | None = None
    dataset: str
    geometry: Geometry
    score_rule: str | None = None  # softmax | softmax_topk | sigmoid_bias_groups; None: no scores recorded
    score_params: dict[str, Any] = {}  # norm_topk_prob, routed_scaling_factor, n_group, topk_group, bias per layer
    attention: dict[str, Any] = {}  # reduction, head map, dtype
    tables: tuple[str, ...]
    rows: dict[str, int]
    n_shards: int
    recorded: dict[str, tuple[str, ...]] = {}  # the optional columns of a table that hold anything; written by `finish`
    sha256: dict[str, tuple[str, ...]] = {}  # of every shard, by table, in order; written by `finish`
    weights: dict[str, Any] = {}  # of a model whose weights are quantised, or were: how, and which modules
    tokenizer_sha256: str | None = None
    seed: int | None = None
    settings: dict[str, Any] = {}  # what the capture or import was asked for
    statistics: dict[str, Any] = {}  # what a synthetic tape was fitted to
    flags: dict[str, Any] = {}  # contamination findings: name -> detail
    versions: dict[str, str] = {}
    created_utc: str


class Tape:
    """A finished trace: its manifest and its tables, read whole or shard by shard.

    Every shard's SHA-256 is compared before it is read, and every table's rows with what the rest of the tape says.
    """

    def __init__(self, store: Store, trace_id: str) -> None:
        self.store, self.trace_id = store, trace_id
        self.path = store.trace_path(trace_id, "manifest.json")
        with store.fs.open(self.path, "rb") as handle:
            raw = handle.read()
        try:
            fields = json.loads(raw)
            version = fields.get("schema_version") if isinstance(fields, dict) else None
            if version != SCHEMA_VERSION:
                raise BadTape(
                    f"{self.path}: schema version {version}, this tokentape reads {SCHEMA_VERSION}; "
                    "record or import the tape again"
                )
            fields.pop("seal", None)
            self.manifest = Manifest.model_validate(fields)
        except BadTape:
            raise
        except (ValueError, RecursionError) as error:
            raise BadTape(f"{self.path}: not a manifest ({_first(error)}); {self._remedy}") from error
        if not seals.is_whole(raw):
            raise BadTape(f"{self.path}: changed since it was written; {self._remedy}")
        if self.manifest.trace_id != trace_id:
            raise BadTape(
                f"{self.path}: says that it is tape {self.manifest.trace_id}, its folder says {trace_id}; rename the folder back"
            )
        sums = self.manifest.sha256
        if {name: len(of) for name, of in sums.items()} != dict.fromkeys(self.manifest.tables, self.manifest.n_shards):
            raise BadTape(f"{self.path}: its sums are not those of its tables and shards; {self._remedy}")

    def __repr__(self) -> str:
        m = self.manifest
        n_requests, n_tokens = m.rows.get("requests", 0), m.rows.get("tokens", 0)
        what = f"{m.origin}, {m.model_id} on {m.dataset}, {n_requests} requests, {n_tokens:,} tokens"
        return f"Tape {self.trace_id}: {what}; tables {', '.join(m.tables)}"

    @property
    def _remedy(self) -> str:
        return f"restore it from a copy, or `tokentape rm {self.trace_id}` and record or import the tape again"

    @property
    def geometry(self) -> Geometry:
        return self.manifest.geometry

    @cached_property
    def content_sha256(self) -> str:
        """Of all that the manifest says, the sums of the rows included, but for when it was made: what a result is of."""
        fields = self.manifest.model_dump(mode="json", exclude={"created_utc"})
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    def has(self, table: str) -> bool:
        return table in self.manifest.tables

    def files(self, table: str) -> list[str]:
        """Shard files of a table, in order, as they were written.

        Raises BadTape if the tape does not hold it, or a shard is missing or has changed.
        """
        if table not in TAPE_TABLES:
            raise BadTape(f"unknown table {table!r}; a tape may hold {', '.join(TAPE_TABLES)}")
        if not self.has(table):
            held = ", ".join(self.manifest.tables)
            raise BadTape(f"tape {self.trace_id} holds no {table}; capture it with --tables {table} (it has {held})")
        paths = []
        for path in self.shard_paths(table):
            self.compare(path)
            paths.append(path)
        return paths

    def shard_paths(self, table: str) -> Iterator[str]:
        """Where the shards of a table are to be, in order."""
        for i in range(self.manifest.n_shards):
            yield self.store.trace_path(self.trace_id, table, f"part-{i:05d}.parquet")

    def compare(self, path: str) -> Sums:
        """The sums of a shard. Raises BadTape where it is missing, or where they are not the manifest's."""
        table, name = path.rsplit("/", 2)[1:]
        try:
            found = sums_of(self.store.fs, path)
        except FileNotFoundError as error:
            raise BadTape(f"{path} is missing; the tape is damaged: {self._remedy}") from error
        if found.file != self.manifest.sha256[table][int(name[5:10])]:
            raise BadTape(f"{path}: changed since it was written, its SHA-256 is not the manifest's; {self._remedy}")
        return found

    def shards(self, table: str) -> Iterator[pl.DataFrame]:
        """The table's rows, one shard at a time.

        Raises BadTape or BadTable on a truncated, foreign, changed or older file and on rows that contradict the tape; on rows
        that are missing after the last shard.
        """
        rows = self._rows(table)
        for path in self.files(table):
            with self._opened(table, path) as file:
                shard = file.read(self._columns(table))
            with self._naming():
                frame = rows.see(shard)
            yield frame
        with self._naming():
            rows.end(self.manifest.rows.get(table))

    def batches(self, table: str, n_rows: int, columns: Sequence[str] = ()) -> Iterator[pl.DataFrame]:
        """The table's rows, at most `n_rows` at a time, read page by page: for tables too large to hold. columns: those that are
        read and compared, all where none is named."""
        rows = self._rows(table)
        for path in self.files(table):
            with self._opened(table, path, buffer_size=1 << 20, pre_buffer=False) as file:
                for batch in file.iter_batches(n_rows, columns=list(columns) or self._columns(table), use_threads=False):
                    with self._naming():
                        frame = rows.see_part(batch)
                    yield frame
        with self._naming():
            rows.end(self.manifest.rows.get(table))

    def read(self, table: str) -> pl.DataFrame:
        """The whole table as a Polars frame."""
        import polars as pl

        return pl.concat(self.shards(table))

    def _columns(self, table: str) -> list[str]:
        """Those that hold anything."""
        return [*TABLES[table].columns, *self.manifest.recorded.get(table, ())]

    def _rows(self, table: str) -> Rows:
        """What rows of the table must be like, from the tables that say so."""
        from tokentape.warehouse.contradictions import Rows

        needs_members = table not in ("requests", "losses")
        requests = self.requests if needs_members and self.has("requests") else None
        passes = self.passes if needs_members and table != "passes" and self.has("passes") else None
        return Rows(table, self.geometry, "missing_rows" in self.manifest.flags, requests, passes)

    @cached_property
    def requests(self) -> pl.DataFrame:
        """The tape's requests, read once."""
        return self.read("requests")

    @cached_property
    def passes(self) -> pl.DataFrame:
        """The tape's passes, read once."""
        return self.read("passes")

    @contextmanager
    def _opened(self, table: str, path: str, **options: Any) -> Iterator[pq.ParquetFile]:
        """An open shard; its footer is compared, and pyarrow compares the checksum of every page it reads."""
        try:
            with self.store.fs.open(path, "rb") as handle:
                if footer_sha256(handle) != self.compare(path).footer:
                    raise BadTape(f"{path}: its footer changed since it was written; {self._remedy}")
                file = pq.ParquetFile(handle, page_checksum_verification=True, **options)
                check_schema(table, file.schema_arrow, path)
                yield file
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            reason = str(error).splitlines()[0]
            raise BadTape(f"{path}: not a readable Parquet file ({reason}); {self._remedy}") from error

    @contextmanager
    def _naming(self) -> Iterator[None]:
        from polars.exceptions import PolarsError

        from tokentape.warehouse.contradictions import Contradiction

        try:
            yield
        except (Contradiction, PolarsError) as error:
            reason = str(error).splitlines()[0]
            raise BadTape(f"tape {self.trace_id}: {reason}; record or import it again") from error


def _first(error: Exception) -> str:
    """What is wrong with which field, on one line."""
    if not isinstance(error, ValidationError):
        return str(error).splitlines()[0]
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'].splitlines()[0]}"

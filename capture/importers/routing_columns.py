"""Columns of a table of routing, found by their names and checked cell by cell; see routing_table.py."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
import pyarrow as pa

from tokentape.capture.importers.checks import BLOCK_ROWS
from tokentape.capture.importers.column_limits import Row, finite_column, plain, refuse, whole_column
from tokentape.capture.importers.limits import MAX_EXPERTS, MAX_LAYERS, MAX_TOKENS, BadImport
from tokentape.capture.importers.table_files import FORMS, need
from tokentape.policies.names import unknown
from tokentape.warehouse.geometry import Geometry

FILES = ("parts", "requests", "layers")
ORDERS = ("requests", "executed")
PHASES = dict.fromkeys(("prefill", "prompt", "decoder_prompt", "0", "false"), False) | dict.fromkeys(
    ("decode", "decoding", "generate", "generated", "generation", "decoder_generated", "1", "true"), True
)
PRESETS: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "presets.toml").read_text(encoding="utf-8"))
ONE_PHASE = ("prefill", "decode", "widths")


# What columns hold, and the tape's own names of them: read by these where a file has them and no other name is given.
USUAL = {"request": "request_id", "position": "position", "layer": "layer", "experts": "expert_ids"}
USUAL |= {"weights": "gate_weights", "phase": "phase"}


@dataclass(frozen=True)
class Layout:
    """How files are to be read; see routing_table.py. columns: names by what they hold, of USUAL. where: (column, value) of the
    rows that count. names: columns of a CSV without a header, the last one all that follows. prefill: what a phase is in prefill,
    a regular expression; any other decodes. stated: fields of the first JSON line with the experts per layer and the model. rank:
    column that counts a token's rows. preset: that it was made from, of PRESETS."""

    columns: Mapping[str, str] = field(default_factory=dict)
    form: str | None = None
    files: str = "parts"
    order: str = "requests"
    top_k: int | None = None
    where: tuple[str, str] | None = None
    names: tuple[str, ...] = ()
    prefill: str | None = None
    stated: tuple[str, str] | None = None
    rank: str | None = None
    preset: str | None = None

    @classmethod
    def of(cls, preset: str | None, columns: Mapping[str, str | None], **given: Any) -> Self:
        """The layout of a preset, with what is given (not None) in place of its own. Raises ValueError for an unknown one."""
        if preset is not None and preset not in PRESETS:
            raise unknown("preset", preset, PRESETS)
        told = {name: value for name, value in PRESETS.get(preset or "", {}).items() if name != "source"}
        own: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
        asked, given = ({name: value for name, value in of.items() if value is not None} for of in (columns, given))
        return cls(**own | given | {"columns": own.get("columns", {}) | asked}, preset=preset)

    def __post_init__(self) -> None:
        for name, value, known in (("files", self.files, FILES), ("order", self.order, ORDERS), ("form", self.form, FORMS)):
            if value not in (*known, *([None] if name == "form" else [])):
                raise BadImport(f"{name} is {value!r}; give one of {', '.join(known)}")
        if self.columns.get("phase") == "widths" and self.order != "executed":
            raise BadImport("phase widths tells decodes by passes, whose order rows must have; give --order executed with it")
        for files, what in (("requests", "request"), ("layers", "layer")):
            if self.files == files and what in self.columns:
                raise BadImport(f"each file is one of the {files}; a column of it ({what}) cannot be named beside that")


@dataclass(frozen=True)
class Place:
    """Where the rows of a file stand, for error lines."""

    path: Path
    rows: np.ndarray  # numbers from 1

    def __call__(self, at: int) -> str:
        return f"{self.path}: row {self.rows[at]}"


def part_of(
    frame: pl.DataFrame, where: Place, form: str, layout: Layout, number: int, geometry: Geometry | None, named: dict[str, str]
) -> pl.DataFrame:
    """One file as columns request (text), layer, position or null, is_decode, ids and weights (lists of k). Raises BadImport."""
    found = _names(frame, where.path, layout)
    if named and named != found:
        raise BadImport(
            f"{where.path}: has other columns ({', '.join(found.values())}) than the files before it; import them apart"
        )
    named.update(found)
    tokens = plain(frame[found["experts"]], 2)
    if isinstance(getattr(tokens.dtype, "inner", None), pl.List) and tokens.null_count() < len(tokens):
        refuse(tokens.is_null(), frame[found["experts"]], where, "lists of expert ids, one per token")
        where = Place(where.path, np.repeat(where.rows, tokens.list.len().clip(1)))
        frame = frame.with_columns(tokens).explode(found["experts"])
    from_text, n = form == "csv", len(frame)

    def constant(value: Any, kind: Any) -> pl.Series:
        return pl.Series([value], dtype=kind).new_from_index(0, n)

    def counted(what: str, most: int) -> pl.Series:
        return whole_column(frame[found[what]], where, most, from_text)

    ids, is_one = _lists(frame[found["experts"]], where, from_text, pl.Int64)
    columns = {
        "request": _text(frame[found["request"]], where, "the name of a request")
        if "request" in found
        else constant(str(number) if layout.files == "requests" else "", pl.String),
        "layer": counted("layer", MAX_LAYERS - 1)
        if "layer" in found
        else constant(_layer_of_file(number, geometry, where.path), pl.Int64),
        "position": counted("position", MAX_TOKENS - 1) if "position" in found else constant(None, pl.Int64),
        "is_decode": _is_decode(frame[found["phase"]], where, layout.prefill)
        if "phase" in found
        else constant(layout.columns.get("phase") == "decode", pl.Boolean),
        "ids": ids,
    }
    if layout.prefill is not None and layout.files == "requests":  # joined with cat: a prompt behind decodes is the next
        is_next = columns["is_decode"].shift(1, fill_value=False) & ~columns["is_decode"]
        columns["request"] += "." + is_next.cum_sum().cast(pl.String)
    if "weights" in found:
        columns["weights"] = _lists(frame[found["weights"]], where, from_text, pl.Float64)[0]
        refuse(columns["weights"].list.len() != ids.list.len(), frame[found["weights"]], where, "as many weights as experts")
    part = pl.DataFrame(columns)
    if is_one and layout.top_k != 1:
        if layout.rank is not None:
            need(frame, layout.rank, where.path)
        ranks = None if layout.rank is None else whole_column(frame[layout.rank], where, MAX_EXPERTS - 1, from_text)
        part, where = _gathered(part, layout.top_k or (geometry.top_k if geometry else None), where, ranks)
    k = int(part["ids"].list.len()[0])
    refuse(part["ids"].list.len() != k, part["ids"], where, f"{k} experts as in the rows before")
    if layout.top_k not in (None, k):
        raise BadImport(f"{where(0)}: {k} experts, --top-k says {layout.top_k}")
    return part


def _names(frame: pl.DataFrame, path: Path, layout: Layout) -> dict[str, str]:
    """Columns by what they hold, those that are named and those of the usual name. Raises BadImport for one that is not there."""
    skipped = {"requests": ["request"], "layers": ["layer"], "parts": []}[layout.files]
    skipped += ["phase"] if layout.columns.get("phase") in ONE_PHASE else []
    found = {}
    for what, column in {**USUAL, **layout.columns}.items():
        if what in skipped:
            continue
        is_usual = what not in layout.columns
        may_miss = what not in ("layer", "experts", "phase") and (is_usual or (layout.preset and what == "weights"))
        is_there = column in frame.columns and (frame[column].dtype != pl.List or frame[column].list.len().max())
        if may_miss and not is_there:
            continue
        found[what] = column
        need(frame, column, path, f"--{what}" + (" (prefill or decode: all rows are)" if what == "phase" else ""))
    return found


def _layer_of_file(number: int, geometry: Geometry | None, path: Path) -> int:
    if geometry is None:
        return number
    if number >= len(geometry.moe_layers):
        raise BadImport(f"{path}: file {number + 1} of a model of {len(geometry.moe_layers)} MoE layers; give one file per layer")
    return geometry.moe_layers[number]


def _text(column: pl.Series, where: Row, wanted: str) -> pl.Series:
    if column.dtype == pl.Object:  # of several types
        words = pl.Series([str(value) if type(value) in (str, int) else None for value in column], dtype=pl.String)
    elif column.dtype.is_integer() or column.dtype in (pl.String, pl.Boolean, pl.Categorical, pl.Enum):
        words = column.cast(pl.String)
    else:
        words = pl.Series([None], dtype=pl.String).new_from_index(0, len(column))
    refuse(words.is_null(), column, where, wanted)
    return words


def _is_decode(column: pl.Series, where: Row, prefill: str | None) -> pl.Series:
    words = _text(column, where, "prefill or decode").str.strip_chars().str.to_lowercase()
    if prefill is not None:
        refuse(~words.str.contains(f"^(?:{prefill}|[0-9]+)$"), column, where, "a position")
        return ~words.str.contains(f"^(?:{prefill})$")
    is_decode = words.replace_strict(PHASES, default=None, return_dtype=pl.Boolean)
    refuse(is_decode.is_null(), column, where, "prefill or decode")
    return is_decode


def _lists(column: pl.Series, where: Place, from_text: bool, kind: Any) -> tuple[pl.Series, bool]:
    """Lists of ids or weights, and whether each row held one number and no list. Raises BadImport naming the row."""
    blocks = [slice(i, i + BLOCK_ROWS) for i in range(0, len(column), BLOCK_ROWS)]
    parts = [_block(column[of], Place(where.path, where.rows[of]), from_text, kind) for of in blocks]
    return pl.concat(part for part, _ in parts), all(is_one for _, is_one in parts)


def _block(column: pl.Series, where: Place, from_text: bool, kind: Any) -> tuple[pl.Series, bool]:
    """Of rows that are read together: texts and numbers of 8 bytes take many times what is kept of them."""
    is_id, is_one, found = kind == pl.Int64, False, plain(column, 1)
    wanted = f"{'expert ids' if is_id else 'weights'}: a list, or one number"
    if column.dtype == pl.String and from_text:
        number = r"[0-9]{1,10}" if is_id else r"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?"
        is_list = column.str.contains(rf"^\s*[\[(]?\s*{number}(?:[\s,;|]+{number})*\s*[\])]?\s*$")
        refuse(~is_list.fill_null(False), column, where, wanted)
        is_one = not column.str.contains(r"[\[(,;|]|[0-9.]\s+[0-9.+-]").any()
        lists = column.str.extract_all(number)
    elif isinstance(found.dtype, (pl.List, pl.Array)):
        lists = found.cast(pl.List(found.dtype.inner))
    elif column.dtype.is_numeric():
        is_one = True
        lists = column.reshape((-1, 1)).arr.to_list()
    else:
        refuse(pl.Series([True]).new_from_index(0, len(column)), column, where, wanted)
    lengths = lists.list.len()
    refuse((lengths == 0).fill_null(True) | (lengths > MAX_EXPERTS).fill_null(True), column, where, wanted)
    place = Place(where.path, np.repeat(where.rows, lengths.to_numpy()))
    flat = lists.explode().rename(column.name)
    numbers = whole_column(flat, place, MAX_EXPERTS - 1, from_text).cast(pl.Int16) if is_id else finite_column(flat, place)
    offsets = np.concatenate(([0], np.cumsum(lengths.to_numpy(), dtype=np.int64)))
    gathered = pl.from_arrow(pa.LargeListArray.from_arrays(offsets, numbers.to_arrow()))
    assert isinstance(gathered, pl.Series)
    return gathered, is_one


def _gathered(part: pl.DataFrame, top_k: int | None, where: Place, ranks: pl.Series | None) -> tuple[pl.DataFrame, Place]:
    """One row per token and layer from one per expert: consecutive rows of one token, or k of one layer where none is counted."""
    keys = ["request", "layer", "is_decode", "position"]
    changed = part.select(pl.any_horizontal(pl.col(key).ne_missing(pl.col(key).shift()) for key in keys)).to_series().to_numpy()
    changed = changed | (np.arange(len(part)) == 0)
    if part["position"].null_count():
        if top_k is None:
            raise BadImport(f"{where.path}: one expert per row and no position; --model or --top-k says how many are one token's")
        begins = np.arange(0, len(part), top_k)
        mixed = np.flatnonzero(changed & (np.arange(len(part)) % top_k > 0))
        if len(mixed) or len(part) % top_k:
            at = int(mixed[0]) if len(mixed) else len(part) - 1
            raise BadImport(
                f"{where(at)}: another layer within {top_k} rows, or rows are missing; each {top_k} must be one token's"
            )
    else:
        begins = np.flatnonzero(changed)
    offsets = np.concatenate((begins, [len(part)])).astype(np.int64)
    if ranks is not None:
        counted = np.arange(len(part)) - np.repeat(begins, np.diff(offsets))
        refuse(ranks != counted, ranks, where, "the number of its row among its token's, from 0")
    gathered = part[begins.tolist()].select(keys)
    for name in ("ids", "weights"):
        if name in part.columns:
            lists = pa.LargeListArray.from_arrays(offsets, part[name].explode().to_arrow())
            gathered = gathered.with_columns(pl.Series(name, lists))
    return gathered.select(part.columns), Place(where.path, where.rows[begins])

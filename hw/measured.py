"""Tables of measured GPU operators, in the columns of NVIDIA's aiconfigurator (docs/calibration.md lists them).

A row is one timed operator: what it was (op_name), where it ran (framework, version, device), its dtype, its shape, and `latency`
in milliseconds. Repeated rows are kept: each is a measurement.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.hw.operators import OPERATORS

OPERATOR_OF = {
    "gemm": "gemm",
    "moe": "moe",
    "context_attention": "prefill_attention",
    "generation_attention": "decode_attention",
    "all_reduce": "all_reduce",
    "all_gather": "gather",
    "reduce_scatter": "gather",
}
OF_KERNEL = {"all_reduce": "custom_graph"}  # rows of kernels of this name alone: as CUDA graphs launch them
COMMON = ("framework", "version", "device", "op_name", "latency")
TEXTS = ("distribution",)  # a shape's columns that hold words
MAY_BE_ZERO = ("step", "window_size")
KERNEL = "kernel_source"  # optional: which kernel ran
ROW = "row of its file"
DTYPES = ("gemm_dtype", "moe_dtype", "attn_dtype", "allreduce_dtype", "nccl_dtype")


class Operands(NamedTuple):
    """What a table's dtype is: the key of an engine's ops_per_s, the number format ("": of 16 bits), and bits of a value."""

    ops: str
    form: str = ""
    weight_bits: float = 16.0
    value_bits: float = 16.0
    kv_bits: float = 16.0


OPERANDS_OF = {
    "bfloat16": Operands("bf16"),
    "float16": Operands("fp16"),
    "half": Operands("fp16"),
    "fp8": Operands("fp8", "fp8", 8.0, 8.0),
    "int4_wo": Operands("bf16", "int4", 4.5),
    "w4a16_mxfp4": Operands("bf16", "mxfp4", 4.25),
    "bfloat16 with fp8 cache": Operands("bf16", "fp8", kv_bits=8.0),
}


@dataclass(frozen=True, order=True)
class Setup:
    """Where and how an operator was timed: a set of fitted constants belongs to one of these."""

    device: str
    framework: str
    version: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.device}, {self.framework} {self.version}, {self.dtype}"


@dataclass(frozen=True, eq=False)
class Measurements:
    """Timed rows of one operator in one setup. shapes: argument -> (n,); seconds: (n,) f64; sources: the files they are from.

    places: (n, 2) i64, of each row the source and the row in it; none (0, 2) where the rows are from no file.
    """

    operator: str
    setup: Setup
    shapes: dict[str, NDArray[np.generic]]
    seconds: NDArray[np.float64]
    sources: tuple[str, ...]
    places: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))

    def take(self, rows: NDArray[np.generic]) -> Measurements:
        """The rows that an index or a mask selects."""
        picked = {name: values[rows] for name, values in self.shapes.items()}
        places = self.places[rows] if len(self.places) else self.places
        return Measurements(self.operator, self.setup, picked, self.seconds[rows], self.sources, places)

    def shape_ids(self) -> NDArray[np.int64]:
        """(n,) index of each row's distinct shape, in the order of their sorted values: repeats share one."""
        keys = np.stack([np.unique(values, return_inverse=True)[1] for values in self.shapes.values()], axis=1)
        return np.asarray(np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1), np.int64)


def read(paths: Iterable[Path], dtype: str = "bfloat16") -> list[Measurements]:
    """All measurements of `dtype` in the files, one entry per operator and setup; operators that have no model here are left out.

    Folders stand for the Parquet files below them. Raises ValueError naming the file, column or row that is unusable, or if
    nothing of this dtype is found.
    """
    files = sorted({file for path in paths for file in (path.rglob("*.parquet") if path.is_dir() else [path])})
    if not files:
        raise ValueError("no measured tables: give Parquet files, or a folder that holds some")
    found: dict[tuple[str, Setup], list[tuple[pl.DataFrame, str]]] = {}
    dtypes: set[str] = set()
    for file in files:
        for key, rows in _of_file(file, dtypes):
            found.setdefault(key, []).append((rows, str(file)))
    chosen = {key: parts for key, parts in found.items() if key[1].dtype == dtype}
    if not chosen:
        raise ValueError(f"no rows of dtype {dtype} in {', '.join(map(str, files))}; found {', '.join(sorted(dtypes)) or 'none'}")
    return [_joined(operator, setup, parts) for (operator, setup), parts in sorted(chosen.items())]


def _of_file(file: Path, dtypes: set[str]) -> Iterable[tuple[tuple[str, Setup], pl.DataFrame]]:
    """The file's rows by operator and setup; adds the dtypes it holds to `dtypes`."""
    try:
        frame = pl.read_parquet(file).with_row_index(ROW)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"{file}: not a readable Parquet file ({str(error).splitlines()[0]}); fetch it again") from error
    missing = [name for name in COMMON if name not in frame.columns]
    if missing:
        raise ValueError(
            f"{file}: column {missing[0]} is missing; a measured table has {', '.join(COMMON)} and its shape's columns"
        )
    _check_numbers(frame, "latency", file, pl.col("latency") > 0, "is not a time in ms")
    for (op_name,), rows in frame.group_by(["op_name"], maintain_order=True):
        operator = OPERATOR_OF.get(str(op_name))
        if operator in OF_KERNEL and KERNEL in rows.columns:
            rows = rows.filter(pl.col(KERNEL).cast(pl.String).str.contains(OF_KERNEL[operator]))
        if operator == "prefill_attention" and "step" in rows.columns:  # others attend to a cache, too: no model here
            rows = rows.filter(pl.col("step").cast(pl.Float64, strict=False).fill_null(0.0) == 0.0)
        if operator is None or not rows.height:
            continue
        dtype = _dtype(rows, operator, file)
        columns = OPERATORS[operator].columns
        absent = [name for name in columns if name not in rows.columns and name not in OPERATORS[operator].defaults]
        if absent:
            raise ValueError(f"{file}: column {absent[0]} is missing; {op_name} rows need {', '.join(columns)}")
        for name in (name for name in columns if name in rows.columns and name not in TEXTS):
            least = int(name not in MAY_BE_ZERO)
            _check_numbers(rows, name, file, pl.col(name) >= least, f"is not a size of at least {least}")
        keys, rows = ["device", "framework", "version", "dtype"], rows.with_columns(dtype.alias("dtype"))
        for name in (*keys, *(name for name in TEXTS if name in columns)):
            if (empty := rows.filter(pl.col(name).is_null())).height:
                raise ValueError(f"{file}: row {empty[ROW][0]}: {name} is empty; fill it, or remove the row")
        for values, part in rows.group_by(keys, maintain_order=True):
            device, framework, version, operands = map(str, values)
            setup = Setup(device, framework.upper(), version, operands)
            dtypes.add(setup.dtype)
            yield (operator, setup), part


def _check_numbers(rows: pl.DataFrame, column: str, file: Path, is_good: pl.Expr, fault: str) -> None:
    """Raises ValueError naming file and column where it holds no numbers, and file and row of the first that is not `is_good`."""
    kind = rows[column].dtype
    if not (kind.is_integer() or kind.is_float()):
        raise ValueError(f"{file}: column {column} holds {kind}, not numbers; write the file again with numbers there")
    bad = rows.filter(~(is_good & pl.col(column).is_finite()).fill_null(False))
    if bad.height:
        raise ValueError(f"{file}: row {bad[ROW][0]}: {column} {bad[column][0]} {fault}; remove the row")


def _dtype(rows: pl.DataFrame, operator: str, file: Path) -> pl.Series:
    """The operands' dtype; where attention keeps its cache in another, both."""
    name = next((name for name in DTYPES if name in rows.columns), None)
    if name is None:
        raise ValueError(f"{file}: {operator} rows have no column {' or '.join(DTYPES)}")
    if "kv_cache_dtype" not in rows.columns:
        return rows[name]
    both = pl.concat_str(name, pl.lit(" with "), "kv_cache_dtype", pl.lit(" cache"))
    return rows.select(pl.when(pl.col(name) == pl.col("kv_cache_dtype")).then(pl.col(name)).otherwise(both).alias("dtype"))[
        "dtype"
    ]


def _joined(operator: str, setup: Setup, parts: list[tuple[pl.DataFrame, str]]) -> Measurements:
    of, shapes = OPERATORS[operator], {}
    for name in of.columns:
        absent = of.defaults.get(name)
        values = [rows[name].to_numpy() if name in rows.columns else np.full(rows.height, absent) for rows, _ in parts]
        shapes[name] = np.concatenate(values)
    kernel = pl.col(KERNEL).cast(pl.String)
    named = [rows.select(kernel if KERNEL in rows.columns else pl.repeat("", rows.height).alias(KERNEL)) for rows, _ in parts]
    shapes |= of.of_table(setup.version, pl.concat(named)[KERNEL].to_numpy().astype(np.str_), shapes)
    operands = OPERANDS_OF.get(setup.dtype, Operands(""))._asdict()
    n_rows = sum(rows.height for rows, _ in parts)
    shapes |= {name: np.full(n_rows, operands[name]) for name in ("weight_bits", "value_bits", "kv_bits") if name in of.defaults}
    seconds = np.concatenate([rows["latency"].to_numpy() for rows, _ in parts]) * 1e-3
    rows = [np.stack([np.full(part.height, i), part[ROW].to_numpy()], axis=1) for i, (part, _) in enumerate(parts)]
    sources = tuple(source for _, source in parts)
    return Measurements(operator, setup, shapes, seconds.astype(np.float64), sources, np.concatenate(rows).astype(np.int64))

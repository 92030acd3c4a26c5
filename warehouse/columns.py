"""Every column of every table, as columns.toml declares it once: name, type, unit, one-line meaning."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa


@dataclass(frozen=True)
class Column:
    """One column: Arrow type, unit (empty for ids, counts and names), meaning."""

    type: pa.DataType
    unit: str
    meaning: str


I64, TEXT = pa.int64(), pa.string()
_ONE = {"u8": pa.uint8(), "u16": pa.uint16(), "u32": pa.uint32(), "i32": pa.int32(), "i64": I64, "text": TEXT, "flag": pa.bool_()}
_ONE |= {"f16": pa.float16(), "f32": pa.float32(), "f64": pa.float64()}
_TYPES = _ONE | {f"list[{name}]": pa.list_(of) for name, of in _ONE.items()}
_DECLARED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
COLUMNS = {name: Column(_TYPES[of], unit, meaning) for name, (of, unit, meaning) in _DECLARED.items()}

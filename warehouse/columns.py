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


TEXT = pa.string()
_ONE = {"u8": pa.uint8(), "u16": pa.uint16(), "u32": pa.uint32(), "i32": pa.int32(), "text": TEXT, "flag": pa.bool_()}
_ONE |= {"i64": pa.int64(), "f16": pa.float16(), "f32": pa.float32(), "f64": pa.float64()}
_TYPES = _ONE | {f"list[{name}]": pa.list_(of) for name, of in _ONE.items()}
_DECLARED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def column(of: str, unit: str, meaning: str) -> Column:
    """As columns.toml writes it: `of` names the type."""
    return Column(_TYPES[of], unit, meaning)


COLUMNS = {name: column(*said) for name, said in _DECLARED.items()}

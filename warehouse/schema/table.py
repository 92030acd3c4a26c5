"""What a column and a table declare, and how a question of one engine's is answered from the tables that all of them share.

Columns are those of ../columns.toml, each declared once. The tables themselves are the TOML files beside this one, a file per
subject; names of columns are written as words.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
_DECLARED = tomllib.loads((Path(__file__).parents[1] / "columns.toml").read_text(encoding="utf-8"))


def column(of: str, unit: str, meaning: str) -> Column:
    """As columns.toml writes it: `of` names the type."""
    return Column(_TYPES[of], unit, meaning)


COLUMNS = {name: column(*said) for name, said in _DECLARED.items()}

DECISIONS: dict[str, str] = tomllib.loads(Path(__file__).with_name("decisions.toml").read_text(encoding="utf-8"))
_OF_DECISIONS = {name: Column(TEXT, "", f"{meaning}: policy and parameters") for name, meaning in DECISIONS.items()}


@dataclass(frozen=True)
class Table:
    """Column names in order, the ones that may be absent, and the key that identifies a row.

    own: columns that mean something else here than in columns.toml.
    """

    columns: tuple[str, ...]
    key: tuple[str, ...]
    meaning: str
    optional: tuple[str, ...] = ()
    nullable: tuple[str, ...] = ()
    own: Mapping[str, Column] = field(default_factory=dict)

    def column(self, name: str) -> Column:
        return self.own.get(name) or COLUMNS[name]


@dataclass(frozen=True)
class View(Table):
    """Rows as one engine makes them and a page reads them; at rest they are runs and what was measured of each.

    engine: what computes them. values: the stored table of what was measured; empty: the rows
    tell facts alone. at: columns that say where in a run a value belongs
    (a layer, a request, a part), by the column of `values` that holds them; for `steps`, `busy` and `checks`, whose rows hold
    more than a value, every column of theirs. band: the measured column that `low` and `high` are of. facts: numbers that are
    given and not measured. decisions: the columns that say what the run's system decides by. of: the view whose runs these
    rows are of, where it is another. run_id: the column that holds the run's id; empty: it is the hash of the key.
    Every other column is a fact if it is in the key, a text or a flag, else a metric of its name.
    """

    engine: str = ""
    values: str = "metrics"
    at: Mapping[str, str] = field(default_factory=dict)
    band: str = ""
    facts: tuple[str, ...] = ()
    decisions: Mapping[str, str] = field(default_factory=dict)
    of: str = ""
    run_id: str = ""


def tables_of(subject: str) -> dict[str, Table]:
    """The tables of <subject>.toml, by name: views where an engine computes them. One that has a column for every decision has
    them with the meaning of DECISIONS; `a=b` in `at` and `decisions`: column a is held, or decides, as b."""
    tables = tomllib.loads(Path(__file__).with_name(f"{subject}.toml").read_text(encoding="utf-8"))
    return {name: _table(said) for name, said in tables.items()}


def _table(said: dict[str, Any]) -> Table:
    of: dict[str, Any] = {
        name: tuple(said[name].split()) for name in ("columns", "key", "optional", "nullable", "facts") if name in said
    }
    of |= {name: _pairs(said[name]) for name in ("at", "decisions") if name in said}
    own = _OF_DECISIONS if {*DECISIONS} <= {*of["columns"]} else {}
    own = own | {name: column(*parts) for name, parts in said.pop("own", {}).items()}
    return (View if "engine" in said else Table)(**said | of, own=own)


def _pairs(text: str) -> dict[str, str]:
    return {column: held or column for column, _, held in (word.partition("=") for word in text.split())}

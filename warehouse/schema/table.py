"""What a table declares, and how a question of one engine's is answered from the tables that all of them share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokentape.warehouse.columns import COLUMNS, Column


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


def names(text: str) -> tuple[str, ...]:
    """Names of columns, written as words."""
    return tuple(text.split())


def places(text: str) -> dict[str, str]:
    """What `at` of a view says, written as words: `layer` is held under its own name, `tier=label` as `label`."""
    return {column: held or column for column, _, held in (word.partition("=") for word in text.split())}

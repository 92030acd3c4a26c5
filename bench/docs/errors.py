"""The README's table of errors: what the shipped studies answer, computed anew, beside the papers' numbers.

python -m bench.docs.errors README.md [SYSTEM ...]     rewrites `<!-- errors -->`

Minutes of CPU; all systems, unless some are named. Only what needs no live model is computed: rows that are fitted or predicted
need none. `tokentape claims` prints the same of the studies in a store.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

from bench.docs import rewritten, write
from tokentape.flows.running import run
from tokentape.flows.systems import SYSTEMS
from tokentape.warehouse.claim_errors import by_system, signed
from tokentape.warehouse.load import claims
from tokentape.warehouse.tape import Store

Row = dict[str, Any]
HEAD = (
    "| system | rows fitted | median, mean error | rows predicted | median, mean error | worst predicted row |",
    "|---|---|---|---|---|---|",
)


def answers(system: str, store: Store) -> list[Row]:
    """What the study of a system answers without a live model; recorded arrivals answer nothing."""
    settings = importlib.import_module(SYSTEMS[system]).Settings
    return run(settings.shipped(), store, workers=1, say=lambda line: None, in_model=False)


def lines(answers: Iterable[Mapping[str, Any]]) -> list[str]:
    """The table's rows, one for each system that is answered."""
    return [_line(row) for row in by_system(claims(), list(answers))]


def _line(row: Row) -> str:
    name = row["system"]
    cells = (
        f"[{name}](docs/{name}.md)",
        *(row["n_fitted"], f"{_percent(row['fitted_median'])}, {_percent(row['fitted_mean'])} %"),
        *(row["n_predicted"], f"{_percent(row['median'])}, {_percent(row['mean'])} %"),
        f"{signed(row['worst'], row['worst_unit'])}: {row['worst_row']}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def _percent(frac: float) -> str:
    return f"{100 * frac:.1f}"


def refreshed(text: str, answers: Iterable[Mapping[str, Any]]) -> str:
    """The page with these answers in its table; a system without an answer keeps its line."""
    made = lines(answers)

    def table(_: str, held: str) -> str:
        new = {_system(line) for line in made}
        kept = [line for line in held.strip().splitlines()[len(HEAD) :] if _system(line) not in new]
        return "\n".join(["", *HEAD, *sorted([*made, *kept]), ""])

    return rewritten(text, "errors", table)


def _system(line: str) -> str:
    return line.partition("]")[0]


def _now(text: str, systems: Iterable[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return refreshed(text, [row for system in systems for row in answers(system, Store(f"{folder}/{system}"))])


if __name__ == "__main__":
    told, asked = f"errors README.md [SYSTEM ...]; systems: {', '.join(SYSTEMS)}", sys.argv[2:]
    write(told, sys.argv[1:2] if set(asked) <= set(SYSTEMS) else (), lambda text: _now(text, asked or SYSTEMS))

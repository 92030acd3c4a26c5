"""The README's table of errors: what the shipped studies answer, computed anew, beside the papers' numbers.

python -m tokentape.flows.error_table README.md [SYSTEM ...]     rewrites what stands between `<!-- errors -->` and `<!-- end -->`

Minutes of CPU; all systems, unless some are named. Only what needs no live model is computed: rows that are fitted or predicted
need none. `tokentape claims` prints the same of the studies in a store.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokentape.flows.running import run
from tokentape.flows.systems import SYSTEMS
from tokentape.hw.files import write_text
from tokentape.warehouse.claim_errors import by_system, compared, signed
from tokentape.warehouse.load import claims
from tokentape.warehouse.tape import Store

Row = dict[str, Any]
HEAD = (
    "| system | rows fitted | median, mean error | rows predicted | median, mean error | worst predicted row |",
    "|---|---|---|---|---|---|",
)
BLOCK = re.compile(r"(?s)(<!-- errors -->)\n(.*?)(<!-- end -->)")


def answers(system: str, store: Store) -> list[Row]:
    """What the study of a system answers without a live model; recorded arrivals answer nothing."""
    settings = importlib.import_module(SYSTEMS[system]).Settings
    return run(settings.shipped(), store, workers=1, say=lambda line: None, in_model=False)


def lines(answers: Iterable[Mapping[str, Any]]) -> list[str]:
    """The table's rows, one for each system that is answered."""
    return [_line(row) for row in by_system(*compared(claims(), list(answers)))]


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

    def table(match: re.Match[str]) -> str:
        new = {_system(line) for line in made}
        kept = [line for line in match[2].splitlines()[len(HEAD) :] if _system(line) not in new]
        return "\n".join([match[1], *HEAD, *sorted([*made, *kept]), match[3]])

    return BLOCK.sub(table, text)


def _system(line: str) -> str:
    return line.partition("]")[0]


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(SYSTEMS):
        sys.exit(f"usage: python -m tokentape.flows.error_table README.md [SYSTEM ...]; systems: {', '.join(SYSTEMS)}")
    page = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        made = [row for system in sys.argv[2:] or SYSTEMS for row in answers(system, Store(f"{folder}/{system}"))]
    write_text(page, refreshed(page.read_text(encoding="utf-8"), made))

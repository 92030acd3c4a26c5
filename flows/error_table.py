"""The README's table of errors: what the shipped studies answer, computed anew, beside the papers' numbers.

python -m tokentape.flows.error_table README.md [SYSTEM ...]     rewrites what stands between `<!-- errors -->` and `<!-- end -->`

Seconds of CPU for elmoe3d and kelle, half a minute for cxl_ndp, minutes for layered_prefill and slicemoe; all, unless some
are named. Only what needs no live model is computed: rows that are fitted or predicted need none. `tokentape claims` prints the
same of the studies in a store.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from tokentape.flows.grid import load_hardware
from tokentape.flows.systems.cxl_ndp import answers as cxl_ndp_answers
from tokentape.flows.systems.cxl_ndp import study as cxl_ndp
from tokentape.flows.systems.elmoe3d import study as elmoe3d
from tokentape.flows.systems.elmoe3d.settings import setup_of
from tokentape.flows.systems.kelle import answers as kelle_answers
from tokentape.flows.systems.kelle import settings as kelle
from tokentape.flows.systems.kelle import setup, sweeps
from tokentape.flows.systems.layered_prefill import study as layered_prefill
from tokentape.flows.systems.slicemoe import answers as slicemoe_answers
from tokentape.flows.systems.slicemoe import study as slicemoe
from tokentape.flows.systems.slicemoe import sweeps as slicemoe_sweeps
from tokentape.hw.files import write_text
from tokentape.replay.elmoe3d.cells import cells
from tokentape.warehouse.claim_errors import by_system, compared, signed
from tokentape.warehouse.load import claims
from tokentape.warehouse.tape import Store

Row = dict[str, Any]
HEAD = (
    "| system | rows fitted | median, mean error | rows predicted | median, mean error | worst predicted row |",
    "|---|---|---|---|---|---|",
)
BLOCK = re.compile(r"(?s)(<!-- errors -->)\n(.*?)(<!-- end -->)")


def _cxl_ndp(store: Store) -> list[Row]:
    study = cxl_ndp.Settings.shipped()
    made: dict[str, list[Row]] = {}
    for model in study.models[:2]:  # the paper's
        for name, rows in cxl_ndp.of_model(study, model).items():
            made.setdefault(name, []).extend(rows)
    return study.named(cxl_ndp_answers.answers(study, made))


def _elmoe3d(store: Store) -> list[Row]:
    study = elmoe3d.Settings.shipped()
    fits = list(study.load_fits().values())
    return study.named(elmoe3d.closed_forms(study, setup_of(study), cells(claims().to_pylist()), fits)["answers"])


def _kelle(store: Store) -> list[Row]:
    made = setup.setup(kelle.Settings.shipped())
    points, requests = (
        pl.DataFrame(list(rows_of(made)), infer_schema_length=None) for rows_of in (sweeps.points, sweeps.requests)
    )
    return made.study.named(kelle_answers.answers(made, points, requests))


def _layered_prefill(store: Store) -> list[Row]:
    study = layered_prefill.Settings.shipped().model_copy(update={"traces": ()})  # recorded arrivals answer nothing
    return layered_prefill.run(store, lambda *told: None, study, "threads", 1, say=lambda line: None)


def _slicemoe(store: Store) -> list[Row]:
    study = slicemoe.Settings.shipped()
    study = study.model_copy(update={"pairs": study.pairs[:1], "targets": ()})  # the others answer nothing
    swept = [
        study.rows_of(store, "slicemoe_points", slicemoe_sweeps.of_tape(store, study, job))
        for job in product(study.models, study.seeds)
    ]
    points = pl.concat((pl.DataFrame(rows, infer_schema_length=None) for rows in swept), how="vertical_relaxed")
    return study.named(slicemoe_answers.answers(study, load_hardware(study.hardware), points))


SYSTEMS: dict[str, Callable[[Store], list[Row]]] = {
    "cxl_ndp": _cxl_ndp,
    "elmoe3d": _elmoe3d,
    "kelle": _kelle,
    "layered_prefill": _layered_prefill,
    "slicemoe": _slicemoe,
}


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
        made = [row for system in sys.argv[2:] or SYSTEMS for row in SYSTEMS[system](Store(folder))]
    write_text(page, refreshed(page.read_text(encoding="utf-8"), made))

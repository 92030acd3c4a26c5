"""Predicted against measured of real engines: rows for the validation page, and the table of README.md and docs/validation.md.

python -m tokentape.flows.validation DATA PAGE...     runs all that lies in DATA, rewrites `<!-- validation -->` to `<!-- end -->`

`<!-- validation with -->` has what more is told or fitted too. What other simulators reach is warehouse/claims/simulators.csv.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from tokentape.hw.files import write_text
from tokentape.replay.serving.validation import NOTHING, Moment, Row
from tokentape.warehouse.results import write_rows
from tokentape.warehouse.tape import Store

SIMULATORS = Path(__file__).parents[1] / "warehouse" / "claims" / "simulators.csv"
OURS, CHECK, MOMENT = "tokentape", "engine", "moment"
UNITS = {"hit_frac": "1", "read_bytes_per_token": "B", "tokens_per_s": "1/s", "output_tokens_per_s": "1/s"}
# What is measured, in the order of the table: folder, machine, command, and words of it with which predictions are told more.
RUNS = (
    ("vllm_experiments", "h100", "serving", ("",)),
    ("vllm_experiments", "h100", "serving", ("--fit-front-end 63",)),
    ("vllm_logs", "rtxpro6000", "serving", ("",)),
    ("vllm_logs", "rtxpro6000", "serving", ("--fits gpu/rtxpro6000_vllm0.19_by_model",)),
    ("offload_measured", "oneplus-15r", "offload", ("",)),
    ("offload_measured", "oneplus-15r", "offload", ("--fit-on qwen_k8_overlap", "--fit-on gemma_k8_overlap")),
)
_BLOCK = re.compile(r"(?s)<!-- validation( with)? -->\n.*?<!-- end -->")
_HEAD = (
    "| measured | on | metric | mean error | compared | nothing fitted | others: mean error (compared) |",
    "|---|---|---|---|---|---|---|",
)


class Run(NamedTuple):
    """Of what lies in a folder: rows of `validate`, of so many stages or settings that there are; told: words of the command."""

    data: str
    machine: str
    told: str
    rows: Sequence[Row]
    n_of: int


def errors(data: str, rows: Iterable[Row], n_of: int) -> list[dict[str, Any]]:
    """Ours and the simulators', by metric, of means alone. rows whose metric was fitted on themselves are left out; n_of: stages
    or settings that there are; n_free: of those run, on which nothing was fitted."""
    means = [row for row in rows if row.statistic == "mean"]
    found = []
    for metric in dict.fromkeys(row.metric for row in means):
        of = [row for row in means if row.metric == metric]
        unseen = [abs(row.rel_err) for row in of if not row.fitted_on.endswith(f" {row.source}")]
        if not unseen:
            continue
        shares = {f"{name}_frac": float(np.quantile(unseen, q)) for name, q in (("median", 0.5), ("p95", 0.95))}
        n_free = sum(row.fitted_on == NOTHING for row in of)
        told = {"simulator": OURS, "metric": metric, "mape_frac": float(np.mean(unseen)), "n": len(unseen)}
        found.append({"data": data, **told, "n_of": n_of, "n_free": n_free, **shares})
    others = pl.read_csv(SIMULATORS).filter(pl.col("data") == data).drop("source")
    return (
        found + others.with_columns(n_free=pl.col("n"), median_frac=pl.col("mape_frac"), p95_frac=pl.col("mape_frac")).to_dicts()
    )


def record(store: Store, data: str, machine: str, rows: Sequence[Row], n_of: int, moments: Iterable[Moment] = ()) -> None:
    """For the validation page: an error per metric and simulator, a point per metric, statistic and stage, and of a log's moments
    as many as it has."""
    of = {"check": CHECK, "device": data}
    shown = [
        {
            **of, "framework": one["simulator"], "version": f"{one['n']} of {one['n_of']}", "operator": one["metric"],
            "split": "closed_form" if one["n"] == one["n_free"] else "held_out",
            **{name: one[name] for name in ("n", "mape_frac", "median_frac", "p95_frac")},
        }
        for one in errors(data, rows, n_of)
    ]  # fmt: skip
    points = [
        {
            **of, "framework": OURS, "version": machine, "operator": row.metric,
            "split": _split(row),
            "regime": row.statistic, "shape": f"{row.source}, stage {row.stage}", "measured": row.measured,
            "predicted": row.predicted, "unit": UNITS.get(row.metric, "s"),
        }
        for row in rows
    ]  # fmt: skip
    points += [
        {
            **of, "framework": OURS, "version": machine, "operator": moment.metric, "split": _split(rows[0]), "regime": MOMENT,
            "shape": moment.source, "start_s": moment.start_s, "measured": moment.measured,
            "predicted": moment.predicted, "unit": UNITS.get(moment.metric, "s"),
        }
        for moment in moments
    ]  # fmt: skip
    write_rows(store, "validation", shown)
    write_rows(store, "validation_points", points)


def _split(row: Row) -> str:
    if row.fitted_on == NOTHING:
        return "closed_form"
    return "fitted" if row.fitted_on.endswith(f" {row.source}") else "held_out"


def data_of(path: Path) -> str:
    """What a folder's measurements go by: its name, of a log that of the folder of logs."""
    return path.resolve().parent.name if (path / "meta.json").is_file() else path.resolve().name


def table(runs: Iterable[Run]) -> list[str]:
    """Lines of the table."""
    lines = list(_HEAD)
    for run in runs:
        every = errors(run.data, run.rows, run.n_of)
        for one in (one for one in every if one["simulator"] == OURS):
            others = [
                f"{of['simulator']} {_percent(of['mape_frac'])} ({of['n']})"
                for of in every
                if of["metric"] == one["metric"] and of["simulator"] != OURS and not run.told
            ]
            free, named = "yes" if one["n_free"] >= one["n"] else "no", f"{run.data}{run.told and f', `{run.told}`'}"
            told = (named, run.machine, one["metric"], _percent(one["mape_frac"]), f"{one['n']} of {run.n_of}", free)
            lines.append(f"| {' | '.join((*told, ', '.join(others)))} |")
    return lines


def _percent(frac: float) -> str:
    return f"{100 * frac:.1f} %"


def runs_of(data: Path) -> list[Run]:
    """All of RUNS that lie in a folder, through the command line. In what is told, paths are relative to it."""
    from tokentape.replay.serving.engine_logs import read
    from tokentape.replay.system import offload

    found = []
    for name, machine, command, told in RUNS:
        folder = data / name
        if not folder.is_dir():
            continue
        paths = sorted(path.parent for path in folder.glob("*/meta.json")) or [folder]
        n_of = len(offload.read(folder)) if command == "offload" else sum(len(list(read(path, 0))) for path in paths)
        rows = list[Row]()
        for words in told:
            given = [str(data / word) if (data / word).is_dir() else word for word in words.split()]
            asked = ["validate", command, *map(str, paths), "--machine" if command == "offload" else "--hardware", machine]
            rows += _rows([*asked, *given, "--json"])
        found.append(Run(name, machine, " or ".join(told), rows, n_of))
    return found


def refreshed(text: str, runs: Sequence[Run]) -> str:
    """A page with these tables."""

    def block(match: re.Match[str]) -> str:
        lines = table(run for run in runs if match[1] or not run.told)
        return "\n".join((f"<!-- validation{match[1] or ''} -->", *lines, "<!-- end -->"))

    return _BLOCK.sub(block, text)


def _rows(words: list[str]) -> list[Row]:
    from tokentape.flows.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(words)
    return [Row(**row) for row in json.loads(out.getvalue())]


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python -m tokentape.flows.validation DATA PAGE...")
    made = runs_of(Path(sys.argv[1]))
    for page in map(Path, sys.argv[2:]):
        write_text(page, refreshed(page.read_text(encoding="utf-8"), made))

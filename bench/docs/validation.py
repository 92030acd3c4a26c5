"""Predicted against measured of real engines: the tables of README.md and docs/validation.md.

python -m bench.docs.validation DATA PAGE...     runs all that lies in DATA, rewrites `<!-- validation -->`

`<!-- validation with -->` has what more is told or fitted too.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.docs import rewritten, write
from tokentape.flows.validation import OURS, errors
from tokentape.replay.serving.validation import Row

# What is measured, in the order of the table: folder, machine, command, and words of it with which predictions are told more.
RUNS = (
    ("vllm_experiments", "h100", "serving", ("",)),
    ("vllm_experiments", "h100", "serving", ("--fit-front-end 63",)),
    ("vllm_logs", "rtxpro6000", "serving", ("",)),
    ("vllm_logs", "rtxpro6000", "serving", ("--fits gpu/rtxpro6000_vllm0.19_by_model",)),
    ("offload_measured", "oneplus-15r", "offload", ("",)),
    ("offload_measured", "oneplus-15r", "offload", ("--fit-on qwen_k8_overlap", "--fit-on gemma_k8_overlap")),
)
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
    return rewritten(
        text, "validation", lambda words, _: "\n".join(["", *table(r for r in runs if " " in words or not r.told), ""])
    )


def _rows(words: list[str]) -> list[Row]:
    from tokentape.flows.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(words)
    return [Row(**row) for row in json.loads(out.getvalue())]


if __name__ == "__main__":
    ran = runs_of(Path(sys.argv[1])) if len(sys.argv) > 2 else []
    write("validation DATA PAGE...", sys.argv[2:], lambda text: refreshed(text, ran))

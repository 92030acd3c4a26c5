"""Predicted against measured of real engines, experts that one streamed among it, and rows for the validation page. What other
simulators reach is warehouse/claims/simulators.csv."""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tokentape.capture.importers.bigmoe import import_bigmoe
from tokentape.flows.console import note
from tokentape.flows.system_runs import tape_of
from tokentape.hw.spec import HardwareSpec
from tokentape.replay.serving.validation import NOTHING, Moment, Row
from tokentape.replay.system import offload
from tokentape.warehouse.results import write_rows
from tokentape.warehouse.tape import Store

SIMULATORS = Path(__file__).parents[1] / "warehouse" / "claims" / "simulators.csv"
OURS, CHECK, MOMENT = "tokentape", "engine", "moment"
UNITS = {"hit_frac": "1", "read_bytes_per_token": "B", "tokens_per_s": "1/s", "output_tokens_per_s": "1/s"}


def errors(data: str, rows: Iterable[Row], n_of: int) -> list[dict[str, Any]]:
    """Ours and the simulators', by metric, of means alone. rows whose metric was fitted on themselves are left out; n_of: stages
    or settings that there are; n_free: of those run, on which nothing was fitted."""
    means = [row for row in rows if row.statistic == "mean"]
    found = []
    for metric in dict.fromkeys(row.metric for row in means):
        of = [row for row in means if row.metric == metric]
        unseen = [abs(row.rel_err) for row in of if not row.is_fitted]
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
    as many as it has. n_of: stages or settings that there are."""
    of = {"check": CHECK, "device": data}
    shown = [
        {
            **of, "framework": one["simulator"], "version": f"{one['n']} of {one['n_of']}", "operator": one["metric"],
            "split": "closed_form" if one["n"] == one["n_free"] else "held_out",
            **{name: one[name] for name in ("n", "mape_frac", "median_frac", "p95_frac")},
        }
        for one in errors(data, rows, n_of)
    ]  # fmt: skip
    told: list[tuple[Row | Moment, dict[str, Any]]] = [
        (row, {"split": _split(row), "regime": row.statistic, "shape": f"{row.source}, stage {row.stage}"}) for row in rows
    ]
    splits = {row.source: _split(row) for row in rows}
    for moment in moments:
        told += [(moment, {"split": splits[moment.source], "regime": MOMENT, "shape": moment.source, "start_s": moment.start_s})]
    points = [
        of | where | {"framework": OURS, "version": machine, "operator": one.metric, "unit": UNITS.get(one.metric, "s")}
        | {name: getattr(one, name) for name in ("measured", "predicted")}
        for one, where in told
    ]  # fmt: skip
    write_rows(store, "validation", shown)
    write_rows(store, "validation_points", points)
    note(f"{len(rows)} rows recorded; `tokentape load` and `tokentape site` show them")


def _split(row: Row) -> str:
    if row.fitted_on == NOTHING:
        return "closed_form"
    return "fitted" if row.is_fitted else "held_out"


def data_of(path: Path) -> str:
    """What a folder's measurements go by: its name, of a log that of the folder of logs."""
    return path.resolve().parent.name if (path / "meta.json").is_file() else path.resolve().name


def streamed(
    folder: Path,
    tapes: Path,
    machine: HardwareSpec,
    fit_on: str | None = None,
    show: Callable[[int, int, str], object] = lambda done, total, what: None,
) -> list[Row]:
    """Of every setting of an engine that streams experts what it measured, beside what a replay predicts. fit_on: a log's name;
    None: of each model, the run that its tape is of. Raises ValueError naming what is missing."""
    if not machine.roles.expert_cache:
        raise ValueError(f"{machine.name} has no tier that experts are streamed from; give a machine with a backing tier")
    runs, rows = offload.read(folder), list[Row]()
    logs = {run.source: run for run in runs if run.manage_s}
    if fit_on is not None and fit_on not in logs:
        raise ValueError(f"--fit-on {fit_on}: no such log; those that lie there: {', '.join(logs)}")
    with tempfile.TemporaryDirectory() as place:
        store = Store(place)
        for model in dict.fromkeys(run.model for run in runs):
            of_model = [log for log in logs.values() if log.model == model]
            wanted = [log for log in of_model if (log.source == fit_on if fit_on else log.tape_of_run)]
            if not wanted:
                continue
            if not (tapes / wanted[0].tape).is_file():
                raise ValueError(f"{tapes / wanted[0].tape}: no such route trace; give its folder with --tapes")
            tape = tape_of(store, import_bigmoe(tapes / wanted[0].tape, store), wanted[0].geometry)
            as_fast, manage = offload.fitted(tape, wanted[0], machine)
            for run in (run for run in runs if run.model == model):
                show(runs.index(run), len(runs), run.source)
                rows += offload.compare(tape, run, as_fast, manage, wanted[0].source)
    return rows

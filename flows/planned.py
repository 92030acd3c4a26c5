"""What a study would do, and by what earlier runs took, how long that takes and how much it writes."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from tokentape.flows.grid import Cell, asked, begin, by_ids, manifest_of
from tokentape.flows.study import Study
from tokentape.warehouse import results
from tokentape.warehouse.at_rest import hash_of
from tokentape.warehouse.tables import RESULT_TABLES
from tokentape.warehouse.tape import Store

COSTS = "run_costs"  # folder of the store, a file per study
ROW: dict[str, Callable[[Any], Any]] = {"trace_id": str, "n_rows": int, "system": str, "n_runs": int, "cpu_s": float}


def planned(study: Study, store: Store) -> tuple[dict[str, Any], list[str]]:
    """What `run` would do: how many runs there are, found finished, left to compute, and known not to be possible, with reasons;
    bytes and cpu_s that those left would take in the store and of processors, from earlier runs on the same tape, or else on any,
    None where there are none. Computes and writes nothing, opens manifests and earlier runs alone. Raises ValueError as `run`."""
    begin(uuid4().hex)
    jobs, _, impossible, finished = asked(study, store)
    n_found, left = 0, Counter[tuple[str, str, str]]()
    for trace_id, of_trace in jobs:
        wanted, reasons = by_ids(store, study.name, of_trace)
        missing = [job for key, job in wanted.items() if key not in finished]
        impossible += reasons
        n_found += len(wanted) - len(missing)
        left.update(("replays" if isinstance(job, Cell) else "system_runs", trace_id, job.told[0]) for job in missing)
    n_bytes: float | None = None
    cpu_s: float | None = None
    if left:
        per_run, took = _bytes_per_run(store), cpu_per_run(store)
        sizes = [(n, per_run.get((view, trace_id), per_run.get((view, "")))) for (view, trace_id, _), n in left.items()]
        rows = {trace_id: manifest_of(store, trace_id).rows.get("routing", 0) for _, trace_id, _ in left}
        times = [(n, took(trace_id, name, rows[trace_id])) for (_, trace_id, name), n in left.items()]
        n_bytes, cpu_s = _sum(sizes), _sum(times)
    counts = {"runs": n_found + left.total() + len(impossible), "found": n_found, "left": left.total()}
    costs = {"bytes": None if n_bytes is None else round(n_bytes), "cpu_s": cpu_s}
    return counts | {"impossible": len(impossible)} | costs, [*map(str, impossible)]


def _sum(parts: Sequence[tuple[int, float | None]]) -> float | None:
    """Of so many of each; None where one of them is not known."""
    return None if any(each is None for _, each in parts) else sum(n * (each or 0.0) for n, each in parts)


def record(store: Store, study: str, trace_id: str, n_rows: int, n: Mapping[str, int], cpu_s: Mapping[str, float]) -> None:
    """How many runs of a study on a tape, of so many rows of routing, took how long: by policy or system, the newest of each."""
    path = store.path(COSTS, f"{hash_of(study)}.json")
    rows = {(row["trace_id"], row["system"]): row for row in _recorded(store, path)}
    for system, spent in cpu_s.items():
        row = {"trace_id": trace_id, "n_rows": n_rows, "system": system, "n_runs": n[system], "cpu_s": spent}
        rows[trace_id, system] = row
    if cpu_s:
        store.write_bytes(path, (json.dumps(list(rows.values()), indent=1) + "\n").encode())


def _recorded(store: Store, path: str) -> list[dict[str, Any]]:
    """What was recorded of a study; nothing where a file is damaged, which is made again."""
    with suppress(FileNotFoundError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        rows = [{name: of(row[name]) for name, of in ROW.items()} for row in json.loads(store.fs.cat_file(path))]
        return [row for row in rows if min(row["n_rows"], row["n_runs"]) > 0 and 0 <= row["cpu_s"] < math.inf]
    return []


def _bytes_per_run(store: Store) -> dict[tuple[str, str], float]:
    """What a run takes in the store, by view and tape, and by view alone under ""."""
    sizes = Counter[str]()
    for table in RESULT_TABLES:
        if store.fs.isdir(folder := store.path(table)):
            for entry in store.fs.ls(folder, detail=True):
                sizes[entry["name"].rsplit("/", 1)[-1].removesuffix(".parquet")] += entry["size"]
    n_bytes, n_runs = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    runs = results.stored(store, "runs", results.batches(store))
    for stem, view, trace_id, n in runs.group_by("stem", "view_name", "trace_id").len().iter_rows():
        for kind in {(view, trace_id or ""), (view, "")}:
            n_bytes[kind] += sizes[stem]
            n_runs[kind] += n
    return {kind: n_bytes[kind] / n for kind, n in n_runs.items()}


def cpu_per_run(store: Store) -> Callable[[str, str, int], float | None]:
    """CPU seconds of a run on a tape, by a policy or system, of so many rows of routing: by row, as it was there, or else on any
    tape, or else of any policy or system; None where nothing ran."""
    folder = store.path(COSTS)
    paths = store.fs.ls(folder, detail=False) if store.fs.isdir(folder) else []
    spent = [row for path in paths for row in _recorded(store, path)]

    def told(trace_id: str, system: str, n_rows: int) -> float | None:
        for said in ({"trace_id": trace_id, "system": system}, {"system": system}, dict[str, str]()):
            if like := [row for row in spent if said.items() <= row.items()]:
                return float(n_rows * sum(row["cpu_s"] for row in like) / sum(row["n_rows"] * row["n_runs"] for row in like))
        return None

    return told

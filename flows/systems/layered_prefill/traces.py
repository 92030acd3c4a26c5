"""Recorded arrivals for the study: files outside the project, imported where they are there, each a tape of requests."""

from __future__ import annotations

import os
from pathlib import Path

from capture.importers.request_traces import import_azure, import_mooncake
from flows.serving_setup import Point
from flows.systems.layered_prefill.settings import Job, Settings
from warehouse.tape import Store

VARIABLE = "TOKENTAPE_ARRIVALS"
BESIDE = Path(__file__).resolve().parents[4] / "shared" / "data" / "arrival"
IMPORTERS = {"azure": import_azure, "mooncake": import_mooncake}


def folder() -> Path:
    """Where the traces lie: the environment's folder, else the one beside the project."""
    return Path(os.environ.get(VARIABLE) or BESIDE)


def jobs(store: Store, study: Settings) -> tuple[list[Job], list[str]]:
    """Points of every trace that is there, imported into the store, and a line for each that is not."""
    found, missing = [], []
    for trace in study.traces:
        path = folder() / trace.file
        if not path.is_file():
            missing.append(f"{trace.series}: {path} is not there, its points are left out; put it there or set {VARIABLE}")
            continue
        trace_id = IMPORTERS[trace.importer](path, store)
        for fields in trace.schedulers:
            params = {name: value for name, value in fields.items() if name != "name"}
            for rate in trace.rates:
                point = Point(
                    scheduler=str(fields["name"]),
                    params=params,
                    workload=trace_id,
                    arrival="trace",
                    rate_per_s=rate,
                    windows=trace.windows,
                    n_seeds=trace.windows,
                    prefix_cache=trace.prefix_cache,
                )
                found.append(Job(trace.series, point))
    return found, missing

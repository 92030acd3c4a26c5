"""Recorded arrivals for the study: files in the folder that TOKENTAPE_ARRIVALS names, each imported as a tape of requests."""

from __future__ import annotations

import os
from pathlib import Path

from tokentape.capture.importers.request_traces import import_azure, import_mooncake
from tokentape.flows.serving.setup import Point
from tokentape.flows.systems.layered_prefill.settings import Job, Settings
from tokentape.warehouse.tape import Store

VARIABLE = "TOKENTAPE_ARRIVALS"
IMPORTERS = {"azure": import_azure, "mooncake": import_mooncake}


def folder() -> Path | None:
    """Where the traces lie, as the environment says. Raises ValueError if it names a folder that does not exist."""
    named = os.environ.get(VARIABLE)
    if named and not Path(named).is_dir():
        raise ValueError(f"{VARIABLE}={named}: no such folder of recorded arrivals")
    return Path(named) if named else None


def jobs(store: Store, study: Settings) -> tuple[list[Job], list[str]]:
    """Points of every trace that is there, imported into the store, and a line for each that is not."""
    found, missing, place = [], [], folder()
    for trace in study.traces:
        path = place / trace.file if place else Path(trace.file)
        if place is None or not path.is_file():
            missing.append(f"{trace.series}: {path} is not there, its points are left out; set {VARIABLE} to its folder")
            continue
        trace_id = IMPORTERS[trace.importer](path, store)
        for fields in trace.schedulers:
            params = {name: value for name, value in fields.items() if name != "name" and not isinstance(value, tuple)}
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

"""Flow `publish`: results into the warehouse, the warehouse into pages. `publish.fn(...)` runs it without Prefect's server."""

from __future__ import annotations

from pathlib import Path

from tokentape.flows import prefect_settings  # noqa: F401 isort:skip  before prefect
from prefect import flow

from tokentape.dashboards.site import build
from tokentape.flows import machines
from tokentape.flows.console import note
from tokentape.warehouse.load import database_path, load
from tokentape.warehouse.tape import Store


@flow(name="publish", retries=1, retry_delay_seconds=10)
def publish(store: str | None = None, site: str = "site") -> str:
    """Loads the store's warehouse and writes the pages into `site`; the path of the index page."""
    database = database_path(Store(store))
    report = load(Store(store), database, machines.shipped())
    for reason in report.damaged_tapes.values():
        note(f"left out: {reason}")
    return str(build(database, Path(site)))

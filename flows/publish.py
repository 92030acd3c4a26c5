"""Results into the warehouse, the warehouse into pages."""

from pathlib import Path

from tokentape.flows import machines
from tokentape.flows.console import note
from tokentape.warehouse.load import database_path
from tokentape.warehouse.load import load as load_store
from tokentape.warehouse.tape import Store


def load(store: str | None) -> Path:
    """Builds the store's warehouse; its file. Tapes that cannot be read are told and left out."""
    database = database_path(Store(store))
    report = load_store(Store(store), database, machines.shipped())
    for reason in report.damaged_tapes.values():
        note(f"left out: {reason}")
    note(f"{database}: {report}")
    return database


def write(database: Path, site: str) -> Path:
    """Writes the pages of a warehouse into the folder `site`; the index page."""
    from tokentape.dashboards.site import build

    return build(database, Path(site))


def publish(store: str | None = None, site: str = "site") -> str:
    """Loads the store's warehouse and writes its pages; the path of the index page, of the database where `site` is empty."""
    database = load(store)
    return str(write(database, site) if site else database)

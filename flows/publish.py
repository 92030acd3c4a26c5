"""Results into the warehouse, the warehouse into pages and into the answers that the dataflow gives."""

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from tokentape.flows import machines
from tokentape.flows.console import note
from tokentape.warehouse import load as loader
from tokentape.warehouse.sql import named, query
from tokentape.warehouse.tape import Store

QUESTIONS = Path(__file__).parent / "questions"


def load(store: str | None, database: str | None = None) -> Path:
    """Builds the store's warehouse, in its file or that of `database`; says what is in it and what is left out."""
    place = Store(store)
    path = Path(database) if database else loader.database_path(place)
    note(f"{path}: {loader.load(place, path, machines.shipped())}")
    return path


def write(database: Path, site: str) -> Path:
    """Writes the pages of a warehouse into the folder `site`; the index page."""
    from tokentape.dashboards.site import build

    return build(database, Path(site))


def publish(store: str | None = None, site: str = "site") -> str:
    """Loads the store's warehouse and writes its pages; the path of the index page, of the database where `site` is empty."""
    database = load(store)
    return str(write(database, site) if site else database)


def answered(store: Store, name: str, tapes: Iterable[str] = (), policy: str = "", share: float = 0.0) -> pl.DataFrame:
    """What the store's warehouse answers to questions/<name>.sql, in which {words} stand for these, and for named queries."""
    words = {"tapes": ", ".join(f"'{tape}'" for tape in tapes), "policy": policy.replace("'", "''"), "share": share}
    queries = {name: of.sql.rstrip(" ;\n") for name, of in named().items()}
    text = (QUESTIONS / f"{name}.sql").read_text(encoding="utf-8")
    return query(loader.database_path(store), text.format(**queries, **words))

"""The static site: reads the warehouse once, renders every page into a new folder, then swaps it in for the old one."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import duckdb

from tokentape.dashboards import index, shell
from tokentape.dashboards.engine.pages import Declared, declared
from tokentape.warehouse.atomic_files import aside_of, make_folder, naming, put_back, settle_folder
from tokentape.warehouse.sql import reading

PAGE_BYTES = 2_500_000  # a page stays below this
MAX_TRACES = 16
MARK = ".tokentape-site"  # only a folder that carries this file is ever replaced; what the warehouse held

PAGES = tuple(
    map(
        declared,
        ("compare", "experts", "tape", "hardware", "validation", "slicemoe", "layered_prefill", "elmoe3d", "kelle", "cxl_ndp"),
    )
)
compare, experts, tape, hardware, validation, slicemoe, layered, elmoe3d, kelle, cxl_ndp = PAGES
TOPICS = {page.file: page for page in PAGES}


def build(database: Path, out: Path, is_single: bool = False) -> Path:
    """Writes the pages of the warehouse `database` into the folder `out` and returns the path of index.html. is_single: each with
    Vega inside (0.9 MB), to go alone; else it lies beside them.

    A site already in `out` is replaced as a whole, or left as it is if anything fails. Raises ValueError if `out` holds
    anything but a site, FileNotFoundError if there is no warehouse, BadWarehouse if it cannot be read or is of another version.
    """
    place = out.resolve()  # of a link the folder that it names
    put_back(place, MARK)
    if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        raise ValueError(f"{out}: holds files that are not a tokentape site; choose an empty or new folder with --out")
    pages = [(index.FILE, index.TITLE), *((topic.file, topic.title) for topic in TOPICS.values())]
    with reading(database) as connection:
        held = index.held(connection)
        html = {index.FILE: shell.render(index.page(connection, _held_before(out / MARK)), pages, is_single)}
        html |= {file: _fitting(topic, connection, pages, is_single) for file, topic in TOPICS.items()}
    html |= ({} if is_single else {shell.VEGA: shell.vega()}) | {MARK: json.dumps(held)}
    fresh = Path(aside_of(str(place)))
    try:
        with naming(out):
            make_folder(fresh)
            for file, text in html.items():
                (fresh / file).write_text(text, encoding="utf-8")
            settle_folder(fresh, place)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return out / index.FILE


def _held_before(mark: Path) -> index.Held | None:
    """What the warehouse held as the site was written; None where there is no site, or its mark is damaged."""
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        told = json.loads(mark.read_text(encoding="utf-8") or "{}")
        return {study: [int(n), str(ids)] for study, (n, ids) in told.items()}
    return None


def _fitting(topic: Declared, connection: duckdb.DuckDBPyConnection, pages: list[tuple[str, str]], is_single: bool) -> str:
    """The topic's page with as many traces as keep it below PAGE_BYTES."""
    n_traces = MAX_TRACES
    while True:
        html = shell.render(topic.page(connection, n_traces), pages, is_single)
        if len(html.encode("utf-8")) < PAGE_BYTES or n_traces == 1:
            return html
        n_traces //= 2

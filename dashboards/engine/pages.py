"""A page as data: page.toml of its folder has the title, the lead, the names of the figures and the page's own menus."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import duckdb

from tokentape.dashboards.engine.ask import Ask
from tokentape.dashboards.engine.figures import menus, with_figures
from tokentape.dashboards.shell import Page

Asked = Callable[..., Ask]
Made = Callable[[duckdb.DuckDBPyConnection, int], Page]


def declared(module: str) -> tuple[str, str, Asked, Made]:
    """FILE, TITLE, asked and page of a module beside a page.toml; size: how many tapes, models or settings a page carries."""
    folder = Path(module).parent
    told = tomllib.loads((folder / "page.toml").read_text(encoding="utf-8"))

    def asked(connection: duckdb.DuckDBPyConnection, size: int = 16) -> Ask:
        return Ask(connection, folder, size, told["params"])

    def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
        ask = asked(connection, size)
        controls, choices = menus(ask, told)
        own = Page(told["file"], told["title"], told["lead"], "page.html", controls=controls, choices=choices)
        return with_figures(own, ask, told["figures"], told.get("digits"))

    return told["file"], told["title"], asked, page

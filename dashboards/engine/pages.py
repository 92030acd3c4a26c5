"""A page as data: page.toml of its folder has the title, the lead, the names of the figures and the page's own menus."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import duckdb

from tokentape.dashboards.engine.ask import Ask
from tokentape.dashboards.engine.figures import menus, with_figures
from tokentape.dashboards.shell import Page


class Declared(NamedTuple):
    """A page of which page.toml of its folder says all, named as a module names them; size of `asked` and `page`: how many tapes,
    models or settings it carries."""

    FILE: str
    TITLE: str
    asked: Callable[..., Ask]
    page: Callable[[duckdb.DuckDBPyConnection, int], Page]
    folder: Path


def declared(name: str) -> Declared:
    """The page of a folder of dashboards/."""
    folder = Path(__file__).parents[1] / name
    told = tomllib.loads((folder / "page.toml").read_text(encoding="utf-8"))

    def asked(connection: duckdb.DuckDBPyConnection, size: int = 16) -> Ask:
        return Ask(connection, folder, size, told["params"])

    def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
        ask = asked(connection, size)
        controls, choices = menus(ask, told)
        own = Page(told["file"], told["title"], told["lead"], "page.html", controls=controls, choices=choices)
        return with_figures(own, ask, told["figures"], told.get("digits"))

    return Declared(told["file"], told["title"], asked, page, folder)

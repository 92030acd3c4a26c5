"""A page as data: page.toml of its folder has the title, the lead, the names of the figures, the page's own menus, and of what
its size limits, how many there are (`shown`: SQL by what they are called): the lead says so where some are left out.

What a file cannot say is code beside it, page.py: `ready(ask)`, the page's questions with more than the file gives them, and
`own(ask)`, fields of the Page.
"""

import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from tokentape.dashboards.engine.ask import Ask
from tokentape.dashboards.engine.figures import menus, with_figures
from tokentape.dashboards.shell import Page
from tokentape.dashboards.units import joined


class Declared(NamedTuple):
    """A page; size of `asked` and `page`: how many tapes, models or settings it carries."""

    file: str
    title: str
    asked: Callable[..., Ask]
    page: Callable[[duckdb.DuckDBPyConnection, int], Page]
    folder: Path


def declared(name: str) -> Declared:
    """The page of a folder of dashboards/."""
    folder, file = Path(__file__).parents[1] / name, f"{name}.html"
    told = tomllib.loads((folder / "page.toml").read_text(encoding="utf-8"))
    code: Any = import_module(f"tokentape.dashboards.{name}.page") if (folder / "page.py").exists() else None

    def asked(connection: duckdb.DuckDBPyConnection, size: int = 16) -> Ask:
        ask = Ask(connection, folder, size, told.get("params", {}))
        return code.ready(ask) if hasattr(code, "ready") else ask

    def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
        ask = asked(connection, size)
        controls, choices = menus(ask, told)
        own = {"controls": controls, "choices": choices, **(code.own(ask) if hasattr(code, "own") else {})}
        there = {what: ask.sql(text).item() for what, text in told.get("shown", {}).items()}
        few = joined([f"{size} of {n:,} {what}" for what, n in there.items() if n > size])
        lead, template = told["lead"] + f" Shown: {few}." * bool(few), told.get("template", "page.html")
        return with_figures(Page(file, told["title"], lead, template, **own), ask, told["figures"])

    return Declared(file, told["title"], asked, page, folder)

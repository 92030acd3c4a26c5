"""A page's figures: files in its folder figures/, each with a function that makes its rows and its sentences."""

from __future__ import annotations

import tomllib
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import jinja2
import polars as pl
import polars.selectors as cs

from tokentape.dashboards import theme
from tokentape.dashboards.engine.ask import Ask, Nothing, some
from tokentape.dashboards.engine.chart import chart
from tokentape.dashboards.engine.grammar import BadFigure, Scope
from tokentape.dashboards.engine.say import Rows, filled
from tokentape.dashboards.shell import Control, Figure, Page, Part, with_parts
from tokentape.warehouse.sql import one_line

SHARED = Path(__file__).parents[1]  # its figures/ are for all pages
KEYS = {
    "question",
    "question_empty",
    "missing",
    "rows",
    "given",
    "query",
    "answer",
    "by",
    "depends",
    "params",
    "reading",
    "like",
    "chart",
    "panels",
}


@dataclass(frozen=True)
class Drawn:
    """What a figure is drawn from. data: named rows; facts: what its file calls by name.

    said: the rows that the file's `answer` is of, else the first of the data. controls, choices: menus and selections of its own.
    """

    data: Mapping[str, pl.DataFrame]
    answers: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    said: pl.DataFrame | None = None
    controls: tuple[Control, ...] = ()
    choices: tuple[Mapping[str, str], ...] = ()


Make = Callable[[Ask], Drawn]


def sentences(found: pl.DataFrame, keys: Sequence[str], answer: Callable[[pl.DataFrame], str]) -> dict[str, str]:
    """A sentence for each selection; none where there is nothing to say."""
    told = ((key, answer(of)) for key, of in found.group_by(keys, maintain_order=True))
    return {"|".join(f"{one:g}" if isinstance(one, float) else f"{one}" for one in key): said for key, said in told if said}


def rows_like(found: pl.DataFrame, of: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Rows that have in these columns what all of the rows `of` have."""
    return found.filter(pl.col(name) == of[name][0] for name in columns)


def options(name: str, values: Iterable[Any], opening: Any = None) -> tuple[dict[str, str], ...]:
    """The choices of a menu; `opening` comes first if it is there."""
    return tuple({name: str(value)} for value in sorted(values, key=lambda value: value != opening))


def with_figures(page: Page, ask: Ask, names: Iterable[str | Part], digits: int | None = None) -> Page:
    """The page with its figures: names of files, or parts that are drawn by code. Controls that nothing can be chosen of go.

    digits: of a number, as the page carries it.
    """
    own = f"tokentape.dashboards.{ask.folder.name}.words"
    words = vars(theme) | (vars(import_module(own)) if (ask.folder / "words.py").exists() else {})
    told = [(name, load(ask.folder, name), ask) if isinstance(name, str) else name for name in names]
    parts = [(one, None) if isinstance(one, Part) else _part(*one, words) for one in told]
    page = with_parts(page, *(replace(part, figures=()) for part, _ in parts))
    held = {name for row in page.choices for name in row}
    controls = {control.name: control for control in page.controls if control.name in held}
    page = replace(page, controls=tuple(controls.values()), choices=_once(page.choices))
    if digits is not None:
        rounded = {name: frame.with_columns(cs.float().round_sig_figs(digits)) for name, frame in page.data.items()}
        page = replace(page, data=rounded)
    figures = [figure for part, make in parts for figure in ((make(page),) if make else part.figures)]
    return replace(page, figures=(*page.figures, *figures))


def _once(rows: Iterable[Mapping[str, str]]) -> tuple[Mapping[str, str], ...]:
    """Rows without repetition: several figures may bring the same menu."""
    return tuple({tuple(row.items()): row for row in rows}.values())


def _part(name: str, told: Mapping[str, Any], ask: Ask, words: Mapping[str, Any]) -> tuple[Part, Callable[[Page], Figure]]:
    """Everything of a figure but its chart, which needs to know what the whole page opens with."""
    make = _rows(ask.folder, name, told)
    scope = Scope(f"{ask.folder.name}/figures/{name}.toml", dict(words), {})
    try:
        drawn = make(ask)
        if all(frame.is_empty() for frame in drawn.data.values()):
            raise Nothing
    except Nothing:
        question = _text(scope, told, "question_empty" if "question_empty" in told else "question")
        missing = Figure(name, question, None, {}, (), "", _text(scope, told, "missing"))
        return Part(()), lambda page: missing
    data = {key: frame for key, frame in drawn.data.items() if not frame.is_empty()}
    scope = replace(scope, names=ChainMap(dict(drawn.facts), dict(words)), frames=drawn.data)

    answers = _answers(scope, told, drawn) if "answer" in told else drawn.answers

    def figure(page: Page) -> Figure:
        return Figure(
            name,
            _text(scope, told, "question"),
            chart(scope, told, page.opening, told.get("params", told.get("depends", ()))),
            answers,
            tuple(told.get("depends", ())),
            _text(scope, told, "reading"),
            _text(scope, told, "missing"),
        )

    return Part((), drawn.controls, drawn.choices, data), figure


def _answers(scope: Scope, told: Mapping[str, Any], drawn: Drawn) -> dict[str, str]:
    """A sentence for each value of the columns `by`, else of what the figure depends on.

    In the template `rows` are those of the selection; other rows, facts and words go by their names.
    """
    rows = next(iter(drawn.data.values())) if drawn.said is None else drawn.said
    frames = {name: Rows(of) for name, of in {**drawn.data, **drawn.facts}.items() if isinstance(of, pl.DataFrame)}
    names = ChainMap({}, frames, dict(scope.names))

    def answer(of: pl.DataFrame) -> str:
        try:
            return filled(told["answer"], names.new_child({"rows": Rows(of)}))
        except (jinja2.TemplateError, pl.exceptions.PolarsError, TypeError, KeyError) as error:
            raise scope.inside("answer").bad(one_line(error)) from error

    keys = told.get("by", told.get("depends"))
    return sentences(rows, keys, answer) if keys else {"": answer(rows)}


def _text(scope: Scope, told: Mapping[str, Any], key: str) -> str:
    """A text of the file on one line, with its names filled in."""
    return " ".join(scope.inside(key).text(told[key]).split())


def _rows(folder: Path, name: str, told: Mapping[str, Any]) -> Make:
    """The function that `rows` names, of a module of the page or, after a dot, of all pages; or the rows of `query` as they are.

    A function of several figures takes the figure's name and what is `given` to it.
    """
    if "query" in told:
        return lambda ask: Drawn({name: some(ask(told["query"]))})
    module, _, function = told["rows"].partition(":")
    package = "tokentape.dashboards" if module.startswith(".") else f"tokentape.dashboards.{folder.name}."
    found = getattr(import_module(package + module), function or name, None)
    if found is None:
        raise BadFigure(f"{folder.name}/figures/{name}.toml: rows: {told['rows']}: no such function")
    if "given" in told:
        return lambda ask: found(ask, name=name, **told["given"])
    return found  # type: ignore[no-any-return]


@cache
def load(folder: Path, name: str) -> dict[str, Any]:
    """A figure's file. `like`: what it does not say is that of another of the page; of its own name: of the one for all pages.

    Raises BadFigure in one line if the file is missing, is not TOML, lacks something or says what no figure has.
    """
    where = f"{folder.name}/figures/{name}.toml"
    path = folder / f"figures/{name}.toml"
    if not path.exists():
        raise BadFigure(f"{where}: no such file")
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise BadFigure(f"{where}: {error}") from error
    if "like" in told:
        other = load(folder if told["like"] != name else SHARED, told["like"])
        told = other | told | {key: {**other.get(key, {}), **told.get(key, {})} for key in ("chart", "panels")}
    for key in told:
        if key not in KEYS:
            raise BadFigure(f"{where}: {key}: no part of a figure; there are {', '.join(sorted(KEYS))}")
    wanted = ("query", "answer") if "query" in told else ("rows",)
    for key in ("question", "missing", "reading", *wanted):
        if key not in told:
            raise BadFigure(f"{where}: {key}: missing")
    return told

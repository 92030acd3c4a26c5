"""A page's figures: files in its folder figures/, each with a function that makes its rows and its sentences."""

import tomllib
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import jinja2
import polars as pl
import polars.selectors as cs

from tokentape.dashboards.engine.ask import Ask, Nothing, some, words_of
from tokentape.dashboards.engine.chart import chart
from tokentape.dashboards.engine.grammar import BadFigure, Scope
from tokentape.dashboards.engine.say import Rows, filled
from tokentape.dashboards.shell import Control, Figure, Page
from tokentape.dashboards.theme import DIGITS
from tokentape.warehouse.sql import one_line

SHARED = Path(__file__).parents[1]  # its figures/ are for all pages
KEYS = {
    *("question", "question_empty", "missing", "rows", "given", "answer", "by", "depends", "params", "reading", "like", "chart"),
    *("panels", "query", "said", "data", "also", "facts", "menus", "table"),
}


@dataclass(frozen=True)
class Drawn:
    """What a figure is drawn from. data: named rows; facts: what its file calls by name.

    said: the rows that the file's `answer` is of, else the first of the data. controls, choices: menus and selections of its own.
    """

    data: Mapping[str, pl.DataFrame]
    facts: Mapping[str, Any] = field(default_factory=dict)
    said: pl.DataFrame | None = None
    controls: tuple[Control, ...] = ()
    choices: tuple[Mapping[str, str], ...] = ()


Make = Callable[[Ask], Drawn]


def options(name: str, values: Iterable[Any]) -> tuple[dict[str, str], ...]:
    """The choices of a menu."""
    return tuple({name: str(value)} for value in values)


def with_figures(page: Page, ask: Ask, names: Iterable[str]) -> Page:
    """The page with the figures of these files, and their menus. Controls that nothing can be chosen of go."""
    words = words_of(ask.folder.name)
    drawn = {name: ask.of(("drawn", name), partial(_drawn, ask, name)) for name in names}
    there = [one for one in drawn.values() if one]
    parts: list[Page | Drawn] = [page, *there]
    choices = [row for of in parts for row in of.choices]
    held = {name for row in choices for name in row}
    controls = {control.name: control for of in parts for control in of.controls if control.name in held}
    data = {name: frame for of in parts for name, frame in of.data.items() if not frame.is_empty()}
    data = {name: frame.with_columns(cs.float().round_sig_figs(DIGITS)) for name, frame in data.items()}
    once = {tuple(row.items()): row for row in choices}  # several figures may bring the same menu
    page = replace(page, controls=tuple(controls.values()), choices=tuple(once.values()), data=data)
    made = [(name, _figure(ask.folder, name, one, words, page.opening)) for name, one in drawn.items()]
    return replace(page, figures=tuple(replace(figure, sql=ask.sql_of(("drawn", name))) for name, figure in made))


def _drawn(ask: Ask, name: str) -> Drawn | None:
    """None: there is nothing to draw."""
    try:
        drawn = _rows(ask.folder, name, load(ask.folder, name))(ask)
    except Nothing:
        return None
    except (duckdb.ParserException, KeyError) as error:
        raise BadFigure(f"{ask.folder.name}/figures/{name}.toml: {one_line(error)}") from error
    return drawn if any(not frame.is_empty() for frame in drawn.data.values()) else None


def _figure(folder: Path, name: str, drawn: Drawn | None, words: Mapping[str, Any], start: Mapping[str, str]) -> Figure:
    """start: what the page's menus open with."""
    told, scope = load(folder, name), Scope(f"{folder.name}/figures/{name}.toml", dict(words), {})
    if drawn is None:
        question = _text(scope, told, "question_empty" if "question_empty" in told else "question")
        return Figure(name, question, None, {}, (), "", _text(scope, told, "missing"))
    beside = {} if drawn.said is None else {"told": drawn.said}
    scope = replace(scope, names=ChainMap(dict(drawn.facts), dict(words)), frames={**drawn.data, **beside})
    depends = tuple(told.get("depends", ()))
    made = chart(scope, told, start, told.get("params", depends))
    texts = {key: _text(scope, told, key) for key in ("question", "reading", "missing")}
    return Figure(name, chart=made, answers=_answers(scope, told, drawn), depends=depends, **texts)


def _answers(scope: Scope, told: Mapping[str, Any], drawn: Drawn) -> dict[str, str]:
    """A sentence for each value of the columns `by`, else of what the figure depends on; none where there is nothing to say.

    In the template `rows` are those of the selection; other rows, facts and words go by their names.
    """
    rows = next(iter(drawn.data.values())) if drawn.said is None else drawn.said
    frames = {name: Rows(of) for name, of in {**drawn.data, **drawn.facts}.items() if isinstance(of, pl.DataFrame)}
    names = ChainMap(frames, dict(scope.names))
    found: dict[str, str] = {}
    for key, of in (
        rows.group_by(told.get("by", told.get("depends", [])), maintain_order=True) if told.get("depends") else [((), rows)]
    ):
        try:
            said = filled(told["answer"], names.new_child({"rows": Rows(of)}))
        except (jinja2.TemplateError, pl.exceptions.PolarsError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise scope.inside("answer").bad(one_line(error)) from error
        found |= {"|".join(f"{one:g}" if isinstance(one, float) else f"{one}" for one in key): said} if said else {}
    return found


def _text(scope: Scope, told: Mapping[str, Any], key: str) -> str:
    """A text of the file on one line, with its names filled in."""
    return " ".join(scope.inside(key).text(told[key]).split())


def _rows(folder: Path, name: str, told: Mapping[str, Any]) -> Make:
    """The function that `rows` names, of a module of the page or, after a dot, of all pages; or what the file asks for, of the
    rows of `query` or of such a function.

    A function of several figures takes the figure's name and what is `given` to it.
    """
    if "query" in told:
        return lambda ask: _asked(ask, name, told, ask.sql(told["query"]))
    module, _, function = told["rows"].partition(":")
    package = "tokentape.dashboards" if module.startswith(".") else f"tokentape.dashboards.{folder.name}."
    found = getattr(import_module(package + module), function or name, None)
    if found is None:
        raise BadFigure(f"{folder.name}/figures/{name}.toml: rows: {told['rows']}: no such function")

    def make(ask: Ask) -> Drawn:
        made = found(ask, name=name, **told["given"]) if "given" in told else found(ask)
        return made if isinstance(made, Drawn) else _asked(ask, name, told, made)

    return make


def _asked(ask: Ask, name: str, told: Mapping[str, Any], rows: pl.DataFrame) -> Drawn:
    """rows: that sentences are of unless `said` are others, `told` to all that is asked; data: what is drawn where it is other
    rows; facts: a value each; also: rows that sentences call by name."""
    some(rows)
    ask.names.pop("told", None)
    if "query" in told:
        ask.names["told"] = ask.spelled(told["query"])
    for text in told.get("data", {}).values():
        if text != "from told" and ("query" in told or "told" not in ask.spelled(text)):
            ask.keep(text)
    facts = "select " + ", ".join(f'{text} as "{of}"' for of, text in told.get("facts", {}).items())
    own = ask.sql(f"{facts} from told", rows).row(0, named=True) if "facts" in told else {}
    controls, choices = menus(ask, told, rows)
    return Drawn(
        {of: ask.sql(text, rows) for of, text in told.get("data", {name: "from told"}).items()},
        facts={**own, **{of: ask.sql(text, rows) for of, text in told.get("also", {}).items()}},
        said=ask.sql(told["said"], rows) if "said" in told else rows,
        controls=controls,
        choices=choices,
    )


def menus(
    ask: Ask, told: Mapping[str, Any], rows: pl.DataFrame | None = None
) -> tuple[tuple[Control, ...], tuple[dict[str, str], ...]]:
    """Menus of a file and what may be chosen. choices: rows, whose column NAME_words says what a value of NAME is called, or
    `labels` the table of words that does; titles; sliders."""
    of_file = told.get("menus", {"choices": [], "titles": {}})
    words, kinds = words_of(ask.folder.name), dict.fromkeys(of_file.get("sliders", ()), "slider")
    tables = {name: words[table] for name, table in of_file.get("labels", {}).items()}
    held = [ask.sql(text, rows) for text in of_file["choices"]]
    choices = (
        {of: str(value) for of, value in row.items() if not of.endswith("_words")} for frame in held for row in frame.to_dicts()
    )
    controls = (
        Control(of, title, tables.get(of) or _labels(held, of), kinds.get(of, "menu")) for of, title in of_file["titles"].items()
    )
    return tuple(controls), tuple(choices)


def _labels(held: Iterable[pl.DataFrame], of: str) -> dict[str, str]:
    said = [frame.select(pl.col(of).cast(pl.String), words=f"{of}_words") for frame in held if f"{of}_words" in frame.columns]
    return dict(pl.concat(said).drop_nulls().iter_rows()) if said else {}


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
    for key in ("question", "missing", "reading", "answer", "query" if "query" in told else "rows"):
        if key not in told:
            raise BadFigure(f"{where}: {key}: missing")
    return told

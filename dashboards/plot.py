"""One figure of a page at print quality: PDF, SVG, PNG or the Vega-Lite itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vl_convert

from tokentape.dashboards import index, shell, theme
from tokentape.dashboards.shell import Figure, Page
from tokentape.dashboards.site import MAX_TRACES, TOPICS
from tokentape.warehouse.atomic_files import replace
from tokentape.warehouse.sql import reading

FORMS = (".pdf", ".svg", ".png", ".json")
PPI = 300


def names() -> list[str]:
    """Figures that pages have, as PAGE/FIGURE."""
    folders = (page.folder for page in TOPICS.values())
    found = [f"{folder.name}/{path.stem}" for folder in folders for path in sorted(folder.glob("figures/*.toml"))]
    return [*(f"{Path(index.FILE).stem}/{name}" for name in index.FIGURES), *found]


def found(database: Path, name: str) -> tuple[Page, Figure]:
    """A figure of `names` and its page. Raises ValueError, which says what to run, where the warehouse lacks it or is damaged."""
    file, _, figure = name.partition("/")
    with reading(database) as connection:
        page = TOPICS[f"{file}.html"].page(connection, MAX_TRACES) if f"{file}.html" in TOPICS else index.page(connection)
    (made,) = (one for one in page.figures if one.name == figure)
    if made.chart is None:
        raise ValueError(f"{name}: {made.missing}")
    return page, made


def spec_of(page: Page, figure: Figure, chosen: Mapping[str, str]) -> dict[str, Any]:
    """The figure as Vega-Lite with its rows, as its page opens or with what is chosen of its menus; the others go along.

    Raises ValueError for a table, for what the figure does not depend on, for a value that is not among the menu's, and where
    there is nothing to draw for the choice.
    """
    spec = figure.chart or {}
    if "table" in spec:
        raise ValueError(f"{page.file}: {figure.name} is a table and no picture; --sql prints its query")
    params = spec.get("params", [])
    follows = {*figure.depends, *(param["name"] for param in params)}
    menus = [control.name for control in page.controls if control.name in follows]
    for name in chosen:
        if name not in menus:
            raise ValueError(f"{name}: figure {figure.name} depends on {', '.join(menus) or 'no menu'}")
    showing = page.showing(menus, chosen, page.opening)
    if "|".join(showing.get(name, "") for name in figure.depends) not in figure.answers:
        raise ValueError(f"{', '.join(f'{name}={of}' for name, of in showing.items())}: {figure.missing}")
    params = [param | {"value": showing.get(param["name"], param["value"])} for param in params]
    told = json.dumps(spec)
    data = {name: frame.to_dicts() for name, frame in page.data.items() if f'"name": "{name}"' in told}
    return {**spec, **({"params": params} if params else {}), "datasets": data, "config": theme.CONFIG}


def refuse_form(out: Path) -> None:
    """Raises ValueError for a name of another end than FORMS."""
    if out.suffix not in FORMS:
        raise ValueError(f"{out}: a picture ends in {', '.join(FORMS)}")


def write(spec: Mapping[str, Any], out: Path) -> None:
    """Writes the picture; the end of the name says as what."""
    how = {"ppi": PPI, "scale": 1} if out.suffix == ".png" else {}
    drawn = getattr(vl_convert, f"vegalite_to_{out.suffix[1:]}", None)
    made = drawn(dict(spec), vl_version=shell.vega_version(), **how) if drawn else json.dumps(spec, indent=1)
    replace(out, made.encode() if isinstance(made, str) else made)

"""load, sql, query, plot, site: results into DuckDB, questions, figures, pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tokentape.flows.console import note, one_document, print_table, progress_bar
from tokentape.flows.options import DatabaseOption, FormatOption, JsonOption, OutOption, StoreOption, argument, format_of, option
from tokentape.policies.names import refuse_unknown

if TYPE_CHECKING:
    import polars as pl

    from tokentape.warehouse.tape import Store


def load(store: StoreOption = None, database: DatabaseOption = None) -> None:
    """Build the DuckDB warehouse from the store's tapes and results, and swap it in at once.

    Readers see the old warehouse or the new one, never half of it. Dropping the file and loading again gives the same tables.
    """
    from tokentape.flows import publish

    with progress_bar("load"):
        publish.load(store.uri, database)


def sql(
    statement: Annotated[str, argument("SQL", "One SELECT statement.")],
    store: StoreOption = None,
    database: DatabaseOption = None,
    format: FormatOption = "table",
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Ask the warehouse in SQL, read-only; the tapes' own tables are there as tape.routing, tape.passes, and so on.

    tokentape sql "select trace_id, dataset, n_tokens from traces"
    tokentape sql "from baselines" --format csv --out baselines.csv
    tokentape sql "select trace_id, layer, count(*) from tape.routing group by all"
    """
    _answer(statement, store, database, format_of(format, as_json), out)


def query(
    name: Annotated[str | None, argument("NAME", "A named query; without one, all are listed.")] = None,
    store: StoreOption = None,
    database: DatabaseOption = None,
    format: FormatOption = "table",
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Ask a standing question of the warehouse by name (warehouse/queries/*.sql)."""
    from contextlib import nullcontext

    from tokentape.warehouse.sql import named

    queries = named()
    if name is None:
        with one_document() if as_json else nullcontext():
            print_table("", ("query", "question"), [(n, q.question) for n, q in sorted(queries.items())])
        return
    refuse_unknown("query", name, queries)
    _answer(queries[name].sql, store, database, format_of(format, as_json), out)


def plot(
    figure: Annotated[str | None, argument("PAGE/FIGURE", "A figure of a page; without one, all are listed.")] = None,
    out: Annotated[Path | None, option("The picture: .pdf, .svg, .png or .json (Vega-Lite).")] = None,
    is_sql: Annotated[bool, option("Print the query in place of a picture.", "--sql")] = False,
    choose: Annotated[list[str] | None, option("MENU=VALUE of the page, repeatable.")] = None,
    store: StoreOption = None,
    database: DatabaseOption = None,
) -> None:
    """Draw one figure of the pages at print quality, or print the SQL that its rows come from.

    \b
    Examples:
      tokentape plot kelle/claims --out claims.pdf
    """
    from tokentape.dashboards import plot as plots

    names = plots.names()
    if figure is None:
        if out is not None or is_sql or choose:
            raise ValueError("plot: name a figure as PAGE/FIGURE; `tokentape plot` alone lists them")
        print("\n".join(names))
        return
    refuse_unknown("figure", figure, names)
    if out is None and (choose or not is_sql):
        raise ValueError("plot: give --out fig.pdf, .svg, .png or .json; --sql, which is the same for every choice, needs none")
    if out is not None:
        plots.refuse_form(out)
    page, made = plots.found(_database(store, database), figure)
    if is_sql:
        print(made.sql)
    if out is not None:
        plots.write(plots.spec_of(page, made, {text.partition("=")[0]: text.partition("=")[2] for text in choose or ()}), out)
        note(f"{out}: {made.question}")


def site(
    store: StoreOption = None,
    database: DatabaseOption = None,
    out: Annotated[Path, option("Folder of the pages.")] = Path("site"),
    single_file: Annotated[bool, option("Each page alone, with Vega inside, as to be attached to a mail.")] = False,
) -> None:
    """Write the static site: pages that need no network and open from a file. Run `tokentape load` first."""
    from tokentape.dashboards.site import build

    with progress_bar("site"):
        page = build(_database(store, database), out, single_file)
    print(page)


def _database(store: Store, database: str | None) -> Path:
    from tokentape.warehouse.load import database_path

    return Path(database) if database else database_path(store)


def _answer(statement: str, store: Store, database: str | None, format: str, out: Path | None) -> None:
    from tokentape.warehouse import sql as asker

    frame: pl.DataFrame = asker.query(_database(store, database), statement, store)
    asker.render(frame, format, out)

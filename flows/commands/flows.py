"""demo and serve: the flows from the command line."""

from __future__ import annotations

from typing import Annotated

from tokentape.flows.options import StoreOption, option

SiteOption = Annotated[str, option("Folder of the pages.", "--out")]


def demo(
    store: StoreOption = None,
    out: SiteOption = "site",
    prefect: Annotated[bool, option("Record the run in a Prefect server that is started for it.", "--prefect")] = False,
) -> None:
    """Everything once, offline: capture from the embedded model, replay the baselines, answer five papers in brief, load, write
    the pages.

    A second run finds the tapes and results of the first and only loads them again.
    """
    from tokentape.flows.demo import print_summary, run_demo

    if prefect:
        from tokentape.flows.pipeline import demo as run_demo
    made = run_demo(store, out)
    print_summary(made, store)
    print(made.page)


def serve(
    store: StoreOption = None,
    out: SiteOption = "site",
    study: Annotated[str, option("Study that nightly runs: a shipped one or my.toml.")] = "baselines",
    port: Annotated[int, option("Port of the Prefect server that is started.")] = 4200,
    cron: Annotated[list[str] | None, option("NAME=CRON, repeatable: nightly, publish or a study; see below.")] = None,
) -> None:
    """Run the dataflow on cron schedules against a local Prefect server, until Ctrl-C.

    Every night at 02:00: a tape (embedded model, math), then the study, then the pages; each begins when the one before
    it is done. Finished tapes and results are not made again, so a night without news is short. Every shipped study is a
    deployment too, which ends with the pages, and so are the pages alone (publish): to be started on the server's page, or on a
    schedule with --cron NAME=CRON.

    \b
    Examples:
      tokentape serve --study kelle
      tokentape serve --cron "publish=*/10 * * * *" --cron "nightly=0 1 * * sat"
    """
    from tokentape.flows.serve import parse_crons
    from tokentape.flows.serve import serve as run_server

    run_server(store, out, study, port, parse_crons(cron or []))

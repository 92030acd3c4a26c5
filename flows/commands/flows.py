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
    from tokentape.flows.demo import demo as demo_flow
    from tokentape.flows.demo import print_summary, run_demo

    made = demo_flow(store, out) if prefect else run_demo(store, out)
    print_summary(made, store)
    print(made.page)


def serve(
    store: StoreOption = None,
    out: SiteOption = "site",
    study: Annotated[str, option("Study that replay-grid runs: a shipped one or my.toml.")] = "baselines",
    port: Annotated[int, option("Port of the Prefect server that is started.")] = 4200,
    cron: Annotated[list[str] | None, option("FLOW=CRON or STUDY=CRON, repeatable; see below.")] = None,
) -> None:
    """Run the flows on cron schedules against a local Prefect server, until Ctrl-C.

    Every night by default: capture (embedded model, math) at 02:00, replay-grid at 03:00, publish at 04:00. Finished tapes and
    results are not made again, so a night without news is short. Every shipped study is a deployment of replay-grid too, to be
    started on the server's page, or on a schedule with --cron STUDY=CRON.

    \b
    Examples:
      tokentape serve --study kelle
      tokentape serve --cron "publish=*/10 * * * *" --cron "capture=0 1 * * sat"
    """
    from tokentape.flows.serve import parse_crons
    from tokentape.flows.serve import serve as run_server

    run_server(store, out, study, port, parse_crons(cron or []))

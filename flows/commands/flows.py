"""demo, watch and serve: the dataflow from the command line."""

import shlex
import signal
from contextlib import suppress
from typing import Annotated

import typer

from tokentape.flows.options import StoreUri, argument, option

FIRST_LOOK = ["glance"]
SiteOption = Annotated[str, option("Folder of the pages.", "--out")]


def demo(
    store: StoreUri = None,
    out: SiteOption = "site",
    site: Annotated[bool, option("Write the pages, or end once the results are loaded.", "--site/--no-site")] = True,
    prefect: Annotated[bool, option("Record the run in a Prefect server that is started for it.", "--prefect")] = False,
) -> None:
    """Everything once, offline: capture from the embedded model, replay the baselines, answer the papers in brief, load, write
    the pages. Prints what it found and where the pages are, without them where the database is.

    A second run finds the tapes and results of the first and only loads them again.
    """
    from tokentape.flows.demo import print_summary, run_demo

    if prefect:
        from tokentape.flows.pipeline import demo as run_demo
    if not site and out != "site":
        raise typer.BadParameter("--out is the folder of the pages, which --no-site leaves out; give one of the two")
    if site:
        import tokentape.dashboards.site  # noqa: F401  what it lacks is told before the work
    page, traces = run_demo(store, out if site else "")
    print_summary(traces, store)
    print(page)


def watch(
    ctx: typer.Context,
    source: Annotated[str, argument("PATH|URL", "A folder, a file that grows, or an fsspec URI of one (s3://bucket/traces).")],
    form: Annotated[str, option("As `tokentape import` has it: 'vllm --model NAME'. [default: by content]", "--from")] = "",
    studies: Annotated[list[str], option("Grid of replays for new tapes, or my.toml; repeatable.", "--study")] = FIRST_LOOK,
    alerts: Annotated[list[str] | None, option("POLICY:SHARE of the bound's hits that it may miss.", "--alert")] = None,
    webhook: Annotated[str, option("Where alerts are posted: http://localhost:8080/alerts. [default: nowhere]")] = "",
    webhook_anywhere: Annotated[bool, option("The webhook may be on another machine.", "--webhook-anywhere")] = False,
    every_s: Annotated[float, option("Seconds between looks; a file is taken when two find it alike.", "--every", min=0)] = 5.0,
    once: Annotated[bool, option("Take what lies there and end; exit code 2 if something was bad.", "--once")] = False,
    store: StoreUri = None,
    out: SiteOption = "site",
) -> None:
    """Turn every trace that arrives in a folder into a tape, its study and pages, until Ctrl-C. Prints the trace ids.

    Nothing is imported twice; what is stopped goes on where it was. A file that changes later is a new tape. Names that begin
    with a dot or end in .part or .tmp wait until they are renamed. A bad file is told once and does not stop the others. --alert
    lru:0.2 tells of a tape on which LRU misses more than a fifth of the hits of the tape's own bound, Belady's.

    tokentape watch traces --alert lru:0.2
    tokentape watch s3://bucket/responses --from 'vllm --model qwen3-30b-a3b' --store s3://bucket/tape
    tokentape watch traces --once
    """
    from tokentape.flows.watch import Watch, Watched
    from tokentape.flows.workers import gone_soon

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored
    watching = Watch(Watched(**ctx.params), store, out)
    with suppress(KeyboardInterrupt), gone_soon(code=0):  # the way a watch ends
        if not once:
            watching.run()
        if watching.once():
            raise typer.Exit(2)


def serve(
    store: StoreUri = None,
    out: SiteOption = "site",
    study: Annotated[str, option("Study that nightly runs: a shipped one or my.toml.")] = "baselines",
    port: Annotated[int, option("Port of the Prefect server that is started.")] = 4200,
    cron: Annotated[list[str] | None, option("NAME=CRON, repeatable: nightly, publish or a study; see below.")] = None,
    watch: Annotated[str, option("Words of `tokentape watch`: 'traces --alert lru:0.2'. [default: nothing is watched]")] = "",
) -> None:
    """Run the dataflow on cron schedules against a local Prefect server, until Ctrl-C.

    Every night at 02:00: a tape (embedded model, math), then the study, then the pages; each begins when the one before
    it is done. Finished tapes and results are not made again, so a night without news is short. Every shipped study is a
    deployment too, which ends with the pages, and so are the pages alone (publish): to be started on the server's page, or on a
    schedule with --cron NAME=CRON. With --watch, files that arrive start a run of the deployment `watch`.

    tokentape serve --study kelle
    tokentape serve --cron "publish=*/10 * * * *" --cron "nightly=0 1 * * sat"
    tokentape serve --watch "traces --alert lru:0.2"
    """
    from tokentape.flows.serve import parse_crons
    from tokentape.flows.serve import serve as run_server

    run_server(store, out, study, port, parse_crons(cron or []), shlex.split(watch))

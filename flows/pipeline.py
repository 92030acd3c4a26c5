"""The dataflow as Prefect flows: tapes, then their studies, then the pages, each a flow run within one of `pipeline`.

What does the work needs no Prefect: `record`, `run_study`, `publish` and `Watch` in the modules of those names, `run_demo`.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

from tokentape.flows import prefect_settings  # noqa: F401 isort:skip  before prefect
from prefect import flow, tags
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.events import emit_event
from prefect.runtime import flow_run

from tokentape.flows import capture, publish
from tokentape.flows.capture import Tape
from tokentape.flows.demo import demo_steps
from tokentape.flows.study_run import run_study
from tokentape.flows.systems import system_of
from tokentape.flows.tasks import MODEL, WAREHOUSE, noted, step, task_pool, told_progress
from tokentape.flows.watch import Watch, Watched
from tokentape.warehouse.tape import Store

ARGUMENTS = {
    "tape": "What to record.",
    "tapes": "To record first; those that are there are found.",
    "name": "A shipped study, or the path of a study's TOML file.",
    "studies": "To run on the tapes of the store: shipped ones, or paths of TOML files.",
    "store": "Folder or fsspec URI of the tapes and results; ./tape where none.",
    "site": "Folder of the pages.",
    "traces": "Tapes that studies run on, in place of those that a grid names itself.",
    "runner": "threads, processes, dask or ray, the last two also with an address after a colon.",
    "workers": "Of a runner on this machine; as many as it has cores where none.",
    "watched": "Where traces arrive, and what is done with them.",
}
Work = TypeVar("Work", bound=Callable[..., Any])


def _told(work: Work) -> Work:
    """The same, with what its parameters are in the words that Prefect shows."""
    told = "".join(f"\n    {name}: {ARGUMENTS[name]}" for name in signature(work).parameters)
    work.__doc__ = f"{work.__doc__}\n\nArgs:{told}"
    return work


def _named() -> str:
    """Of a run of `pipeline`: what it was asked for."""
    given = flow_run.parameters
    return " + ".join([*map(str, given["tapes"]), *(Path(name).stem for name in given["studies"]), "pages"])


@flow(name="capture", flow_run_name="{tape}")
@_told
def capture_flow(tape: Tape, store: str | None = None) -> str:
    """Records a tape, or finds the finished one of equal settings; its trace id."""
    trace_id = capture.planned_id(tape)
    is_there = Store(store).writer(trace_id).is_finished
    return step(str(tape), partial(capture.record, tape, store), f"tape:{trace_id}", MODEL, key=trace_id, is_there=is_there)


@flow(name="study", flow_run_name=lambda: f"study {Path(flow_run.parameters['name']).stem}")
@_told
def study_flow(
    name: str, store: str | None = None, traces: tuple[str, ...] = (), runner: str | None = None, workers: int | None = None
) -> dict[str, int]:
    """Runs what is missing of a study, a task run per batch; how many answers, or replays computed, found and not possible."""
    return run_study(name, Store(store), runner, workers, traces=traces, pools=task_pool, bar=told_progress)


@flow(name="publish", flow_run_name="pages")
@_told
def publish_flow(store: str | None = None, site: str = "site") -> str:
    """Loads the store's warehouse and writes the pages, none where `site` is empty; the path of the index page."""
    database = step("load the warehouse", partial(publish.load, store), WAREHOUSE)
    return str(step("write the pages", partial(publish.write, database, site), WAREHOUSE) if site else database)


@flow(name="pipeline", flow_run_name=_named)
@_told
def pipeline(
    tapes: tuple[Tape, ...] = (),
    studies: tuple[str, ...] = (),
    store: str | None = None,
    site: str = "site",
    runner: str | None = None,
    workers: int | None = None,
    traces: tuple[str, ...] = (),
) -> str:
    """Records tapes, runs studies, publishes the pages: each begins when what it needs is done. The path of the index page."""
    at = f" --store {shlex.quote(store)}" if store else ""
    said = []
    for tape in tapes:
        with noted(tape.command + at):
            said.append(f"tape {capture_flow(tape, store)}")
    for name in studies:
        own = [f"study:{Path(name).stem}", *(f"system:{system}" for system in [system_of(name)] if system)]
        with noted(f"tokentape study {shlex.quote(name)}{at}" + (f" --runner {runner}" if runner else "")), tags(*own):
            counts = study_flow(name, store, traces, runner, workers)
        said.append(f"study {Path(name).stem}: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
    with noted(f"tokentape load{at} && tokentape site{at} --out {shlex.quote(site)}"):
        page = publish_flow(store, site)
    show(Store(store), page, said)
    return page


class _Seen(Watch):
    """A watch whose work is task runs and flow runs, and whose alerts are events."""

    def step(self, name: str, work: Callable[[], Any], command: str, tag: str) -> Any:
        with noted(f"{command} --store {shlex.quote(self.store.uri)}"):
            return step(name, work, tag)

    def finish(self, studies: tuple[str, ...], tapes: tuple[str, ...]) -> str:
        return pipeline((), studies, self.store.uri, self.site, traces=tapes)

    def tell(self, alert: Mapping[str, Any]) -> None:
        emit_event("tokentape.alert", {"prefect.resource.id": f"tokentape.tape.{alert['tape']}"}, payload=dict(alert))


@flow(name="watch", flow_run_name=lambda: f"new in {Path(flow_run.parameters['watched'].source).name}")
@_told
def watch_flow(watched: Watched, store: str | None = None, site: str = "site") -> None:
    """Turns what is new in a folder into tapes, their studies and pages; then fails if a file or study was bad."""
    if bad := _Seen(watched, store, site).once():
        raise ValueError("; ".join(bad))


def show(store: Store, page: str, said: Sequence[str]) -> None:
    """Artifacts of a run of `pipeline` that is done."""
    lines = "\n".join(f"- {line}" for line in [*said, f"pages: {page}"])
    create_markdown_artifact(f"## Done\n\n{lines}\n", key="summary", description="; ".join(said) or "pages")
    links = "\n".join(f"- [{path.stem}]({path.as_uri()})" for path in sorted(Path(page).resolve().parent.glob("*.html")))
    create_markdown_artifact(f"## Pages\n\n{links}\n", key="pages", description=page)
    best = publish.answered(store, "best_near_half")
    create_table_artifact(best.to_dicts(), key="best-policies", description="The best policy of every tape and machine")


@flow(name="demo", flow_run_name="demo")
@_told
def demo(store: str | None = None, site: str = "site") -> tuple[str, list[str]]:
    """What `tokentape demo` does, each step a run of its own."""
    return demo_steps(store, site, capture_flow, study_flow, publish_flow, step, task_pool)

"""`tokentape serve`: a local Prefect server, the dataflow deployed to it for the night and for every shipped study, on cron
schedules or to be started there by hand, and a runner; Ctrl-C stops all three."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

from tokentape.flows import prefect_settings, tethered
from tokentape.flows.console import note
from tokentape.flows.study_run import check
from tokentape.flows.systems import SYSTEMS, grids
from tokentape.policies.names import refuse_unknown
from tokentape.warehouse.tape import default_store

NIGHTLY, PUBLISH, WATCH = "nightly", "publish", "watch"
CRONS = {NIGHTLY: "0 2 * * *"}
START_TIMEOUT_S = 120.0


def parse_crons(texts: list[str]) -> dict[str, str]:
    """CRONS with the entries of `["publish=*/5 * * * *"]` in their place. Raises ValueError naming the deployment."""
    crons = dict(CRONS)
    for text in texts:
        name, equals, cron = text.partition("=")
        if not equals or not cron.strip():
            raise ValueError(f"--cron {text!r} is not NAME=CRON, for example 'publish=*/10 * * * *'")
        refuse_unknown("deployment or study", name, (NIGHTLY, PUBLISH, *studies()))
        crons[name] = cron
    return crons


def studies() -> tuple[str, ...]:
    """The studies that ship; each is a deployment."""
    return (*grids(), *SYSTEMS)


def serve(store: str | None, site: str, study: str, port: int, crons: dict[str, str], watch: list[str]) -> None:
    """Blocks until Ctrl-C. watch: words of that command. Raises ValueError on bad input, OSError if the server cannot start."""
    for number in (signal.SIGINT, signal.SIGTERM):  # set here because a shell starts background jobs with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    check(study, None)
    url = f"http://127.0.0.1:{port}/api"
    os.environ["PREFECT_API_URL"] = url  # Prefect reads it when it is imported, in the next line
    import prefect

    made = deployments(store, site, study, crons, watch)
    with prefect_server(port, url):
        from tokentape.flows.tasks import LIMITS

        limit_uses(LIMITS)
        note(f"Prefect at {url.removesuffix('/api')}, its log at {log_path()}; Ctrl-C stops it")
        note(*(f"  {name:12} {cron}" for name, cron in crons.items()))
        if watch:
            note(f"  {WATCH:12} as files arrive in {watch[0]}")
            made[-1].apply()  # before it is asked for
            Thread(target=_follow, args=(made[-1].parameters,), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):  # the way a server ends
            prefect.serve(*made, limit=1, print_starting_message=False)  # one at a time: runs share the store and the cores


def _follow(parameters: dict[str, Any]) -> None:
    """Runs the deployment `watch` whenever a file has come to rest, one run after another."""
    from prefect.deployments import run_deployment

    from tokentape.flows.watch import LONGEST_WAIT_S, Watch, Watched

    watching = Watch(Watched(**parameters["watched"]), parameters["store"], parameters["site"])
    wait = watching.watched.every_s
    while True:
        try:
            is_due = watching.is_due
            wait = min(2 * wait, LONGEST_WAIT_S) if is_due else watching.watched.every_s
            if is_due:
                run_deployment(f"{WATCH}/{WATCH}", as_subflow=False)
        except Exception as error:  # of the source, the store or the server: the thread has to go on
            note(f"{WATCH}: {error}; it is tried again")
        time.sleep(wait)


def deployments(store: str | None, site: str, study: str, crons: dict[str, str], watch: Sequence[str] = ()) -> list[Any]:
    """Prefect deployments of flow `pipeline`: the night's, that of the pages alone, and one per shipped study; each on a schedule
    where `crons` names it. After them, with the words of a `watch`, that of the flow `watch`.

    Raises ValueError if a cron expression, or what is to be watched, is wrong.
    """
    from prefect.types.entrypoint import EntrypointType

    from tokentape.flows.capture import Tape
    from tokentape.flows.pipeline import pipeline, watch_flow
    from tokentape.flows.watch import Watch, Watched, command_of

    chosen = absolute(study) if study.endswith(".toml") else study
    place = {"store": absolute(store or default_store()), "site": absolute(site)}  # runs start in a process of their own
    asked: dict[str, dict[str, Any]] = {NIGHTLY: {"tapes": (Tape(),), "studies": (chosen,)}, PUBLISH: {}}
    asked |= {name: {"studies": (name,)} for name in studies()}
    made = []
    about: Any = {"tags": ["tokentape"], "entrypoint_type": EntrypointType.MODULE_PATH}
    for name, parameters in asked.items():
        told = {"description": pipeline.description, "parameters": parameters | place, **about}
        try:
            made.append(pipeline.to_deployment(name, cron=crons.get(name), **told))
        except ValueError as error:
            raise ValueError(
                f"{name}: {crons[name]!r} is not a cron expression; it has five fields, such as '0 3 * * *'"
            ) from error
    if watch:
        given = command_of("watch").make_context(WATCH, [absolute(watch[0]), *watch[1:]]).params
        watched = Watch(Watched(**given), **place).watched  # which says what is wrong
        made.append(watch_flow.to_deployment(WATCH, parameters={"watched": watched.model_dump(), **place}, **about))
    return made


def limit_uses(limits: Mapping[str, int]) -> None:
    """Has the server let so many task runs of a tag go on at once."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        for tag, limit in limits.items():
            client.create_concurrency_limit(tag, limit)  # one that is there is set anew


def absolute(place: str) -> str:
    """A folder as an absolute path; a URI as it is."""
    return place if "://" in place else str(Path(place).resolve())


@contextlib.contextmanager
def prefect_server(port: int, url: str) -> Iterator[None]:
    """A Prefect server on 127.0.0.1:`port` in a process of its own, its API at `url`. Enters once it answers."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise OSError(f"port {port} is taken; give another with --port")
    log_path().parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "PREFECT_API_URL": url, "PREFECT_SERVER_UI_API_URL": url}
    with log_path().open("ab") as log:
        process = tethered.start(command, env=environment, stdout=log, stderr=log)
    try:
        _wait_until_healthy(process, url)
        yield
    finally:
        tethered.stop(process)


def log_path() -> Path:
    """Where the server's own output goes."""
    return prefect_settings.cache_home() / "server.log"


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str) -> None:
    give_up = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up:
        if process.poll() is not None:
            raise OSError(f"the Prefect server ended with code {process.returncode}; {log_path()} has its reason")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(0.5)
    raise OSError(f"the Prefect server did not answer within {START_TIMEOUT_S:.0f} s; see {log_path()}")

"""Schedules: a real Prefect server, the dataflow served with a cron schedule, a run that the schedule created and that completed,
as the server's own page shows it.

Two dependency bounds in pyproject.toml (fastapi, SQLAlchemy) exist because flows stay green without them while schedules silently
never run; only this test sees that.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_tape import STUDY

pytest.importorskip("prefect")

from tokentape.flows import serve, tasks
from tokentape.flows.systems import SYSTEMS
from tokentape.warehouse.results import run_ids
from tokentape.warehouse.tape import Store

EVERY_TEN_SECONDS = "* * * * * */10"  # a sixth field counts seconds


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(url: str, path: str, **filters: Any) -> Any:
    request = urllib.request.Request(f"{url}{path}", json.dumps(filters).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


@contextlib.contextmanager
def serving(store: Store, folder: Path, *words: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`tokentape serve` and where its server answers; ended as by Ctrl-C, with exit code 0. What it says is in folder/log."""
    port = free_port()
    environment = {**os.environ, "PREFECT_HOME": str(folder / "prefect"), "PREFECT_RUNNER_POLL_FREQUENCY": "1"}
    environment["PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS"] = "2"
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "tokentape.flows.cli", "serve", "--store", store.uri, "--port", str(port), *words]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            yield f"http://127.0.0.1:{port}/api", process
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(timeout=40)
    assert code == 0, (folder / "log").read_text()


@pytest.mark.slow
@pytest.mark.embedded
def test_a_schedule_creates_a_run_that_records_studies_and_publishes_and_its_page_shows_it(store: Store, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(STUDY)
    shown, completed = "", list[dict[str, Any]]()
    with serving(store, tmp_path, "--study", "small.toml", "--cron", f"nightly={EVERY_TEN_SECONDS}") as (url, process):
        give_up = time.monotonic() + 240
        while not completed and time.monotonic() < give_up and process.poll() is None:
            time.sleep(1)
            try:
                runs = ask(url, "/flow_runs/filter", flow_runs={"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED"]}}})
            except OSError:
                continue  # the server is not up yet
            assert all(run["state_type"] == "COMPLETED" for run in runs), runs
            completed = [run for run in runs if run["auto_scheduled"]]
        if completed:
            limits = {one["tag"]: one["concurrency_limit"] for one in ask(url, "/concurrency_limits/filter")}
            assert limits == tasks.LIMITS
            shown = page_of(f"{url.removesuffix('/api')}/runs/flow-run/{completed[0]['id']}")
    said = (tmp_path / "log").read_text()
    assert completed, said
    assert "Traceback" not in said, said
    assert completed[0]["name"] == "capture math from embedded + small + pages"
    assert len(run_ids(store)) == 2  # of the tape that was there, and of the one recorded
    assert (tmp_path / "site" / "index.html").is_file()
    for text in (completed[0]["name"], "Completed", "study small: 2 run, 0 found", "best-policies", "nightly"):
        assert text in shown, shown


@pytest.mark.slow
def test_a_file_that_is_dropped_becomes_a_tape_its_study_and_a_page_and_a_bad_one_a_failed_run(
    store: Store, tmp_path: Path
) -> None:
    (incoming := tmp_path / "incoming").mkdir()
    (tmp_path / "small.toml").write_text(STUDY)
    words = f"{incoming} --study {tmp_path / 'small.toml'} --every 1"
    with serving(store, tmp_path, "--watch", words) as (url, process):
        (incoming / "tiny.route.csv").write_bytes((Path(__file__).parents[1] / "data" / "tiny.route.csv").read_bytes())
        good = _ended(url, process, 1)
        page = (tmp_path / "site" / "experts.html").read_text()
        (incoming / "bad.csv").write_text("hello")
        bad = [run for run in _ended(url, process, 2) if run not in good]
        tasks_seen = {one["name"]: one["state"] for one in ask(url, "/task_runs/filter")}
        failures = [one["data"] for one in ask(url, "/artifacts/filter") if one["key"] == "failure"]
    assert [run["state_type"] for run in (*good, *bad)] == ["COMPLETED", "FAILED"], (tmp_path / "log").read_text()
    (tape,) = (one for one in store.trace_ids() if one != "tiny-0001")
    assert good[0]["name"] == "new in incoming"
    assert tape in page
    assert f"lru on {tape} x 1" in tasks_seen
    assert tasks_seen["import bad.csv"]["type"] == "FAILED"
    for text in (bad[0]["state"]["message"], tasks_seen["import bad.csv"]["message"], failures[0]):
        assert f"{incoming / 'bad.csv'}: no known format" in text
    assert f"tokentape watch {incoming / 'bad.csv'} --once" in failures[0]


def _ended(url: str, process: subprocess.Popen[bytes], n: int) -> list[dict[str, Any]]:
    """Runs of flow `watch` that have ended, once there are `n`, the first one first."""
    found: list[dict[str, Any]] = []
    give_up = time.monotonic() + 120
    while len(found) < n and time.monotonic() < give_up and process.poll() is None:
        time.sleep(1)
        with contextlib.suppress(OSError):  # the server is not up yet
            ended = {"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED"]}}}
            found = ask(url, "/flow_runs/filter", flow_runs=ended, flows={"name": {"any_": ["watch"]}}, sort="START_TIME_ASC")
    return found


def page_of(url: str) -> str:
    """Text of a flow run's page and of its tab of artifacts, in Chromium."""
    pytest.importorskip("playwright")
    from tests.dashboards.chromium_page import SCREENSHOTS, WIDE, browser

    with browser() as opened:
        page = opened.new_page()
        page.set_viewport_size(WIDE)
        page.goto(url)
        page.get_by_role("tab", name="Artifacts").or_(page.get_by_text("Artifacts", exact=True)).last.click()
        page.get_by_text("best-policies").first.wait_for()
        if SCREENSHOTS:
            page.screenshot(path=Path(SCREENSHOTS) / "prefect.png", full_page=True)
        text: str = page.locator("body").inner_text()
    return text


@pytest.mark.slow
def test_a_killed_serve_leaves_no_server_on_its_port(store: Store, tmp_path: Path) -> None:
    port = free_port()
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path / "prefect")}
    command = [sys.executable, "-m", "tokentape.flows.cli", "serve", "--store", store.uri, "--port", str(port)]
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        assert b"Prefect at" in process.stdout.readline()  # said once it answers
        process.kill()
    give_up = time.monotonic() + 40
    while is_taken(port) and time.monotonic() < give_up:
        time.sleep(0.2)
    assert not is_taken(port)


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_crons_replace_the_defaults_and_a_wrong_one_is_named() -> None:
    crons = serve.parse_crons(["publish=*/5 * * * *"])
    assert crons == {**serve.CRONS, "publish": "*/5 * * * *"}
    with pytest.raises(ValueError, match="'every day' is not a cron expression"):
        serve.deployments(None, "site", "baselines", {**serve.CRONS, "publish": "every day"})


def test_every_shipped_study_is_a_deployment_and_any_may_be_scheduled() -> None:
    crons = serve.parse_crons(["elmoe3d=0 5 * * *"])
    made = {deployment.name: deployment for deployment in serve.deployments(None, "site", "kelle", crons)}
    assert set(made) == {"nightly", "publish", *serve.studies()} >= {"baselines", *SYSTEMS}
    assert {deployment.flow_name for deployment in made.values()} == {"pipeline"}
    assert made["nightly"].parameters["studies"] == ("kelle",)
    assert {name for name, deployment in made.items() if deployment.schedules} == {"nightly", "elmoe3d"}
    assert all(made[name].parameters["studies"] == (name,) for name in serve.studies())


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="is taken; give another with --port"), serve.prefect_server(taken.getsockname()[1], ""):
            pass

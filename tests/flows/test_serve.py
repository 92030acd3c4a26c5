"""Schedules: a real Prefect server, a flow served with a cron schedule, a run that the schedule created and that completed.

Two dependency bounds in pyproject.toml (fastapi, SQLAlchemy) exist because flows stay green without them while schedules silently
never run; only this test sees that.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prefect")

from tokentape.flows import serve
from tokentape.flows.systems import SYSTEMS
from tokentape.warehouse.results import run_ids
from tokentape.warehouse.tape import Store

EVERY_TEN_SECONDS = "* * * * * */10"  # a sixth field counts seconds
STUDY = """
question = "?"
capacities = ["50%"]
scopes = ["global"]
hardware = ["phone-lpddr5x-ufs4"]
policies = [{ name = "lru" }]
"""
NEVER = "0 0 1 1 *"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(url: str, path: str, **filters: Any) -> Any:
    request = urllib.request.Request(f"{url}{path}", json.dumps(filters).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_a_schedule_creates_a_run_and_the_run_completes(store: Store, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    crons = [f"publish={NEVER}", f"capture={NEVER}", f"replay-grid={EVERY_TEN_SECONDS}"]
    study = tmp_path / "small.toml"
    study.write_text(STUDY)
    arguments = ["serve", "--store", store.uri, "--port", str(port), "--study", str(study)]
    arguments += [word for cron in crons for word in ("--cron", cron)]
    home = {
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
    }
    environment = {**os.environ, **home}
    environment.pop("PREFECT_API_URL", None)
    log = (tmp_path / "log").open("w+")
    command = [sys.executable, "-m", "tokentape.flows.cli", *arguments]
    process = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    try:
        completed: list[dict[str, Any]] = []
        give_up = time.monotonic() + 120
        while not completed and time.monotonic() < give_up and process.poll() is None:
            time.sleep(1)
            try:
                runs = ask(url, "/flow_runs/filter", flow_runs={"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED"]}}})
            except OSError:
                continue  # the server is not up yet
            assert all(run["state_type"] == "COMPLETED" for run in runs), runs
            completed = [run for run in runs if run["auto_scheduled"]]
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=40)
        log.seek(0)
        said = log.read()
    assert completed, said
    assert code == 0, said
    assert "Traceback" not in said, said
    assert len(run_ids(store)) == 1


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


def test_crons_replace_the_defaults_by_flow() -> None:
    crons = serve.parse_crons(["publish=*/5 * * * *"])
    assert crons == {**serve.CRONS, "publish": "*/5 * * * *"}
    with pytest.raises(ValueError, match="did you mean 'publish'"):
        serve.parse_crons(["publsh=* * * * *"])
    with pytest.raises(ValueError, match="FLOW=CRON"):
        serve.parse_crons(["publish"])


def test_every_shipped_study_is_a_deployment_and_any_may_be_scheduled() -> None:
    crons = serve.parse_crons(["elmoe3d=0 5 * * *"])
    made = serve.deployments(None, "site", "kelle", crons)
    named = {deployment.name: deployment for deployment in made if deployment.flow_name == "replay-grid"}
    assert set(named) == {"scheduled", *serve.studies()} >= {"scheduled", "baselines", *SYSTEMS}
    assert named["scheduled"].parameters["name"] == "kelle"
    assert {name for name, deployment in named.items() if deployment.schedules} == {"scheduled", "elmoe3d"}
    assert all(named[name].parameters["name"] == name for name in serve.studies())


def test_a_wrong_cron_expression_is_named() -> None:
    with pytest.raises(ValueError, match="'every day' is not a cron expression"):
        serve.deployments(None, "site", "baselines", {**serve.CRONS, "publish": "every day"})


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="is taken; give another with --port"), serve.prefect_server(taken.getsockname()[1], ""):
            pass

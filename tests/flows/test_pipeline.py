"""The dataflow in Prefect: what its run shows, what is cached and when, a step that fails."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_tape import STUDY, write_tiny

pytest.importorskip("prefect")
pytest.importorskip("altair")

from prefect import Flow, State
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.states import Failed

from tokentape.dashboards import site
from tokentape.flows import serve, tasks
from tokentape.flows.capture import Tape
from tokentape.flows.pipeline import pipeline, study_flow
from tokentape.warehouse import results
from tokentape.warehouse.tape import Store

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncPrefectClient]:
    """Of a Prefect server for the module; its pages are one."""
    from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    kept = temporary_settings({PREFECT_LOCAL_STORAGE_PATH: tmp_path_factory.mktemp("kept")})
    with pytest.MonkeyPatch.context() as patch, kept, prefect_test_harness(server_startup_timeout=120):
        patch.setattr(site, "TOPICS", {"experts.html": site.TOPICS["experts.html"]})
        with get_client(sync_client=True) as client:
            yield client


Seen = tuple[State[Any], dict[str, tuple[str, set[str]]], dict[str, Any]]


@pytest.fixture
def run(client: SyncPrefectClient, store: Store, tmp_path: Path) -> Callable[..., Seen]:
    """Runs a flow on the store: its state; states and tags by name of flow runs and task runs; artifacts by key."""
    (tmp_path / "small.toml").write_text(STUDY)
    before: set[Any] = set()

    def new(found: Sequence[Any]) -> list[Any]:
        fresh = [one for one in found if one.id not in before]
        before.update(one.id for one in found)
        return fresh

    def run(flow: Flow[..., Any], **parameters: Any) -> Seen:
        done = flow(store=store.uri, **parameters, return_state=True)
        runs = [*new(client.read_flow_runs()), *new(client.read_task_runs())]
        artifacts = {artifact.key: artifact.data for artifact in new(client.read_artifacts())}
        return done, {one.name: (str(one.state_name), set(one.tags)) for one in runs}, artifacts

    for read in (client.read_flow_runs, client.read_task_runs, client.read_artifacts):
        new(read())
    return run


def test_what_a_run_shows_and_that_only_what_the_store_holds_is_cached(run: Any, store: Store, tmp_path: Path) -> None:
    study, batch = str(tmp_path / "small.toml"), "lru on tiny-0001 x 1"
    done, seen, made = run(pipeline, studies=(study,), site=str(tmp_path / "site"))
    assert done.is_completed()
    assert {name for name, (state, _) in seen.items() if state == "Completed"} == set(seen)
    assert {"small + pages", "study small", batch, "pages", "load the warehouse", "write the pages"} < set(seen)
    assert seen[batch][1] == {"study:small", "tape:tiny-0001"}
    assert seen["load the warehouse"][1] == {tasks.WAREHOUSE}
    assert made["study-small"] == 100.0
    (best,) = json.loads(made["best-policies"])
    assert (best["tape"], best["policy"], best["capacity"]) == ("tiny-0001", "lru", "50 %")
    assert "study small: 1 run, 0 found" in made["summary"]
    assert "experts.html" in made["pages"]

    assert run(study_flow, name=study)[1][batch][0] == "Cached"
    Path(results.batch_path(store, "runs", results.batches(store)[0])).unlink()
    assert run(study_flow, name=study)[1][batch][0] == "Completed"
    assert len(results.run_ids(store)) == 1
    store.remove("tiny-0001")
    write_tiny(store, source="another")  # a changed tape under the same name
    assert run(study_flow, name=study)[1][batch][0] == "Completed"
    assert len(results.run_ids(store)) == 2


def test_a_failing_step_is_seen_with_its_reason_and_the_command_that_repeats_it(run: Any, store: Store) -> None:
    done, seen, made = run(pipeline, studies=("nothing.toml",))
    assert done.is_failed()
    assert "nothing.toml: no such study" in str(done.message)
    assert seen["study nothing"] == ("Failed", {"study:nothing"})
    assert "pages" not in seen
    assert "nothing.toml: no such study" in made["failure"]
    assert f"tokentape study nothing.toml --store {store.uri}\n" in made["failure"]


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (OSError("connection reset"), True),
        (ConnectionResetError(104, "reset"), True),
        (ValueError("wrong name"), False),
        (FileNotFoundError(2, "no such file"), False),
        (OSError(28, "no space left"), False),
        (ChildProcessError("a worker was killed"), False),
    ],
)
def test_only_what_may_pass_is_tried_again(error: Exception, again: bool) -> None:
    assert tasks.may_pass(None, None, Failed(data=error)) is again


def test_a_tape_says_the_command_that_records_it() -> None:
    tape = Tape(model="embedded", dataset="code")
    assert str(tape) == "capture code from embedded"
    assert tape.command.startswith("tokentape capture --model embedded --dataset code --tables requests,tokens,routing")


def test_nothing_of_prefect_is_imported_without_it() -> None:
    code = "import sys, tokentape.flows.demo, tokentape.flows.study_run; sys.exit('prefect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_project_file_deploys_what_serve_does() -> None:
    import yaml

    listed = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    served = {made.name: made for made in serve.deployments("/tape", "/site", "baselines", serve.CRONS)}
    assert {one["name"] for one in listed} == set(served)
    for one in listed:
        parameters = {name: value for name, value in one["parameters"].items() if name not in ("store", "site")}
        assert {name: list(served[one["name"]].parameters[name]) for name in parameters} == parameters
        assert one["entrypoint"] == "tokentape.flows.pipeline.pipeline"

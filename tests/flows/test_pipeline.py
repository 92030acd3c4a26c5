"""The dataflow in Prefect: what its run shows, what is cached and when, a step that fails.

Slow tests ask a Prefect server; the others call the flows' own functions with the steps that a server would be told of.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from refusing import refuses
from tiny_tape import STUDY, write_tiny

pytest.importorskip("prefect")
pytest.importorskip("altair")

from prefect import Flow, State
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.context import TagsContext
from prefect.states import Failed

from tokentape.dashboards import site
from tokentape.flows import pipeline as flows
from tokentape.flows import publish, serve, tasks
from tokentape.flows.capture import Tape
from tokentape.flows.console import progress_bar
from tokentape.flows.pipeline import pipeline, study_flow, watch_flow
from tokentape.flows.watch import Watched
from tokentape.flows.workers import Telling
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


class Told:
    """In place of Prefect: steps and batches with their tags, keys and whether the store holds them; artifacts by their keys."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps: dict[str, tuple[set[str], str | None, bool]] = {}
        self.made: dict[str, Any] = {}
        for name in ("capture_flow", "study_flow", "publish_flow"):
            patch.setattr(flows, name, getattr(flows, name).fn)
        patch.setattr(flows, "step", self.step)
        patch.setattr(flows, "task_pool", self.pool)
        patch.setattr(flows, "told_progress", progress_bar)
        patch.setattr(flows, "create_table_artifact", lambda rows, key, **_: self.made.update({key: rows}))
        for module in (flows, tasks):
            patch.setattr(module, "create_markdown_artifact", lambda text, key, **_: self.made.update({key: text}))

    def step(self, name: str, work: Callable[[], Any], *tags: str, key: str | None = None, is_there: bool = False) -> Any:
        self.steps[name] = ({*tags, *TagsContext.get().current_tags}, key, is_there)
        return work()

    def pool(self, runner: str, workers: int | None) -> Telling:
        told = self

        class Pool(Telling):
            def submit(self, work: Callable[..., Any], job: Any, /) -> Future[Any]:  # type: ignore[override]
                made = Future[Any]()
                made.set_result(told.step(str(job), lambda: work(job), *job.tags, key=job.key, is_there=job.is_there))
                return made

        return Pool()


def test_what_prefect_is_told_and_that_only_what_the_store_holds_may_be_cached(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "write", lambda database, out: Path(out, "index.html"))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "experts.html").touch()
    (study := tmp_path / "small.toml").write_text(STUDY)
    told, batch = Told(monkeypatch), "lru on tiny-0001 x 1"
    pipeline.fn(studies=(str(study),), store=store.uri, site=str(tmp_path / "site"))
    assert list(told.steps) == [batch, "load the warehouse", "write the pages"]
    tags, key, is_there = told.steps[batch]
    assert (tags, is_there) == ({"study:small", "tape:tiny-0001"}, False)
    assert told.steps["load the warehouse"][0] == {tasks.WAREHOUSE}
    (best,) = told.made["best-policies"]
    assert (best["tape"], best["policy"], best["capacity"]) == ("tiny-0001", "lru", "50 %")
    assert "study small: 1 run, 0 found" in told.made["summary"]
    assert "experts.html" in told.made["pages"]

    study_flow.fn(str(study), store.uri)
    assert told.steps[batch][1:] == (key, True)
    Path(results.batch_path(store, "runs", results.batches(store)[0])).unlink()
    study_flow.fn(str(study), store.uri)
    assert told.steps[batch][1:] == (key, False)
    store.remove("tiny-0001")
    write_tiny(store, source="another")  # a changed tape under the same name
    study_flow.fn(str(study), store.uri)
    assert told.steps[batch][1] != key
    assert told.steps[batch][2] is False
    assert len(results.run_ids(store)) == 2


def test_a_kept_result_is_asked_for_by_its_key_and_a_tape_says_its_command() -> None:
    for is_there in (True, False):
        made = tasks._task(lambda: 1, "lru", ("tape:a",), "abc", is_there, 5.0)
        assert (made.cache_key_fn(None, {}), made.refresh_cache, made.persist_result) == ("abc", not is_there, True)  # type: ignore[misc]
        assert (made.tags, made.retries, made.timeout_seconds) == ({"tape:a"}, tasks.RETRIES, 5.0)
    assert tasks._task(lambda: 1, "lru", (), None, False, None).cache_key_fn is None
    tape = Tape(model="embedded", dataset="code")
    assert str(tape) == "capture code from embedded"
    assert tape.command.startswith("tokentape capture --model embedded --dataset code --tables requests,tokens,routing")


def test_a_failing_study_leaves_its_reason_and_the_command_that_repeats_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    refuses(r"nothing\.toml: no such study", pipeline.fn, studies=("nothing.toml",), store=store.uri)
    assert told.steps == {}
    assert "nothing.toml: no such study" in told.made["failure"]
    assert f"tokentape study nothing.toml --store {store.uri}\n" in told.made["failure"]


def test_what_arrives_is_steps_and_a_bad_file_a_failure_after_the_others(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (incoming := tmp_path / "incoming").mkdir()
    (incoming / "a.csv").write_text("hello")
    (incoming / "b.csv").write_bytes((ROOT / "tests" / "data" / "tiny.route.csv").read_bytes())
    told, events = Told(monkeypatch), list[Any]()
    monkeypatch.setattr(publish, "write", lambda database, out: Path(out, "index.html"))
    monkeypatch.setattr(flows, "pipeline", pipeline.fn)
    monkeypatch.setattr(flows, "emit_event", lambda *event, payload: events.append((*event, payload)))
    (study := tmp_path / "small.toml").write_text(STUDY + '[[policies]]\nname = "belady"\n')
    watched = Watched(source=str(incoming), studies=(str(study),), alerts=("lru:0.05",), every_s=0)
    refuses(r"a\.csv: no known format", watch_flow.fn, watched, store.uri, str(tmp_path / "site"))
    (tape,) = (one for one in store.trace_ids() if one != "tiny-0001")
    steps = list(told.steps)
    assert (steps[:2], steps[-2:]) == (["import a.csv", "import b.csv"], ["load the warehouse", "write the pages"])
    assert all(tape in step and f"tape:{tape}" in told.steps[step][0] for step in steps[2:-2])
    assert f"tokentape watch {incoming}/a.csv --once --store {store.uri}\n" in told.made["failure"]
    ((name, resource, payload),) = events
    assert (name, resource["prefect.resource.id"]) == ("tokentape.alert", f"tokentape.tape.{tape}")
    assert payload["alert"] == "lru:0.05"


@pytest.mark.slow
def test_what_a_run_shows_and_that_only_what_the_store_holds_is_cached(run: Any, store: Store, tmp_path: Path) -> None:
    study, batch = str(tmp_path / "small.toml"), "lru on tiny-0001 x 1"
    done, seen, made = run(pipeline, studies=(study,), site=str(tmp_path / "site"))
    assert done.is_completed()
    assert {name for name, (state, _) in seen.items() if state == "Completed"} == set(seen)
    assert {"small + pages", "study small", batch, "pages", "load the warehouse", "write the pages"} < set(seen)
    assert seen[batch][1] == {"study:small", "tape:tiny-0001"}
    assert seen["load the warehouse"][1] == {tasks.WAREHOUSE}
    assert made["study-small"] == 100.0
    assert {"best-policies", "summary", "pages"} < set(made)

    assert run(study_flow, name=study)[1][batch][0] == "Cached"
    Path(results.batch_path(store, "runs", results.batches(store)[0])).unlink()
    assert run(study_flow, name=study)[1][batch][0] == "Completed"


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


def test_the_project_file_deploys_what_serve_does() -> None:
    import yaml

    listed = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    served = {made.name: made for made in serve.deployments("/tape", "/site", "baselines", serve.CRONS, [str(ROOT)])}
    assert {one["name"] for one in listed} == set(served)
    for one in listed:
        parameters = {name: value for name, value in one["parameters"].items() if name not in ("store", "site", "watched")}
        assert {name: list(served[one["name"]].parameters[name]) for name in parameters} == parameters
        assert one["entrypoint"] == served[one["name"]].entrypoint
    assert Watched(**next(one["parameters"]["watched"] for one in listed if one["name"] == serve.WATCH)).alerts == ("lru:0.2",)

"""A store with a small tape, and the command line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Cli, Done
from tiny_tape import write_tiny

from tokentape.flows import console
from tokentape.flows.cli import main
from tokentape.warehouse.tape import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one tape, `tiny-0001`."""
    place = Store(str(tmp_path / "tape"))
    write_tiny(place)
    return place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store for what a file's study makes."""
    return Store(str(tmp_path_factory.mktemp("study") / "tape"))


@pytest.fixture(scope="module")
def loaded_once() -> Iterator[None]:
    """Jobs of a study measure in one loaded model, each behind the other; a study loads it for every job."""
    models = pytest.importorskip("tokentape.capture.models")
    load, held = models.load, dict[tuple[Any, ...], Any]()

    def once(source: Any, *how: Any) -> Any:
        key = source.fingerprint, *how
        if key not in held:
            held[key] = load(source, *how)
        return held[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "load", once)
        yield


@pytest.fixture
def tokentape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs commands in `tmp_path`, whose store is ./tape, offline."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(console, "PROGRESS_EVERY_S", 600.0)  # no line of a slow machine among what is told
    for name in ("TOKENTAPE_STORE", "TOKENTAPE_DEBUG"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        shown = capsys.readouterr()
        return Done(int(ended.value.code or 0), shown.out, shown.err)

    return Cli(run)

"""What all tests share."""

import atexit
import gc
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tokentape.warehouse.atomic_files import aside_of
from tokentape.warehouse.tape import Store

settings.register_profile("same every run", derandomize=True, deadline=None)
settings.load_profile("same every run")
EMBEDDED = Path(__file__).resolve().parents[1] / "capture" / "embedded" / "model" / "model.safetensors"
# What compiles longest, beside rooms that hardly compile: two workers that begin with live models wait for the same kernels.
BEGIN = ("test_applied.py", "bench", "hw", "warehouse", "tests")
gc.disable()  # while all tests and what they import are loaded: those objects stay


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        return min((BEGIN.index(of) for of in (item.path.name, item.path.parent.name) if of in BEGIN), default=len(BEGIN))

    items.sort(key=turn)


def pytest_collection_finish() -> None:
    gc.freeze()  # nor are they looked at again and again as the tests run
    gc.enable()


atexit.register(gc.unfreeze)  # or what is written in C++ says at the end that it leaked


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("embedded") and not EMBEDDED.is_file():
        pytest.skip("the embedded model's weights are not in this checkout")


@pytest.fixture(autouse=True)
def log_that_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line keeps the program's log to itself once it was imported; `caplog` hears it all the same."""
    monkeypatch.setattr(logging.getLogger("tokentape"), "propagate", True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def dead_aside(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | Path], Path]:
    """The aside of a process that has ended since, by the path it was to become."""

    def of(path: str | Path) -> Path:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 999_999_999)
            return Path(aside_of(str(path)))

    return of


@pytest.fixture(scope="session", autouse=True)
def without_waiting_for_the_disk() -> Iterator[None]:
    """Files of a test need not outlive a power cut. Tests of the order of syncing put their own function in its place. What a
    command says does not depend on how long it compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokentape.policies.kernels.SAID_AFTER_S", 3600.0)
        patch.setattr(os, "fsync", lambda handle: None)
        yield

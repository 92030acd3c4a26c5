"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure() -> None:
    """Lets the processes of one run share the compiling of the kernels, which a fresh checkout does at their first import.

    Every other process goes through them backwards, and so finds in the cache what one that came from the other end has compiled.
    """
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        files = sorted(path for room in ("policies", "replay") for path in (ROOT / room).rglob("*.py"))
        kernels = [path for path in files if "@njit" in path.read_text(encoding="utf-8")]
        for path in kernels[:: -1 if int(worker.removeprefix("gw")) % 2 else 1]:
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


@pytest.fixture(scope="session", autouse=True)
def without_waiting_for_the_disk() -> Iterator[None]:
    """Files of a test need not outlive a power cut. Tests of the order of syncing put their own function in its place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield

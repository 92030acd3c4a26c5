"""Warehouses to build pages from: full, empty, and with tapes but no replay."""

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import duckdb
import pytest
from filelock import FileLock
from made_up import CAPACITIES, MACHINES, POLICIES, TAPES, catalogue, curve, gates, made, opened, replay, summaries, write
from made_up_cxl_ndp import EVERYTHING as CXL_NDP
from made_up_elmoe3d import EVERYTHING as ELMOE3D
from made_up_hardware import add_dram_validation, add_engine_validation, add_gpu_validation, add_hardware
from made_up_kelle import EVERYTHING as KELLE
from made_up_layered import EVERYTHING as LAYERED_PREFILL
from made_up_slicemoe import STUDY
from made_up_systems import EVERYTHING as SYSTEMS

from tokentape.dashboards.shell import Page
from tokentape.dashboards.site import build
from tokentape.warehouse.sql import connect


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four tapes, the synthetic one without replays; three machines, one without a step; validation on two devices."""
    rows = made(add_hardware, add_dram_validation, add_gpu_validation, add_engine_validation)
    for tape in TAPES:
        rows["traces"].append(catalogue(tape))
        summaries(tape, rows)
        gates(tape, rows)
        if tape.origin != "synthetic":
            for n, (policy, machine, scope, capacity) in enumerate(
                product(POLICIES, MACHINES, ("global", "per-layer"), CAPACITIES)
            ):
                for seed in (0, 1) if policy == "random" else (0,):
                    replay(tape, policy, machine, scope, capacity, seed, f"{tape.trace_id}-{n}-{seed}", rows)
            for scope in ("global", "per-layer"):
                curve(tape, scope, rows)
    for add in (*STUDY, *LAYERED_PREFILL, *ELMOE3D, *KELLE, *CXL_NDP, *SYSTEMS):
        add(rows)
    return write(tmp_path_factory.mktemp("warehouse") / "warehouse.duckdb", rows)


@pytest.fixture(scope="session")
def site_folder(database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of `database`, built once for all processes of the run; only to be read."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with FileLock(folder / "site.lock"):
        return folder / "site" if (folder / "site").exists() else build(database, folder / "site").parent


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("empty") / "warehouse.duckdb", {})


@pytest.fixture(scope="session")
def unreplayed_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tapes and their summaries, no replay."""
    rows = made()
    for tape in TAPES[:2]:
        rows["traces"].append(catalogue(tape))
        summaries(tape, rows)
    return write(tmp_path_factory.mktemp("unreplayed") / "warehouse.duckdb", rows)


@pytest.fixture(scope="module")
def connection(request: pytest.FixtureRequest) -> Iterator[duckdb.DuckDBPyConnection]:
    """A warehouse of what the test's file names in MADE, or that of every page."""
    if hasattr(request.module, "MADE"):
        with opened(*request.module.MADE) as connection:
            yield connection
    else:
        with connect(request.getfixturevalue("database")) as connection:
            yield connection


@pytest.fixture(scope="module")
def page(request: pytest.FixtureRequest, connection: duckdb.DuckDBPyConnection) -> Page:
    """The page that it names in PAGE."""
    found: Page = request.module.PAGE.page(connection, 16)
    return found


@pytest.fixture(scope="module")
def said(page: Page) -> dict[str, dict[str, str]]:
    """Figure -> selection -> sentence."""
    return {figure.name: dict(figure.answers) for figure in page.figures}

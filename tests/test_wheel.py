"""What is installed: one name in site-packages, whole without the checkout, unharmed by foreign packages of our rooms' names."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bench.lines import PRODUCT, ROOMS, ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, unpacked: what site-packages would hold."""
    checkout, wheels, place = (tmp_path_factory.mktemp(name) for name in ("checkout", "wheels", "site"))
    for part in PRODUCT:
        shutil.copytree(ROOT / part, checkout / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, checkout)
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(wheels)!r})"  # as pip asks for it
    done = subprocess.run([sys.executable, "-c", build], cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


def run(place: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(place)}
    return subprocess.run([sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_holds_one_name_and_every_file_that_is_read(installed: Path) -> None:
    assert sorted(path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")) == ["tokentape"]
    for room in ROOMS:
        shipped = {path.relative_to(ROOT / room) for path in (ROOT / room).rglob("*") if path.is_file()}
        shipped = {path for path in shipped if "__pycache__" not in path.parts}
        there = {path.relative_to(installed / "tokentape" / room) for path in (installed / "tokentape" / room).rglob("*")}
        assert shipped <= there, f"package-data of pyproject.toml lacks {sorted(map(str, shipped - there))}"


def test_it_runs_beside_a_foreign_package_of_a_rooms_name(installed: Path, tmp_path: Path) -> None:
    for room in ("replay", "hw"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise SystemExit('foreign')\n")
    where = run(installed, tmp_path, "-c", "import tokentape.replay.experts as e; print(e.__file__)")
    assert where.stdout.startswith(str(installed)), where.stderr
    listed = run(installed, tmp_path, "-m", "tokentape.flows.cli", "hardware", "list")
    assert listed.returncode == 0, listed.stderr
    assert "phone-lpddr5x-ufs4" in listed.stdout

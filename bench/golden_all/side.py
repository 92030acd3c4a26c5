"""One side of the comparison: a revision in a folder and a virtual environment of its own, and what its command line makes there.

Nothing of the revision is imported here, so that its modules may be named and laid out as they like.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What a study is told to leave out what it measures inside a live model; layered_prefill measures nothing there.
CLOSED_FORMS = {
    "elmoe3d": ("--no-live",),
    "kelle": ("--no-live",),
    "layered_prefill": (),
    "slicemoe": ("--no-live",),
    "cxl_ndp": ("--no-live",),
}
PARTS = ("help", "demo", *CLOSED_FORMS)
# What a side with live parts has in place of a study's own efforts, in the tables [live...] of the files systems/*/study.toml.
LIVE_SIZES = {
    "seeds": "[0]",
    "items": "1",
    "other_items": "1",
    "windows": "1",
    "prompts": "2",
    "whole_windows": "2",
    "recorded_requests": "2",
}
COMMANDS = re.compile(r"^(?!Options|Arguments)[A-Z][\w ]*:\n((?:  .*\n?)+)", re.M)  # under one heading or several
Command = tuple[str, ...]


@dataclass(frozen=True)
class Side:
    """A built revision: `<folder>/checkout`, `<folder>/venv` and a folder for each part that is made."""

    folder: Path
    is_live: bool
    hash_seed: str

    def make(self, part: str, n_workers: int) -> Path:
        """What the part leaves: `out/` holds what was printed, `store/` and `site/` the rest. Made once, then found; one that was
        stopped goes on where its study was.

        Raises SystemExit with the end of what a command said where it fails.
        """
        place = self.folder / part
        planned = [*_planned(part, self.is_live)]
        plan, done = place / "plan.json", place / "seconds"
        if not plan.is_file() or plan.read_text() != json.dumps(planned):
            shutil.rmtree(place, ignore_errors=True)
            (place / "out").mkdir(parents=True)
            plan.write_text(json.dumps(planned))
        if done.is_file():
            return place
        begin = time.monotonic()
        if part == "help":
            self._help(place, ())
        for command, printed in planned:
            workers = ("--workers", str(n_workers)) if command[0] == "study" else ()
            (place / "out" / printed).write_text(self._run(place, (*command, *workers)), encoding="utf-8")
        took_s = round(time.monotonic() - begin, 1)
        print(f"{part:16} {self.folder.name:24} made in {took_s:,.0f} s", file=sys.stderr, flush=True)
        done.write_text(str(took_s))
        return place

    def _help(self, place: Path, command: Command) -> None:
        """Of a command and those in it, each into a file of its name."""
        said = self._run(place, (*command, "--help"))
        (place / "out" / f"{' '.join(('tokentape', *command))}.txt").write_text(said, encoding="utf-8")
        for line in "".join(COMMANDS.findall(said)).splitlines():
            if line[2:3].strip():  # deeper lines go on with what a command is for
                self._help(place, (*command, line.split()[0]))

    def _run(self, place: Path, command: Command) -> str:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TZ": "UTC",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            "COLUMNS": "120",
            "PYTHONHASHSEED": self.hash_seed,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            **dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9"),  # nobody there: no network
        }
        with (place / "errors.txt").open("a") as errors:
            ran = subprocess.run(
                [self.folder / "venv" / "bin" / "tokentape", *command],
                cwd=place, env=environment, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8",
            )  # fmt: skip
        if ran.returncode:
            said = (place / "errors.txt").read_text()[-2000:]
            raise SystemExit(f"{self.folder.name}: tokentape {' '.join(command)} exits with {ran.returncode}:\n{said}")
        return ran.stdout


def _planned(part: str, is_live: bool) -> Iterator[tuple[Command, str]]:
    """Commands in their order, run in the part's folder, and the file of what each prints."""
    place, pages = ("--store", "store"), ("--out", "site")
    if part == "demo":
        yield ("demo", *place, *pages), "demo.txt"
    elif part in CLOSED_FORMS:
        yield ("study", part, *(() if is_live else CLOSED_FORMS[part]), *place), "study.txt"
        yield ("load", *place), "load.txt"
        yield ("site", *place, *pages), "site.txt"
        yield ("claims", part, "--json", *place), "claims.json"
        yield ("claims", "--json", *place), "systems.json"


def build(tree: str, work: Path, is_live: bool = False, is_again: bool = False) -> Side:
    """The tree as files with an environment over the libraries of this one, so that both sides have the same.

    is_live: its studies' live parts at LIVE_SIZES. is_again: a second time, under other hashes, so that what follows the order of
    a set shows.
    """
    folder = work / f"{tree[:12]}{'-again' * is_again}{'-live' * is_live}"
    side = Side(folder, is_live, str(int(is_again)))
    if (folder / "built").is_file():
        return side
    shutil.rmtree(folder, ignore_errors=True)
    checkout, venv = folder / "checkout", folder / "venv"
    with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", tree))) as archive:
        archive.extractall(checkout, filter="data")
    for settings in checkout.glob("**/systems/*/study.toml") if is_live else ():
        settings.write_text(smallest(settings.read_text(encoding="utf-8")), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    # Paths alone: what this environment's own .pth files would import is the checkout that it was made for.
    libraries = [path for path in sys.path if path.endswith("-packages")]
    (packages / "libraries.pth").write_text("\n".join(libraries) + "\n")
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", *("--no-build-isolation",) * bool(find_spec("setuptools")))
    pip = (sys.executable, "-m", "pip", "--python", venv / "bin" / "python")
    subprocess.run([*pip, "install", *options, "-e", checkout], check=True)
    (folder / "built").touch()
    return side


def smallest(settings: str) -> str:
    """A study's TOML with LIVE_SIZES in its tables [live...]."""
    lines, is_inside = [], False
    for line in settings.splitlines():
        if line.startswith("["):
            is_inside = line.strip("[").startswith("live")
        name = line.partition(" = ")[0]
        lines.append(f"{name} = {LIVE_SIZES[name]}" if is_inside and name in LIVE_SIZES else line)
    return "\n".join(lines) + "\n"


def tree_of(revision: str) -> str:
    """Hash of a revision's files; of the working tree, uncommitted and new files included, where none is named."""
    if revision:
        return _git("rev-parse", "--verify", f"{revision}^{{tree}}").decode().strip()
    with tempfile.TemporaryDirectory() as folder:
        aside = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        _git("read-tree", "HEAD", **aside)
        _git("add", "--all", **aside)
        return _git("write-tree", **aside).decode().strip()


def _git(*arguments: str, **environment: str) -> bytes:
    ran = subprocess.run(["git", *arguments], cwd=ROOT, env=os.environ | environment, capture_output=True)
    if ran.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {ran.stderr.decode().strip()}")
    return ran.stdout

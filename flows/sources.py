"""What of the code decides a result: the modules of ours that an engine reaches by its imports, and the files that they read.

Sources are parsed and never imported. Followed are imports anywhere in a module, those in functions too, but for those under
TYPE_CHECKING. A package counts where a name is taken from it, not where a module inside it is: policies/__init__.py names every
policy, and a kernel below it needs none of them. A policy that is chosen by its name begins at its own module (`reached` of
policies/registry.py, which is not followed). How rows are kept decides no number: of warehouse/ counts what says what a model is.
"""

import hashlib
import re
from functools import lru_cache
from pathlib import Path

from tokentape.policies.own_modules import imported_names

ROOT = Path(__file__).resolve().parents[1]  # of the rooms, in a checkout as where they are installed
BY_NAME = "tokentape.policies.registry"
ROOMS = ("capture", "hw", "policies", "replay")
MODEL = ("config_fields", "formats", "geometry", "losses", "mixers", "model_config", "model_sizes")  # of warehouse/
READER = "tokentape.warehouse.model_config"  # of models that keys name, whatever the engine
READS = {
    "tokentape.capture.families": "capture/families.toml",
    "tokentape.capture.embedded.texts": "capture/embedded/texts.toml",
    "tokentape.capture.orderings": "capture/orderings.toml",
    "tokentape.hw.dram": "hw/timings/*.toml",
    "tokentape.hw.profile": "hw/profiles/*.toml",
    "tokentape.replay.serving.engine_logs": "replay/serving/engine_logs.toml",
    "tokentape.warehouse.config_fields": "warehouse/families.toml",
    "tokentape.capture.models": "capture/embedded/model/manifest.json",
    "tokentape.capture.speculation.eagle": "capture/embedded/eagle/manifest.json",
}
# Where statements begin that are in no other: not what goes on, or closes, one of the lines before.
_STATEMENTS = re.compile(rb"^(?=[^\s#)\]}\"'])(?!(?:elif|else|except|finally)\b)", re.MULTILINE)


@lru_cache(maxsize=256)
def sha256(*engine: str, also: tuple[str, ...] = (), fits: tuple[Path, ...] = (), root: Path = ROOT) -> str:
    """Of all that an engine's modules reach, found once per process.

    also: dotted names that a policy imports, of modules or out of them. fits: files of the constants that the engine was given.
    Raises ValueError for an engine's module that is not there.
    """
    modules = closure(*engine, also=(*also, READER), root=root)
    read = [path for name, pattern in READS.items() if name in modules for path in sorted(root.glob(pattern))]
    digest = hashlib.sha256()
    for name, path in [*sorted(modules.items()), *((path.name, path) for path in (*read, *fits))]:
        source = path.read_bytes()
        digest.update(f"{name}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()


def closure(*engine: str, also: tuple[str, ...] = (), root: Path = ROOT) -> dict[str, Path]:
    """The modules of ours that `sha256` is of, those of the engine among them, with their files."""
    for name in engine:
        if _module(name, root) != name:
            raise ValueError(f"no module {name} of an engine in {root}")
    found: dict[str, Path] = {}
    waiting = [*engine, *also]
    while waiting:
        name = _module(waiting.pop(), root)
        if name and name not in found:
            found[name] = _file(name, root)
            waiting += _imported(found[name])
    return found


def _imported(path: Path) -> tuple[str, ...]:
    """Names that a module of ours imports, from its statements that hold the word: a seventh of the time for all of them."""
    source = path.read_bytes()
    try:
        return imported_names(b"".join(of for of in _STATEMENTS.split(source) if re.search(rb"\bimport\b", of)), str(path))
    except ValueError:  # words of a text, taken for a statement
        return imported_names(source, str(path))


@lru_cache(maxsize=4096)
def _module(name: str, root: Path) -> str:
    """The module that a dotted name is, or is taken from; empty where it counts for nothing."""
    top, room, module, *_ = (*name.split("."), "", "")
    if top != "tokentape" or not (room in ROOMS or (room == "warehouse" and module in MODEL)) or name.startswith(BY_NAME):
        return ""
    while name.count(".") > 1 and not _file(name, root).is_file():
        name = name.rpartition(".")[0]
    return name


def _file(name: str, root: Path) -> Path:
    path = root.joinpath(*name.split(".")[1:])
    package = path / "__init__.py"  # a folder without it is what an older checkout left
    return package if package.is_file() else path.with_suffix(".py")

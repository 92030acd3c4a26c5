"""The file of a user's own policy and the modules it imports, as one thing: found without running them, hashed, loaded together.

A module is the user's own if it lies beside the file, or anywhere on Python's path but with the standard library, the installed
packages and tokentape. What is loaded is what was hashed: sources are compiled as they stand, never taken from `__pycache__`.
Only imports that are written as such are seen: not importlib.import_module, not data files that a policy reads.
"""

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import accumulate, chain
from pathlib import Path
from threading import RLock
from types import CodeType, ModuleType
from typing import NamedTuple

_INSTALLED = {"site-packages", "dist-packages"}  # folders of installed packages are called so wherever Python lies
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # where statements hold other statements
_LOCK = RLock()  # threads of one study ask for the same file


class Own(NamedTuple):
    """One module of the user's: its file, none for a folder without __init__.py; of a package, the folders of what it holds."""

    file: str | None
    folders: tuple[str, ...] | None

    def __str__(self) -> str:
        return self.file or ", ".join(self.folders or ())


def sha256(path: Path, mine: dict[str, Own] | None = None) -> str:
    """Hash of the file and of all its own modules, wherever they lie. Raises ValueError if one is missing or no Python."""
    digest = hashlib.sha256(path.read_bytes())
    for name, own in sorted((own_modules(path) if mine is None else mine).items()):
        source = Path(own.file).read_bytes() if own.file else b""
        digest.update(f"\0{name}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()


def own_modules(path: Path) -> dict[str, Own]:
    """The user's own modules that the file imports, and those that they import, by name."""
    found: dict[str, Own] = {}
    beside = str(path.resolve().parent)
    waiting = [("", str(path))]
    while waiting:
        package, file = waiting.pop()
        dotted = imported_names(Path(file).read_bytes(), file, package)
        # Packages before what lies in them; names that are no modules too.
        for name in chain.from_iterable(accumulate(of.split("."), "{}.{}".format) for of in dotted):
            own = None if name in found else _own(name, found, beside)
            if own:
                found[name] = own
                if own.file and own.file.endswith(".py"):
                    waiting.append((name if own.folders else name.rpartition(".")[0], own.file))
    return found


def of_tokentape(path: Path) -> tuple[str, ...]:
    """What the file and its own modules import of tokentape, as dotted names. Raises ValueError as `sha256`."""
    files = [str(path), *(own.file for own in own_modules(path).values() if own.file and own.file.endswith(".py"))]
    named = {name for file in files for name in imported_names(Path(file).read_bytes(), file)}
    return tuple(sorted(name for name in named if name.startswith("tokentape.")))


def load(path: Path) -> ModuleType:
    """The module of a file, run once per version of it and of its own modules.

    Raises ValueError naming the file that is missing or does not run, or a module that is another file's for another policy.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file; give a policy as path/to/file.py:ClassName")
    with _LOCK:
        mine, path = own_modules(path), path.resolve()
        name = f"tokentape_own_{path.stem}_{hashlib.sha256(f'{path} {sha256(path, mine)}'.encode()).hexdigest()[:16]}"
        if name in sys.modules:
            return sys.modules[name]
        _FINDER.take(mine, path)
        spec = importlib.util.spec_from_file_location(name, path, loader=_AsItStands(name, str(path)))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up while the file runs
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise ValueError(f"{path}: cannot be imported: {type(error).__name__}: {error}") from error
        return module


class _AsItStands(SourceFileLoader):
    """Compiles the source each time: a cached file of bytecode is believed for a source changed within the same second."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


class _Finder(MetaPathFinder):
    """Finds the modules of the policies that were loaded, before Python looks for them itself."""

    def __init__(self) -> None:
        self.modules: dict[str, Own] = {}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        own = self.modules.get(name)
        if own is None:
            return None
        folders = None if own.folders is None else list(own.folders)
        if own.file is None:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = folders
            return spec
        loader = _AsItStands(name, own.file) if own.file.endswith(".py") else None
        return importlib.util.spec_from_file_location(name, own.file, loader=loader, submodule_search_locations=folders)

    def take(self, mine: dict[str, Own], path: Path) -> None:
        """Makes the modules of `path` those to be found; what was loaded of them is dropped, so that it is run again."""
        for name, own in mine.items():
            spec = getattr(sys.modules.get(name), "__spec__", None)  # of a module that was imported by someone else
            loaded = Own(spec.origin, tuple(spec.submodule_search_locations or ()) or None) if spec else None
            other = self.modules.get(name) or loaded
            if other and str(other) != str(own):
                raise ValueError(f"{path}: imports its module {name}, but {name} is {other} already; rename one of the two")
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        for name in mine:
            if name in self.modules:
                sys.modules.pop(name, None)
        self.modules |= mine


_FINDER = _Finder()


def _own(name: str, found: dict[str, Own], beside: str) -> Own | None:
    """Where a module lies if it is the user's own, by the rules of Python's own search, the folder of the file last."""
    package, _, last = name.rpartition(".")
    if (package and package not in found) or name in sys.stdlib_module_names or name == "tokentape":
        return None
    spec = PathFinder.find_spec(last, list(found[package].folders or ()) if package else [*sys.path, beside])
    if spec is None:
        return None
    own = Own(spec.origin, None if spec.submodule_search_locations is None else tuple(spec.submodule_search_locations))
    lies = Path(own.file or own.folders[0]).resolve()  # type: ignore[index]  # one of the two is there
    return None if _INSTALLED & set(lies.parts) else own


@lru_cache(maxsize=2048)
def imported_names(source: bytes, file: str, package: str = "") -> tuple[str, ...]:
    """`a.b` of `import a.b`, `a.b` of `from a import b`, in functions too; not what only a type checker imports.

    package: the one that the file lies in. Raises ValueError for what is no Python.
    """
    try:
        with _LOCK:  # Python 3.11 counts the depth of all threads' trees in one place
            tree = ast.parse(source, file)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{file}: cannot be imported: {type(error).__name__}: {error}") from error
    found: list[str] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            start = [part for part in (base, node.module) if part]
            found += [".".join((*start, alias.name)) for alias in node.names]
        elif isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += (inside for name in _BLOCKS for inside in getattr(node, name, ()))
    return tuple(found)

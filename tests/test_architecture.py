"""Who may import whom, checked on the source of every room, and that the core needs no extra, checked by blocking them."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.lines import PRODUCT, ROOMS, ROOT

PAGE = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
_TABLE = {
    room: listed.partition("; the only room with ")
    for room, listed in re.findall(r"^\| (\w+)/ \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE)
}
# Modules of other rooms that a room may use, and packages that one room alone may, as the page's table has them.
MAY_IMPORT = {
    room: {"all": ROOMS, "nothing of ours": ()}.get(allowed, tuple(allowed.split(", "))) for room, (allowed, *_) in _TABLE.items()
}
LIVES_IN = {name: room for room, (*_, alone) in _TABLE.items() for name in alone.split(", ") if name}
NEVER = ("pickle", "marshal", "shelve")


def sources(room: str) -> Iterator[Path]:
    return (path for path in sorted((ROOT / room).rglob("*.py")))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import, function bodies included; `from a import b` is a.b where that is a module.

    Modules of ours are named from their room on. Raises AssertionError for one that is not imported from tokentape: a checkout's
    folders can be found by their own names too, and would be a second copy.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            for alias in node.names:
                deeper = ROOT.joinpath(*(node.module or "").removeprefix("tokentape").strip(".").split("."), alias.name)
                is_module = deeper.is_dir() or deeper.with_suffix(".py").is_file()
                modules.append(f"{node.module}.{alias.name}" if is_module else node.module or "")
        for module in modules:
            assert module.partition(".")[0] not in ROOMS, f"{path}:{node.lineno}: write tokentape.{module}"
            yield node.lineno, module.removeprefix("tokentape.")


def is_inside(module: str, allowed: str) -> bool:
    return module == allowed or module.startswith(allowed + ".")


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_rooms_import_only_what_the_design_allows(room: str) -> None:
    wrong = []
    for path in sources(room):
        for line, module in imported(path):
            root = module.partition(".")[0]
            where = f"{path.relative_to(ROOT)}:{line} imports {module}"
            if root in ROOMS and root != room and not any(is_inside(module, allowed) for allowed in MAY_IMPORT[room]):
                wrong.append(where)
            if LIVES_IN.get(root, room) != room or root in NEVER:
                wrong.append(where)
    assert not wrong, "\n".join(wrong)


def test_the_check_sees_a_forbidden_import_and_those_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("def f():\n    from tokentape.warehouse import tape\n    import torch.nn\nfrom tokentape import flows\n")
    assert sorted(module for _, module in imported(path)) == ["flows", "torch.nn", "warehouse.tape"]
    assert not any(is_inside("warehouse.tape", allowed) for allowed in MAY_IMPORT["replay"])
    path.write_text("import warehouse.tape\n")
    with pytest.raises(AssertionError, match=r"write tokentape\.warehouse\.tape"):
        list(imported(path))
    seen = {module.partition(".")[0] for path in sources("flows") for _, module in imported(path)}
    assert set(ROOMS) <= seen
    assert set(MAY_IMPORT) == set(PRODUCT)


def test_a_folder_of_the_checkout_is_not_imported_by_its_own_name() -> None:
    code = f"for room in {ROOMS}:\n    try:\n        __import__(room)\n    except ImportError as error:\n        print(error)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout.splitlines()
    assert len(said) == len(ROOMS), done.stderr
    assert all(line.endswith(f"write: import tokentape.{room}") for line, room in zip(said, ROOMS, strict=True)), said


def test_no_shell_no_remote_code_and_nothing_outside_the_project() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for path in [*pages, *(path for room in (*ROOMS, "bench") for path in sources(room))]:
        if path.name not in ("log.md", "machines.md"):
            assert not re.search(r"\.\./shared|/ \"shared\"", path.read_text(encoding="utf-8")), path
    for room in ROOMS:
        for path in sources(room):
            text = path.read_text(encoding="utf-8")
            for words in ("shell=True", "trust_remote_code=True", "os.system("):
                assert words not in text, f"{path.relative_to(ROOT)} contains {words}"


BLOCK = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {tuple(LIVES_IN)}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def without_extras(code: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs `code` where no extra is installed."""
    command = [sys.executable, "-c", BLOCK + code]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "modules",
    [
        ("replay.experts", "replay.curve"),
        ("policies", "hw.spec"),
        ("warehouse.load", "warehouse.sql"),
        ("flows.cli", "flows.grid", "flows.watch", "flows.demo"),
    ],
)
def test_the_core_imports_without_extras(modules: tuple[str, ...]) -> None:
    done = without_extras("".join(f"import tokentape.{module}\n" for module in modules))
    assert done.returncode == 0, done.stderr


def test_importers_and_data_sets_import_without_extras() -> None:
    names = [f"tokentape.capture.importers.{p.stem}" for p in sources("capture/importers") if p.stem != "__init__"]
    assert names
    done = without_extras(f"import {', '.join(names)}, tokentape.capture.embedded.texts")
    assert done.returncode == 0, done.stderr


def test_a_missing_extra_is_named_in_one_line(tmp_path: Path) -> None:
    extras = {"capture --model embedded --dataset math": "capture", "evaluate --model embedded": "capture"}
    extras |= {"site --database x.duckdb": "dashboards", "serve": "flows"}
    codes = f"""
from tokentape.flows.cli import main
for command in {list(extras)}:
    try:
        main(command.split())
    except SystemExit as ended:
        print(ended.code)
"""
    done = without_extras(codes, tmp_path)
    assert done.stdout.split() == ["2"] * len(extras), done.stderr
    ends = [f"pip install 'tokentape[{extra}]'" for extra in extras.values()]
    assert all(line.endswith(end) for line, end in zip(done.stderr.splitlines(), ends, strict=True)), done.stderr
    assert list(tmp_path.iterdir()) == []

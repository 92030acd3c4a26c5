"""The README is run: every command in its code blocks, but for those that another named test runs. Options in docs/ exist."""

import ast
import importlib.util
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from bench.lines import BESIDE, PRODUCT
from tests.flows.tiny_gpu import gemm_rows
from tokentape.flows.cli import app, main
from tokentape.flows.systems import SYSTEMS
from tokentape.warehouse.claim_errors import compared
from tokentape.warehouse.load import claims
from tokentape.warehouse.results import read_rows
from tokentape.warehouse.tape import Store

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Commands of the README that need a download or a large model, and the test that runs their like.
RUN_BY: dict[str, str] = json.loads((Path(__file__).parent / "readme_run_by.json").read_text())


def commands(text: str) -> Iterator[str]:
    """Lines of code blocks that start with make or tokentape, without comments."""
    for block in re.findall(r"^```[a-z]*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith(("make ", "tokentape ")):
                yield line.partition("#")[0].strip()


def test_every_make_target_and_command_of_the_readme_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [line.split()[1] for line in commands(README) if line.startswith("make ")]
    assert targets
    for target in targets:
        assert f"\n{target}:" in makefile
    for command, test in RUN_BY.items():
        assert any(line.startswith(command) for line in commands(README)), command
        assert (ROOT / test).is_file()


def test_every_command_of_the_readme_runs_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for extra in ("torch", "altair"):
        pytest.importorskip(extra)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOKENTAPE_STORE", raising=False)
    (tmp_path / "my-gpu").mkdir()  # a measured table, as a GPU of one's own would give
    gemm_rows(device="NVIDIA A100-SXM4-80GB").write_parquet(tmp_path / "my-gpu" / "gemm_perf.parquet")
    shutil.copytree(ROOT / "docs/examples", tmp_path / "docs/examples")
    (tmp_path / "tests/data").mkdir(parents=True)
    shutil.copy(ROOT / "tests/data/tiny.route.csv", "tests/data")
    ran = 0
    for line in commands(README):
        if not line.startswith("tokentape ") or line.startswith(tuple(RUN_BY)):
            continue
        if "RESULT" in line:
            replays = read_rows(Store(str(tmp_path / "tape")), "replays")
            line = line.replace("RESULT", next(row["replay_id"] for row in replays if row["hardware"] != "my-phone"))
        line = line.replace("--max-items 2", "--max-items 1")
        words = shlex.split(line.replace("TRACE", "embedded-math").replace("TABLES", "my-gpu"))[1:]
        words += ("--max-requests", "2") * (words[0] == "capture")
        with pytest.raises(SystemExit) as ended:
            main(words)
        shown = capsys.readouterr()
        assert ended.value.code == 0, f"{line}\n{shown.err}"
        ran += 1
    assert ran >= 12


def test_files_of_the_readmes_commands_exist_or_are_made_by_the_command_before() -> None:
    """A name in capitals stands for what is the reader's own."""
    made, named = set(), 0
    for line in commands(README):
        words = shlex.split(line)
        if words[:3] == ["tokentape", "hardware", "new"]:
            made.add(f"{words[4]}.toml")
        for word in words:
            path = re.sub(r":\w+$", "", word)
            if re.search(r"^\.?/|\.(py|toml|csv|npz|json|jsonl|txt|parquet)$", path) and not re.match(r"[A-Z_]+\b", path):
                assert path in made or (ROOT / path).exists(), line
                named += 1
    assert named >= 5


def test_policies_and_systems_of_the_pages_are_the_examples() -> None:
    page = (ROOT / "docs/replay.md").read_text(encoding="utf-8")
    assert (ROOT / "docs/examples/my_cache.py").read_text(encoding="utf-8") in page
    page = (ROOT / "docs/systems.md").read_text(encoding="utf-8")
    for name in ("my_system.toml", "my_placement.py"):
        assert (ROOT / "docs/examples" / name).read_text(encoding="utf-8") in page


def test_python_in_the_documents_imports_what_there_is() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tokentape"):
                    module = importlib.import_module(node.module or "")
                    for alias in node.names:
                        there = hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}")
                        assert there, f"{page.name}: from {node.module} import {alias.name}"


def test_paths_named_in_documents_and_sources_exist() -> None:
    """Those of the rooms; what is called mine, or has a name in capitals, is the reader's own."""
    path_of = re.compile(rf"(?<![\w/.<>{{}}-])((?:{'|'.join((*PRODUCT, *BESIDE))})/[\w/.*-]*\w)")
    sources = [path for room in PRODUCT for path in (ROOT / room).rglob("*.py")]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *sources]
    texts = {page: page.read_text(encoding="utf-8").replace("\\_", "_") for page in pages if page.name != "log.md"}
    named = {(page.name, path) for page, text in texts.items() for path in path_of.findall(text)}
    tree = texts[ROOT / "README.md"].partition("## What is where")[2]
    for room, below in re.findall(r"^([a-z]+/) .*\n((?:  .*\n)*)", tree, re.M):
        named |= {("README.md", room + word) for line in below.splitlines() for word in line[2:].split("  ")[0].split()}
    there = [path for _, path in named if list(ROOT.glob(f"{path}*"))]
    assert len(there) > 300
    assert [one for one in sorted(named) if one[1] not in there and not re.search(r"\bmine\b|[A-Z]{4}", one[1])] == []


def test_every_table_of_the_documents_is_whole() -> None:
    """A row after an empty line is no row of the table above it."""
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        lines = page.read_text(encoding="utf-8").splitlines()
        is_code = False
        for i, line in enumerate(lines):
            is_code ^= line.startswith("```")
            if line.startswith("|") and not is_code and (i == 0 or not lines[i - 1].startswith("|")):
                assert re.fullmatch(r"\|[ :|-]+\|", lines[i + 1]), f"{page.name}:{i + 1}"


def test_commands_and_options_named_in_the_documents_exist() -> None:
    known = typer.main.get_command(app)
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        inline: list[str] = re.findall(r"`(tokentape [^`\n]+)`", text)
        for line in [*commands(text), *inline]:
            if not line.startswith("tokentape "):
                continue
            words = re.sub(r"'[^']*'|\"[^\"]*\"", "QUOTED", line.partition(" && ")[0]).split()[1:]  # what is quoted is one word
            command = known
            while words and hasattr(command, "commands"):
                names = words[0].split("|")
                assert set(names) <= set(command.commands), f"{page.name}: {line}"
                command, words = command.commands[names[0]], words[1:]
            options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
            for word in words:
                assert not word.startswith("--") or word.rstrip(",.") in options, f"{page.name}: {line}: {word}"


def test_operator_errors_are_those_of_the_calibration_page():
    """docs/calibration.md is written from the measured tables; the README's means are copied from it."""
    page = (ROOT / "docs/calibration.md").read_text(encoding="utf-8")
    expected: dict[str, list[tuple[str, str]]] = {}
    for operator, fitted, other in re.findall(
        r"^\| (\w+) \| \d+ \| NVIDIA .*?\| ([\d.]+) \(.*\| ([\d.]+) \([^|]*\|$", page, re.M
    ):
        expected.setdefault(operator, []).append((fitted, other))
    assert len(expected) == 5
    for operator, devices in expected.items():
        means = [f"{fitted} % ({other} %)" for fitted, other in devices]
        row = next(line for line in README.splitlines() if line.lower().startswith(f"| {operator.replace('_', ' ')} |"))
        assert [cell for cell in row.split(" | ", 1)[1].removesuffix(" |").split(" | ") if cell != "-"] == means


def test_error_table_counts_the_rows_of_every_system():
    """Its errors are held beside what each study computes, in tests/flows."""
    found, _ = compared(claims(), [])
    for system in SYSTEMS:
        counted = [row["role"] for row in found if row["system"] == system and row["bound"] == "" and row["paper"] is not None]
        (line,) = [line for line in README.splitlines() if line.startswith(f"| [{system}](docs/{system}.md) |")]
        cells = line.split(" | ")
        assert (int(cells[1]), int(cells[3])) == (counted.count("calibrate"), counted.count("predict")), system

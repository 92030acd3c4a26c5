"""What is checked before anything is computed: spelling, options without effect, and how little a list of studies imports."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer.main
from command import Cli, codes_without, command_names
from refusing import refuses

from tokentape.flows import cli
from tokentape.flows.effects import IDLE, without_effect
from tokentape.flows.study import Study
from tokentape.flows.study_file import parsed
from tokentape.flows.study_run import check
from tokentape.flows.systems import IN_MODEL, SYSTEMS, grids, questions, system_of
from tokentape.policies import slots

OPTIONS = json.loads((Path(__file__).parent / "options.json").read_text())  # of commands


def test_every_command_has_quiet_verbose_and_json_but_for_those_that_list_nothing() -> None:
    top: Any = typer.main.get_command(cli.app)
    for name in command_names():
        command = top
        for word in name.split():
            command = command.commands[word]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--quiet", "-q", "--verbose", "-v"} <= options, name
        assert ("--json" in options) == (name not in OPTIONS["none of them has --json, and why"]), name


def test_the_help_shows_every_command_with_examples_and_the_version_is_printed(tokentape: Cli) -> None:
    top: Any = typer.main.get_command(cli.app)
    assert sorted(name for names in cli.HEADINGS.values() for name in names) == sorted(top.commands)
    said = tokentape.ok("--help").out
    assert all(f"\n{heading}:\n" in said for heading in cli.HEADINGS)
    assert "..." not in said.partition("\nTapes:")[2]
    assert "tokentape replay TRACE --policy lru --capacity 50% --scope global" in said
    for command in ("capture", "replay", "study", "verify", "sql", "serve"):
        assert "Example" in tokentape(command, "--help").out
    shown = tokentape("--version")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.split()[0] == "tokentape"
    assert shown.out.split()[1][0].isdigit()


ON = OPTIONS["with these, options have none"]


@pytest.mark.parametrize("name", list(IDLE))
def test_every_option_without_effect_exists_and_is_refused_only_where_it_has_none(name: str) -> None:
    command: Any = typer.main.get_command(cli.app)
    for word in name.split():
        command = command.commands[word]
    options = {parameter.name: parameter for parameter in command.params}
    defaults = {parameter.name: parameter.default for parameter in command.params}
    for idle in IDLE[name]:
        for option in idle.options:
            assert f"--{option.replace('_', '-')}" in options[option].opts, option
            other = {"draft": None} if "draft" in idle.where else {"tables": "tokens"} if idle.options == ("seed",) else {}
            said = without_effect(name, {option}, defaults | ON[name] | other)
            assert said is not None
            assert said.startswith(f"--{option.replace('_', '-')} has no effect ")
        assert without_effect(name, (), defaults | ON[name]) is None


@pytest.mark.parametrize(("command", "given"), OPTIONS["with these, they have"])
def test_options_with_an_effect_are_let_through(command: str, given: dict[str, Any]) -> None:
    values = {
        "draft": None,
        "teacher_forced": False,
        "tables": "attention",
        "dataset": "x.txt",
        "device_map": None,
        "scheme": "EAGLE3",
    }
    assert without_effect(command, set(given), values | given) is None


def test_studies_are_listed_without_what_computes_and_without_extras(tmp_path: Path) -> None:
    absent = ("numba", "numpy", "polars", "pyarrow", "duckdb", "rich", "torch", "prefect", "altair")
    codes, said = codes_without(absent, [["study"]], tmp_path)
    assert (codes, said) == (["0"], "")
    assert set(questions()) == {*grids(), *SYSTEMS}
    assert all(question.endswith("?") for question in questions().values())


def test_a_study_is_checked_by_name_and_by_what_it_takes() -> None:
    for name in IN_MODEL:
        check(name, None, in_model=False)
    refuses("makes its own tapes", check, "kelle", None, traces=("a",))


def test_kernels_that_cannot_be_kept_are_one_line_with_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    error = RuntimeError("cannot cache function 'run_ranked': no locator available for file 'ranked.py'")
    assert cli._explain(error) == 2
    assert "set NUMBA_CACHE_DIR to one that can" in capsys.readouterr().err


def test_files_of_ones_own_may_begin_with_a_byte_order_mark(tokentape: Cli, tmp_path: Path) -> None:
    """As editors of Windows write them."""
    root, machine = Path(cli.__file__).parents[1], 'base = "h100"\nname = "mine"\n'
    config = json.dumps(json.loads((root / "warehouse/models/olmoe-1b-7b.json").read_text())["config"])
    grid, system = (root / "flows/studies/glance.toml").read_text(), (root / "policies/shipped/vllm.toml").read_text()
    files = [tmp_path / name for name in ("config.json", "machine.toml", "grid.toml", "vllm.toml", "copy.toml")]
    for file, text in zip(files, (config, machine, grid, system, 'system = "kelle"\n'), strict=True):
        file.write_text("\ufeff" + text, encoding="utf-8", newline="\r\n")
    tokentape.ok("fit", *map(str, files[:2]))
    assert parsed(Study, files[2], name="glance").question
    assert slots.system_of(str(files[3])) == slots.system_of("vllm")
    assert system_of(str(files[4])) == "kelle"

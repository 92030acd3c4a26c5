"""What is checked before anything is computed: options twice or without effect, names, and how little a check imports."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer.main
from command import Cli

from tokentape.flows import cli, console
from tokentape.flows.console import progress_bar
from tokentape.flows.effects import IDLE, without_effect
from tokentape.flows.study_run import check
from tokentape.flows.systems import IN_MODEL, SYSTEMS, grids, questions
from tokentape.warehouse.tape import Store

REPLAY = ("replay", "tiny", "--policy", "lru", "--capacity", "50%", "--scope", "global")
# Runs commands in one process in which some modules are not there; prints the code of each, a bug where one was looked for.
WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {absent}:
            raise ModuleNotFoundError(f"{{name}} was imported", name=name)
sys.meta_path.insert(0, Absent())
from tokentape.flows.cli import main
for arguments in {commands}:
    try:
        main(arguments)
    except SystemExit as ended:
        print(ended.code)
"""

WRONG = """
migrate --store nowhere
import bigmoe none.csv
import vllm none.npz --config none.json
import routing none.csv --experts 8
import requests none.csv
import acceptance none.json --like tinny
synthesize --like mixtral --routing context
ls --nope
show tinny
rm tinny
check --nope
kv tinny --policy full
kv tiny-0001 --policy ful
placement tinny
placement tiny-0001 --placement orcle
bits tinny
timeline tinny --pass 0
verify tinny --budget-mib 1
simulate
simulate --rate -1
simulate --rate 1 --scheduler layred
simulate --rate 1 --param nmax=3
simulate --rate 1 --model qwen
simulate --rate 1 --hardware h100x
simulate --rate 1 --fit h100
simulate --rate 1 --workload arxv
simulate --rate 1 --workload none.csv
simulate --rate 1 --arrival poison
simulate --rate 1 --arrival gamma --cv 0
simulate --rate 1 --coverage ful
simulate --rate 1 --weights int5
simulate --rate 1 --expert-times fit
simulate --rate 1 --kv-blocks 0
simulate --rate 1 --memory-frac 2
simulate --rate 1 --slo-ttft 3
simulate --rate 1 --acceptance 0.8
simulate --rate 1 --acceptance 1.8 --verify-nodes 3
simulate --rate 1 --acceptance tinny --verify-nodes 3
capacity --scheduler layred
capacity --scheduler disaggregated
capacity --model qwen --slo-ttft 1 --slo-tbt 1
capacity --hardware h100x
capacity --workload arxv
capacity --arrival at_once
capacity --attained 2
speculate --model qwen
speculate --model olmoe-1b-7b
speculate --model qwen3-30b-a3b --hardware elmoe
speculate --model qwen3-30b-a3b --scheme Elastc --alpha 0.9
speculate --model qwen3-30b-a3b --batch 1,x
speculate --model qwen3-30b-a3b --alpha 2
speculate --model qwen3-30b-a3b --accepted-form x
speculate --model qwen3-30b-a3b --hit-model ch
speculate --model qwen3-30b-a3b --expert-format int5
speculate --model qwen3-30b-a3b --nodes 1
speculate --model qwen3-30b-a3b --fit elmoe3d-l2
ndp
ndp --model mixtral
ndp --model qwen3-8b
ndp --tape tinny
ndp --model mixtral-8x7b --system our
ndp --model mixtral-8x7b --bits x
ndp --model mixtral-8x7b --bits 9
ndp --model mixtral-8x7b --hot 9
ndp --model mixtral-8x7b --alpha 2
ndp --model mixtral-8x7b --placement orcle
ndp --model mixtral-8x7b --rule gredy
ndp --model mixtral-8x7b --hardware h100-cxl
ndp --model mixtral-8x7b --knobs none
kv-step qwen
models list --nope
models show qwen
hardware list --nope
hardware show h10
hardware diff h100 h10
hardware new h10
step qwen
calibrate gpu none.csv
calibrate router --like mixtral
calibrate kelle --check none
calibrate serving --check none
calibrate elmoe3d --check none
calibrate elmoe3d --level L9
calibrate cxl_ndp --check none
validate hardware --nope
claims kele
load --store nowhere
sql select --database none.duckdb
query best
site --database none.duckdb
acceptance tinny
fidelity --nope
quantise-report none
demo --nope
capture --model embedded --dataset mth
evaluate --policy h2
orderings --of x
train-embedded --nope
"""


def command_names() -> list[str]:
    """All commands, those of a group with its name before them."""
    top: Any = typer.main.get_command(cli.app)
    return [f"{name} {sub}" if sub else name for name, of in top.commands.items() for sub in getattr(of, "commands", [""])]


def codes_without(absent: tuple[str, ...], commands: list[list[str]], cwd: Path) -> tuple[list[str], str]:
    """The last printed line of each command, its exit code, and all of stderr."""
    script = WITHOUT.format(absent=absent, commands=commands)
    done = subprocess.run([sys.executable, "-c", script], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.isdigit()], done.stderr


def test_the_version_is_printed(tokentape: Cli) -> None:
    shown = tokentape("--version")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.split()[0] == "tokentape"
    assert shown.out.split()[1][0].isdigit()


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("evaluate", "--policy", "h2o", "--policy", "aerp"), "--policy"),
        ((*REPLAY, "--capacity", "25%"), "--capacity"),
        (("study", "baselines", "--workers", "1", "--workers=2"), "--workers"),
        (("kv", "tiny", "--policy", "full", "--renorm", "--no-renorm"), "--renorm"),
        (("load", "--store", "a", "--store", "b"), "--store"),
    ],
)
def test_an_option_given_twice_is_refused(store: Store, tokentape: Cli, command: tuple[str, ...], option: str) -> None:
    done = tokentape(*command)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"{option} is given 2 times and takes one value" in done.err


def test_an_option_that_may_repeat_still_does(store: Store, tokentape: Cli) -> None:
    done = tokentape(*REPLAY[:3], "static", *REPLAY[4:], "--param", "profile_frac=0.2", "--param", "profile_frac=0.3")
    assert "times" not in done.err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("evaluate", "--seeds", "3"), "--seeds has no effect without --policy"),
        (("evaluate", "--param", "budget=64"), "--param has no effect without --policy"),
        ((*REPLAY, "--seed", "3"), "--seed 3 has no effect on lru"),
        ((*REPLAY[:3], "slicemoe", *REPLAY[4:], "--recency", "hits-first"), "does not go with slicemoe"),
        ((*REPLAY, "--lookup", "serial", "--recency", "hits-first"), "serial lookups take list-order"),
        (("study", "baselines", "--no-live"), "measures nothing inside a live model"),
        (("study", "layered_prefill", "--no-live"), "measures nothing inside a live model"),
        (("verify", "tiny", "--budget-mib", "inf"), "no cache size"),
        (("verify", "tiny", "--budget-mib", "nan"), "no cache size"),
    ],
)
def test_what_would_have_no_effect_or_no_meaning_is_refused(
    store: Store, tokentape: Cli, command: tuple[str, ...], says: str
) -> None:
    done = tokentape(*command)
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert says in done.err


ON = {  # values under which every rule of flows.effects holds, by command
    "capture": {
        "draft": "model:x",
        "teacher_forced": True,
        "temperature": 0.0,
        "tables": "tokens",
        "dataset": "math",
        "device_map": "a",
    },
    "evaluate": {"policy": None},
    "study": {"name": None},
    "query": {"name": None, "database": "x"},
    "sql": {"database": "x"},
    "site": {"database": "x"},
    "step": {"roofline": True},
    "speculate": {"accepted": 2.0, "scheme": "Elastic-SD"},
    "ndp": {"system": "monde"},
    "placement": {"placements": "oracle"},
    "bits": {"routing": None},
    "import requests": {"form": "azure"},
    "calibrate kelle": {"check": "x"},
    "calibrate cxl_ndp": {"check": "x"},
    "calibrate serving": {"check": None, "cross_validate": True},
    "calibrate elmoe3d": {"check": "x"},
}


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
            said = without_effect(name, {option}, defaults | ON[name] | ({"draft": None} if "draft" in idle.where else {}))
            assert said is not None
            assert said.startswith(f"--{option.replace('_', '-')} has no effect ")
        assert without_effect(name, (), defaults | ON[name]) is None


@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("capture", {"draft_depth": 2, "draft": "elastic"}),
        ("capture", {"top_p": 0.9, "temperature": 1.0}),
        ("speculate", {"alpha": 0.9, "accepted": None}),
        ("placement", {"beta": 0.5, "placements": "oracle,ema"}),
        ("step", {"fits": "folder", "roofline": False}),
        ("sql", {"store": "elsewhere", "database": None}),
    ],
)
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


def test_arguments_are_checked_before_kernels_are_imported(store: Store, tmp_path: Path) -> None:
    wrong = [
        ["study", "kele"],
        ["study", "kelle", "--runner", "thread"],
        ["study", "nowhere.toml"],
        ["study", "layered_prefill", "--no-live"],
        ["evaluate", "--policy", "h2o", "--policy", "aerp"],
        ["replay", "tiny", "--policy", "lru", "--capacity", "50%"],
        [*REPLAY, "--lookup", "atomi"],
        [*REPLAY, "--hardware", "phon"],
        ["replay", "tinny", *REPLAY[2:]],
        ["verify", "tiny", "--budget-mib", "inf"],
        ["serve", "--study", "kele"],
        *(line.split() for line in WRONG.strip().splitlines()),
    ]
    codes, said = codes_without(("numba", "torch"), wrong, tmp_path)
    assert codes == ["2"] * len(wrong), said
    assert said.count("\n") == len(wrong)
    called = {" ".join(command) for command in wrong}
    missed = [name for name in command_names() if not any(line.startswith(name + " ") for line in called)]
    assert missed == []


def test_a_study_is_checked_by_name_and_by_what_it_takes() -> None:
    for name in IN_MODEL:
        check(name, None, in_model=False)
    with pytest.raises(ValueError, match="did you mean 'kelle'"):
        check("kele", None)
    with pytest.raises(ValueError, match="makes its own tapes"):
        check("kelle", None, traces=("a",))


def test_kernels_that_cannot_be_kept_are_one_line_with_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    error = RuntimeError("cannot cache function 'run_ranked': no locator available for file 'ranked.py'")
    assert cli._explain(error) == 2
    assert "set NUMBA_CACHE_DIR to one that can" in capsys.readouterr().err


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "PROGRESS_EVERY_S", 0.01)
    said = ""
    with progress_bar("study kelle") as show:
        show(3, 12, "live model")
        give_up = time.monotonic() + 30
        while said.count("\n") < 2 and time.monotonic() < give_up:
            time.sleep(0.01)
            said += capsys.readouterr().err
    assert "study kelle: 3 of 12, live model, 0 s\n" in said

"""Tables of the terminal: what rich would draw, cell by cell."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command import Cli
from rich import box
from rich.console import Console
from rich.table import Table

from tokentape.flows import console
from tokentape.flows.console import band, note, number, one_document, percent, print_table, progress_bar, quantity, say
from tokentape.replay.result import Metric
from tokentape.warehouse.tape import Store

WORDS = (
    "lru",
    "tokens per second",
    "日本語",
    "a-name-that-is-longer-than-any-column-will-be-on-this-terminal",
    "",
    "two\nlines",
    "x ",
)

HEADINGS = ("trace", "hit rate of all", "n")


@pytest.mark.parametrize("width", [30, 48, 80, 160])
def test_a_table_is_what_rich_draws_of_it(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    random.seed(width)
    rows = [(random.choice(WORDS), " ".join(random.choices(WORDS, k=4)), str(random.randrange(10**6))) for _ in range(30)]
    widths, narrowed = list[int](), console._narrowed
    monkeypatch.setattr(console, "_narrowed", lambda *told: widths.extend(narrowed(*told)) or widths)
    monkeypatch.setattr(console, "PIPED_WIDTH", width)
    print_table("", HEADINGS, rows, numbers=("n",))
    ours = capsys.readouterr().out

    table = Table(box=box.SIMPLE_HEAD)
    for name, wide in zip(HEADINGS, widths, strict=True):
        table.add_column(name, justify="right" if name == "n" else "left", overflow="fold", width=wide)
    for row in rows:
        table.add_row(*row)
    drawn = Console(width=sum(widths) + 20, highlight=False, markup=False, emoji=False)
    with drawn.capture() as captured:
        drawn.print(table)
    assert ours == captured.get()


def test_a_rule_is_drawn_where_there_are_no_lines_to_draw_it_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("out") / "out.txt"
    with path.open("w", encoding="ascii") as out:
        monkeypatch.setattr("sys.stdout", out)
        print_table("", ("name",), [("lru",)])
    assert path.read_text(encoding="ascii").splitlines()[2].strip() == "------"


def test_json_holds_the_values_and_a_band_is_written_as_its_value_is(capsys: pytest.CaptureFixture[str]) -> None:
    with one_document():
        row = ("lru", quantity(2e-3, "s"), percent(0.5), number(float("nan"), ".2f"), band(1.0, 2.0, "{:g}".format), number(None))
        print_table("of a tape", ("policy", "step", "hits", "gain", "over seeds", "none"), [row])
        say("a sentence")
    shown = {
        "policy": "lru",
        "step": {"value": 0.002, "unit": "s"},
        "hits": 0.5,
        "gain": None,
        "over seeds": [1.0, 2.0],
        "none": None,
    }
    assert json.loads(capsys.readouterr().out) == [{"title": "of a tape", "rows": [shown]}, {"said": "a sentence"}]
    share, time = Metric(0.1014, "1", 0.015, 0.1014), Metric(0.01, "s", 0.0002, 1.5)
    console.print_metrics("", {"attention_frac": share, "ttft_mean_s": time})
    shown = capsys.readouterr().out
    assert "1.50 % to 10.14 %" in shown
    assert "200.000 us to 1.500 s" in shown


def test_quiet_shows_results_alone_and_verbose_every_step_and_where_an_error_is_from(tokentape: Cli) -> None:
    ask = ("step", "elmoe3d", "--model", "qwen3-30b-a3b", "--batch", "1")
    told, quiet = tokentape(*ask), tokentape("-q", *ask)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ Elastic-SD: speculation pays", told.err)  # no terminal: a log line
    assert (quiet.out, quiet.err, tokentape(*ask, "--quiet").err) == (told.out, "", "")
    assert "opposite things" in tokentape("-q", *ask, "-q", "-v").err
    wrong = tokentape("step", "elmoe3d", "-v", "--model", "qwen")
    assert "Traceback" in wrong.err
    assert wrong.err.splitlines()[-1].startswith("tokentape: ")
    assert tokentape(*ask).err.endswith(told.err[20:])  # and the next command is as told as ever


def test_every_step_of_a_progress_is_a_line_where_it_is_wished(capsys: pytest.CaptureFixture[str]) -> None:
    level = console.log.level
    for wished, lines in (("DEBUG", 2), ("WARNING", 0)):
        console.log.setLevel(wished)
        with progress_bar("study kelle") as show:
            show(1, 12)
            show(3, 12, "live model")
        note("done") if lines == 0 else None
        told = capsys.readouterr().err
        assert (told.count("\n"), "study kelle: 3 of 12, live model, " in told) == (lines, lines > 0)
    console.log.setLevel(level)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_no_color_is_honoured(no_color: str) -> None:
    script = "from tokentape.flows.console import progress_bar\nwith progress_bar('work') as show:\n    show(1, 2)\n"
    wish = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "NO_COLOR": no_color}
    done = subprocess.run([sys.executable, "-c", script], env=os.environ | wish, capture_output=True, text=True, check=True)
    assert "work" in done.stderr
    assert bool(re.search(r"\x1b\[[\d;]*(?:3[0-8]|9[0-7])[;m]", done.stderr)) == (not no_color)


def test_the_shell_completes_commands() -> None:
    asked = {"_TOKENTAPE_COMPLETE": "complete_bash", "COMP_WORDS": "tokentape st", "COMP_CWORD": "1"}
    command = "import sys; from tokentape.flows.cli import main; sys.argv = ['tokentape']; main()"
    done = subprocess.run([sys.executable, "-c", command], env=os.environ | asked, capture_output=True, text=True)
    assert set(done.stdout.split()) == {"study", "step"}, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        *(
            "ls",
            "study",
            "query",
            "hardware list",
            "hardware show h100",
            "models list",
            "step kelle llama-2-7b",
            "hardware validate",
        ),
        *("decide place tiny --batch 1", "replay tiny --policy lru --capacity 50% --scope global", "step gpu llama-3-8b"),
    ],
)
def test_what_is_listed_or_computed_is_one_json_document(store: Store, tokentape: Cli, command: str) -> None:
    done = tokentape.ok(*command.split(), "--json")
    assert json.loads(done.out)


def test_what_is_found_wrong_is_in_the_document_too(tokentape: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PROGRESS_EVERY_S", 1e-4)
    imported = tokentape("import", "bigmoe", str(Path(__file__).parents[1] / "data" / "tiny.route.csv"))
    assert "import bigmoe: 0 s" in imported.err
    done = tokentape("verify", imported.out.strip(), "--budget-mib", "0.5", "--json")
    assert done.code == 1
    assert [*map(list, json.loads(done.out))] == [["title", "rows"], ["said"]]

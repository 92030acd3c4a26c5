"""The command line on a small tape: what each command prints."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command import Cli, files
from refusing import full, raising
from tiny_tape import write_tiny

from tokentape.flows.cli import main
from tokentape.warehouse import load as loader
from tokentape.warehouse.model_tables import HEADINGS
from tokentape.warehouse.tape import Store

ROOT = Path(__file__).resolve().parents[2]
REPLAY = ("replay", "tiny", "--policy", "lru", "--capacity", "50%", "--scope", "global")
OWN = """
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True)
class Newest:
    kind: ClassVar[str] = "queue"
    promote: ClassVar[bool] = False
    is_bound: ClassVar[bool] = False
"""

SLOW = """
    def __post_init__(self):
        import pathlib, time
        pathlib.Path("started").touch()
        time.sleep(60)
"""


def changed(words: tuple[str, ...], **options: str) -> tuple[str, ...]:
    """`words` with the values of options replaced."""
    new = list(words)
    for name, value in options.items():
        new[new.index(f"--{name}") + 1] = value
    return tuple(new)


def test_ls_show_rm(store: Store, tokentape: Cli) -> None:
    assert "tiny-0001" in tokentape("ls").out
    assert json.loads(tokentape("show", "tiny").out)["geometry"]["top_k"] == 2
    write_tiny(store, "tiny-0002")
    Path(store.trace_path("tiny-0002", "manifest.json")).unlink()
    assert "unfinished" in tokentape("ls").out
    refused = tokentape.refused("show", "tiny-0002")
    assert "manifest" in refused.err
    assert "no tape 'tiny-0003'" in tokentape.refused("rm", "tiny-0001", "tiny-0003").err
    assert store.trace_ids() == ["tiny-0001"]  # none is removed where one is not there
    assert tokentape("rm", "tiny-0002", "tiny-0001", "tiny-0002").code == 0
    assert "no tapes" in tokentape("ls").err


def test_push_and_pull_copy_a_tape(store: Store, tokentape: Cli, tmp_path: Path) -> None:
    other = f"file://{tmp_path}/other"
    assert f"copied to {other}" in tokentape.ok("push", "tiny", "--to", other).err
    tokentape.ok("rm", "tiny-0001")
    assert "copied" in tokentape.ok("pull", "tiny", "--from", other).err
    assert "has it already" in tokentape.ok("pull", "tiny", "--from", other).err
    tokentape.ok("load")
    assert tokentape.ok("sql", "select distinct trace_id from tape.routing", "--json").out.count("tiny-0001") == 1


def test_replay_names_the_denominator_and_writes_the_result_once(store: Store, tokentape: Cli) -> None:
    first = tokentape.ok(*REPLAY)
    assert "unique lookups" in first.out
    before = files(Path(store.root) / "runs")
    assert before
    assert tokentape(*REPLAY).out == first.out
    assert files(Path(store.root) / "runs") == before


@pytest.mark.parametrize("policy", ["lru", "lfu-lifetime"])  # the second one's kernel is handed a function
def test_a_replay_does_without_pandas_and_what_only_compiles(store: Store, tokentape: Cli, policy: str) -> None:
    """Made, and found again. Each takes half a second: pyarrow imports pandas for any array of Python's own values, and numba
    all it compiles with, scipy among it, where machine code is there already."""
    asked = changed(REPLAY, policy=policy)
    tokentape.ok(*asked)
    Path(store.root, "runs").rename(Path(store.root, "earlier"))
    twice = "import sys; from tokentape.flows.cli import app; [app(standalone_mode=False) for _ in '12']"
    left_out = "print({'pandas.core', 'scipy.linalg'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"{twice}; {left_out}", *asked, "--store", store.root],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("n_lookups") == 2
    assert done.stdout.splitlines()[-1] == "set()"


def test_replay_takes_own_policy_and_own_machine(store: Store, tokentape: Cli, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(OWN)
    shipped = ROOT / "hw" / "specs" / "phone-lpddr5x-ufs4.toml"
    (tmp_path / "my.toml").write_text(shipped.read_text().replace("phone-lpddr5x-ufs4", "my-phone"))
    done = tokentape.ok(*changed(REPLAY, policy="my.py:Newest"), "--hardware", "my.toml")
    assert "Newest" in done.out
    assert "my-phone" in done.out
    fifo = tokentape(*changed(REPLAY, policy="fifo"))
    hits = [line.split()[1] for shown in (done, fifo) for line in shown.out.splitlines() if line.split()[:1] == ["n_hits"]]
    assert hits[0] == hits[1]  # the same rule under another name


def test_study_load_sql_query_site(store: Store, tokentape: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("altair")
    from tokentape.dashboards import site

    monkeypatch.setattr(site, "TOPICS", {"experts.html": site.TOPICS["experts.html"]})
    assert "baselines" in tokentape("study").out
    shipped = (ROOT / "flows" / "studies" / "baselines.toml").read_text()
    (tmp_path / "few.toml").write_text(re.sub(r"(?m)^capacities = .*", 'capacities = ["50%", "80%"]', shipped))
    ran = tokentape.ok("study", "few.toml", "--workers", "2", "--runner", "threads")
    assert "replays run" in ran.err
    assert "0 replays run" in tokentape("study", "few.toml").err
    # eight policies and the LRU of every capacity
    assert tokentape.sql("select count(distinct policy) as n from replays") == [{"n": 9}]
    assert tokentape("query", "best_policy", "--format", "csv", "--out", "best.csv").code == 0
    assert (tmp_path / "best.csv").read_text().startswith("trace_id,")
    assert "best_policy" in tokentape("query").out
    assert r"'\udcff' is no text in utf-8; set PYTHONUTF8=1" in tokentape.refused("sql", "select '\udcff'").err
    (tmp_path / "prompt.csv").write_text('layer,phase,expert_ids\n0,prefill,"[3, 1]"\n')  # has no time per token
    prompt = tokentape.ok("import", "routing", "prompt.csv", "--n-experts", "8", "--expert-bytes", "9").out.strip()
    tokentape.ok("replay", prompt, "--policy", "lru", "--capacity", "50%", "--scope", "global")
    tokentape.ok("load")
    made = tokentape.ok("site", "--out", "pages")
    assert (tmp_path / made.out.strip()).is_file()


SMALL_CAPTURE = (
    *("capture", "--model", "embedded", "--dataset", "math"),
    *("--max-requests", "1", "--max-new-tokens", "4", "--max-prompt-tokens", "32"),
)


def test_a_capture_on_a_full_disk_goes_on_with_resume_and_is_found(
    store: Store, tokentape: Cli, monkeypatch: pytest.MonkeyPatch, dead_aside: Callable[[str], Path]
) -> None:
    pytest.importorskip("torch")
    from tokentape.capture import plan

    with monkeypatch.context() as patch:
        patch.setattr(plan, "_free_bytes", lambda root: 12_345)
        refused = tokentape(*SMALL_CAPTURE)
        assert "has 0.01 MB free; lower --max-requests" in refused.err
        patch.setattr(plan, "_free_bytes", lambda root: 10**9)
        patch.setattr(pq, "write_table", full)
        stopped = tokentape(*SMALL_CAPTURE)
    assert stopped.code == 2
    assert "give --store elsewhere; then run the same command again with --resume" in stopped.err
    (unfinished,) = store.unfinished_ids()
    dead = dead_aside(store.trace_path(unfinished, "tokens", "part-00000.parquet"))
    dead.parent.mkdir(exist_ok=True)
    dead.touch()
    first = tokentape.ok(*SMALL_CAPTURE, "--resume")
    assert not dead.exists()
    assert tokentape(*SMALL_CAPTURE).out == first.out  # the finished tape
    assert first.out.strip() in tokentape("ls").out


def test_a_study_sweeps_what_a_killed_one_was_writing(
    tokentape: Cli, store: Store, dead_aside: Callable[[str], Path], tmp_path: Path
) -> None:
    dead = [dead_aside(store.path(name, "a.parquet")) for name in ("steps", "metrics")]
    for path in dead:
        path.parent.mkdir(parents=True)
        path.touch()
    empty = 'question = "?"\ncapacities = ["50%"]\nscopes = ["global"]\nhardware = ["phone-lpddr5x-ufs4"]\n'
    (tmp_path / "small.toml").write_text(empty + 'policies = [{ name = "lru" }]\ntraces = ["none"]\n')
    assert "no tape fits" in tokentape("study", "small.toml").err
    assert not any(path.exists() for path in dead)


def test_stores_that_do_not_last_are_refused(tokentape: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENTAPE_STORE", "memory://tape")
    push = ("push", "x", "--store", ".", "--to", "memory://x")
    for command in (("import", "bigmoe", "x.csv"), ("load",), ("ls", "--store", "memory://other"), push):
        refused = tokentape.refused(*command)
        assert refused.err.startswith(f"tokentape: {'--to' if command is push else '--store'} memory://")
        assert "is gone when this command ends; give a folder" in refused.err


def test_debug_shows_the_traceback(tokentape: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    tokentape("ls")  # prepares the folder
    monkeypatch.setenv("TOKENTAPE_DEBUG", "1")
    with pytest.raises(ValueError, match="no tape"):
        main(["show", "nothing"])


def test_demo_finds_what_an_earlier_run_finished(tokentape: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in ("torch", "prefect", "altair"):
        pytest.importorskip(extra)
    from tokentape.dashboards import site
    from tokentape.flows import demo

    for name, few in (("COMPARED", ("near_compute",)), ("MACHINES", ("workstation-rtx4090-pcie4",)), ("ROOMS", ("50%",))):
        monkeypatch.setattr(demo, name, few)
    monkeypatch.setattr(demo, "DATASETS", ("math",))
    monkeypatch.setattr(demo, "PAPERS", ("elmoe3d",))
    monkeypatch.setattr(demo, "RUNNER", "threads")
    pages = ("compare.html", "elmoe3d.html", "kelle.html", "experts.html")
    monkeypatch.setattr(site, "TOPICS", {file: site.TOPICS[file] for file in pages})
    first = tokentape.ok("demo")
    assert "paper     elmoe3d: 730 numbers answered in brief; `tokentape study elmoe3d` answers all" in first.err
    assert "compared  4 systems in 4 cells on embedded-math-" in first.err
    assert 'class="scroll" id="everything"' in (tmp_path / "site" / "compare.html").read_text()
    assert 'class="chart" id="claims"' in (tmp_path / "site" / "elmoe3d.html").read_text()
    kelle = (tmp_path / "site" / "kelle.html").read_text()
    assert kelle.count('class="lacking"') == 1
    assert "Nothing to draw" in kelle
    assert (tmp_path / first.out.splitlines()[-1]).is_file()
    assert "LFU (lifetime)" in (tmp_path / "site" / "experts.html").read_text()
    assert "best policy" in first.out
    tokentape.ok("plot", "index/parity", "--out", "parity.svg")
    assert "the paper's number" in (tmp_path / "parity.svg").read_text()
    answered = tokentape.ok("plot", "index/parity", "--sql").out
    assert tokentape.ok("sql", answered.strip(), "--format", "csv").out.count("elmoe3d") > 200
    assert (
        "law=none: choose paper_law, physical"
        in tokentape("plot", "elmoe3d/winners", "--out", "w.pdf", "--choose", "law=none").err
    )
    assert "Run: tokentape study kelle" in tokentape("plot", "kelle/claims", "--sql").err
    for each in (tmp_path / "site").iterdir():
        each.unlink()
    second = tokentape.ok("demo", "--no-site")
    assert "study baselines: 0 replays run" in second.err
    assert "paper " not in second.err
    assert second.out.splitlines() == [*first.out.splitlines()[:-1], str(tmp_path / "tape/warehouse.duckdb")]
    assert not list((tmp_path / "site").iterdir())
    assert "give one of the two" in tokentape("demo", "--no-site", "--out", "pages").err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_are_one_line_and_leave_nothing(store: Store, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "slow.py").write_text(OWN.replace("Newest", "Slow") + SLOW)
    command = [sys.executable, "-m", "tokentape.flows.cli", *changed(REPLAY, policy="slow.py:Slow")]
    before = files(Path(store.root))
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    give_up = time.monotonic() + 60
    while not (tmp_path / "started").exists() and time.monotonic() < give_up:
        time.sleep(0.1)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert said.startswith("tokentape: stopped; no file is half-written")
    assert said.count("\n") == 1
    assert files(Path(store.root)) == before


def test_ctrl_c_while_the_command_is_imported_is_no_traceback() -> None:
    strikes = "lambda name, *told: os.kill(os.getpid(), signal.SIGINT) if name.endswith('flows.cli') else None"
    program = f"import os, signal, sys; sys.meta_path.insert(0, type('_', (), {{'find_spec': {strikes}}}))"
    words = [sys.executable, "-c", f"{program}; from tokentape.__main__ import main; main()", "ls"]
    struck = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (struck.returncode, struck.stderr) == (-signal.SIGINT, "")


def test_ctrl_c_within_a_query_is_one_line(tokentape: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "load", raising(RuntimeError("Query interrupted")))  # as DuckDB's Python has it
    done = tokentape("load")
    assert (done.code, done.err.count("\n"), done.err.partition(";")[0]) == (130, 1, "tokentape: stopped")


@pytest.mark.parametrize("command", ["hardware list", "sql 'from claims' --format csv", "ls"])
def test_closed_streams_are_no_error(store: Store, tokentape: Cli, tmp_path: Path, command: str) -> None:
    assert tokentape("load").code == 0
    shell = f"exec {sys.executable} -m tokentape.flows.cli {command}"
    out = subprocess.run(f"{shell} >&-", shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert (out.returncode, "Traceback" in out.stderr) == (0, False), out.stderr
    both = subprocess.run(f"{shell} >&- 2>&-", shell=True, cwd=tmp_path)
    assert both.returncode == 0


@pytest.mark.parametrize("width", [24, 40, 80, 120, 160])
def test_headings_never_break_within_a_word(width: int, tokentape: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": str(width), "LINES": "50", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    done = tokentape("models", "list")
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= width
    heads = next(i for i, line in enumerate(lines) if "─" in line)
    words = {word for heading in HEADINGS for word in heading.split()}
    assert {word for line in lines[:heads] for word in line.split()} <= words
    left_out = re.findall(r"'([^']+)'", done.err)
    assert list(HEADINGS[len(HEADINGS) - len(left_out) :]) == left_out
    assert bool(left_out) == (width < 154)

"""What is refused: one line that names the remedy, exit code 2, nothing written; and what is checked before kernels are imported.

refusals.txt has a command a line. All run in one folder, which they leave as it is.
"""

import shlex
from pathlib import Path

import polars as pl
import pytest
from command import Cli, codes_without, command_names, files
from tiny_gpu import MY_GPU, gemm_rows, write_config
from tiny_tape import tiny_tables, write_losses, write_tiny

from tokentape.flows.commands import hardware as commands_hardware
from tokentape.warehouse.tape import Store

HEADER = "arrival_s,n_prompt_tokens,n_output_tokens\n"
TEXTS = {
    "unsorted.csv": HEADER + "0,10,5\n1,10,5\n0.5,10,5\n", "negative.csv": HEADER + "-1,10,5\n", "zero.csv": HEADER + "0,0,5\n",
    "empty.csv": HEADER, "nothing.csv": "", "columns.csv": "arrival_s,n_prompt_tokens\n0,1\n", "some.csv": "a,b\n1,2\n",
    "words.csv": HEADER + "0,many,5\n", "long.csv": HEADER + "0,100,5\n", "gap.csv": HEADER + "0,,5\n", "header.csv": HEADER,
    "half.csv": HEADER + "0,5,5.5\n", "huge.csv": HEADER + "0,5,9999999999\n", "empty.jsonl": "", "not.json": "hello",
    "typo.toml": 'base = "h100"\n[engines.sm]\nclok_hz = { value = 1e9, source = "assumed" }\n',
    "no-source.toml": 'base = "h100"\nname = "no-source"\nmax_w = 500\n',
    "too-fast.toml": 'base = "h100"\nname = "too-fast"\n[tiers.hbm]\npeak_bytes_per_s = { value = 9e12, source = "assumed" }\n',
    "round.toml": 'base = "about.toml"\n', "about.toml": 'base = "round.toml"\n', "not.toml": "[[[", "my-gpu.toml": MY_GPU,
    "fetch.toml": 'name = "fetch"\nstep = "a"\n[lane.a]\nkind = "fetch"\n',
}  # fmt: skip
CONFIGS = {
    "tiny.json": {},
    "no-hidden.json": {"hidden_size": None},
    "vision.json": {"vocab_size": None, "model_type": "vit", "image_size": 224},
    "no-top-k.json": {"num_experts_per_tok": None},
    "hybrid.json": {"layer_types": ["mamba", "full_attention"]},
}


def rows(section: str) -> list[tuple[str, str]]:
    """Commands of a section of refusals.txt, and words of what each says."""
    text = (Path(__file__).parent / "refusals.txt").read_text(encoding="utf-8").split(f"\n[{section}]")[1].split("\n[")[0]
    return [(command, says) for command, bar, says in (line.partition(" | ") for line in text.splitlines()) if bar]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four tapes, tables of requests, machines, configs and measured tables, nearly all of them bad."""
    root = tmp_path_factory.mktemp("refused")
    store = Store(str(root / "tape"))
    write_tiny(store)
    write_losses(store, "losses")
    write_tiny(store, "bare", tables=("requests", "tokens", "passes"))
    write_tiny(store, "empty", more={"routing": tiny_tables()["routing"].slice(0, 0)}, flags={"missing_rows": {}})
    for name, text in TEXTS.items():
        (root / name).write_text(text)
    for name, changes in CONFIGS.items():
        write_config(root / name, **changes)
    gemm_rows().write_parquet(root / "gemm.parquet")
    (root / "truncated.parquet").write_bytes((root / "gemm.parquet").read_bytes()[:-40])
    (root / "zero.parquet").touch()
    (root / "latin.toml").write_bytes("# für".encode("latin-1"))
    gemm_rows().clear().write_parquet(root / "no-rows.parquet")
    pl.DataFrame({"a": [1]}).write_parquet(root / "other.parquet")
    gemm_rows().drop("m").write_parquet(root / "no-m.parquet")
    gemm_rows(3).write_parquet(root / "three.parquet")
    gemm_rows(2, latency=[1.0, -1.0]).write_parquet(root / "negative.parquet")
    return root


def test_arguments_are_checked_before_kernels_are_imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("TOKENTAPE_STORE", "TOKENTAPE_DEBUG", commands_hardware.TABLES_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    before, wrong = files(folder), rows("early")
    codes, said = codes_without(("numba", "torch"), [shlex.split(command) for command, _ in wrong], folder)
    assert codes == ["2"] * len(wrong), said
    otherwise = [
        (command, line)
        for (command, says), line in zip(wrong, said.splitlines(), strict=True)
        if says not in line or not line.startswith("tokentape: ")
    ]
    assert otherwise == []
    assert files(folder) == before


@pytest.mark.parametrize(("command", "says"), rows("late"))
def test_refused_after_a_look_is_one_line(
    tokentape: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, says: str
) -> None:
    if command.startswith(("capture", "evaluate", "orderings")):
        pytest.importorskip("torch")
    monkeypatch.chdir(folder)
    before = files(folder)
    done = tokentape(*shlex.split(command))
    told = done.err.splitlines()
    assert (done.code, done.out) == (2, ""), done.err
    assert len(told) == 1
    assert told[0].startswith("tokentape: ")
    assert says in told[0]
    assert files(folder) == before


def test_every_command_refuses_something() -> None:
    refused = [command for section in ("early", "late") for command, _ in rows(section)]
    assert [name for name in command_names() if not any(line.startswith(name) for line in refused)] == []

"""`tokentape check`, and what a damaged tape does to the commands that read many."""

import json
from pathlib import Path

import duckdb
import pytest
from command import Cli
from refusing import raising
from tiny_tape import STUDY, write_tiny

from tokentape.flows import grid, study
from tokentape.warehouse.atomic_files import _here
from tokentape.warehouse.check import check
from tokentape.warehouse.load import database_path
from tokentape.warehouse.results import batch_path, run_ids
from tokentape.warehouse.tape import Store

REPLAY = ("replay", "tiny-0001", "--policy", "lru", "--capacity", "50%", "--scope", "global")
LITTER = f"a.parquet.0f.{_here()}.999999999.part"


def spoil(path: str) -> None:
    """One bit of the file's middle."""
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2] ^= 1
    Path(path).write_bytes(data)


def kinds(shown: str) -> dict[str, str]:
    return {finding["path"].split("/tape/")[-1]: finding["kind"] for finding in json.loads(shown)}


def test_a_whole_store_has_nothing_wrong_nor_results_of_a_tape_that_is_gone(store: Store, tokentape: Cli) -> None:
    assert tokentape(*REPLAY).code == 0
    done = tokentape("check")
    assert (done.code, done.out) == (0, "")
    assert done.err.endswith("tape: 0 wrong\n")
    store.remove("tiny-0001")
    done = tokentape.ok("check", "--json", "--repair")
    (key,) = run_ids(store)
    assert kinds(done.out) == {f"runs/replays-{key}.parquet": "orphaned"}


def test_a_batch_that_two_wrote_at_once_is_named_and_dropped(store: Store, tokentape: Cli) -> None:
    for policy in ("lru", "fifo"):
        tokentape.ok(*(word.replace("lru", policy) for word in REPLAY))
    one, other = (batch_path(store, "metrics", f"replays-{key}") for key in run_ids(store))
    Path(one).write_bytes(Path(other).read_bytes())
    done = tokentape("check")
    assert (done.code, done.out) == (
        1, f"damaged: {one}: is of other runs than its batch, which two wrote at once; its study makes it again\n"
    )  # fmt: skip
    assert tokentape("check", "--repair").code == 0
    assert run_ids(store) == [other.rsplit("-", 1)[1].removesuffix(".parquet")]


def test_what_the_system_does_not_read_hides_nothing_and_stays(store: Store, tokentape: Cli) -> None:
    tokentape.ok(*REPLAY)
    (spoilt,) = run_ids(store)
    spoil(batch_path(store, "steps", f"replays-{spoilt}"))
    (unread := Path(batch_path(store, "runs", "unread"))).mkdir()
    wrong = {"runs/unread.parquet": "damaged", f"steps/replays-{spoilt}.parquet": "damaged"}
    assert kinds(tokentape("check", "--repair", "--json").out) == wrong
    assert (unread.is_dir(), Path(batch_path(store, "steps", f"replays-{spoilt}")).exists()) == (True, False)


def test_everything_wrong_is_named_and_what_can_be_made_again_is_dropped(store: Store, tokentape: Cli) -> None:
    for trace_id in ("rotten", "short", "mad", "stopped"):
        write_tiny(store, trace_id)
    assert tokentape(*REPLAY).code == 0
    (whole,) = run_ids(store)
    assert tokentape(*(word.replace("lru", "fifo") for word in REPLAY)).code == 0
    (spoilt,) = set(run_ids(store)) - {whole}
    assert tokentape(*(word.replace("lru", "lfu") for word in REPLAY)).code == 0
    (lost,) = set(run_ids(store)) - {whole, spoilt}
    spoil(batch_path(store, "steps", f"replays-{spoilt}"))
    Path(batch_path(store, "metrics", f"replays-{lost}")).unlink()
    Path(batch_path(store, "curves", "never")).parent.mkdir(exist_ok=True)
    Path(batch_path(store, "curves", "never")).write_bytes(b"")
    Path(store.path("metrics", LITTER)).touch()
    spoil(store.trace_path("rotten", "routing", "part-00000.parquet"))
    Path(store.trace_path("short", "tokens", "part-00000.parquet")).unlink()
    Path(store.trace_path("mad", "manifest.json")).write_text("{")
    Path(store.trace_path("stopped", "manifest.json")).unlink()
    Path(store.trace_path("tiny-0001", "routing", "part-00001.parquet")).write_bytes(b"")
    store.fs.makedirs(store.trace_path("empty"))
    database_path(store).write_bytes(b"no database")
    wrong = {
        "traces/trace_id=mad/manifest.json": "damaged",
        "traces/trace_id=rotten/routing/part-00000.parquet": "damaged",
        "traces/trace_id=short/tokens/part-00000.parquet": "missing",
        "traces/trace_id=tiny-0001/routing/part-00001.parquet": "unknown",
        "traces/trace_id=empty": "unfinished",
        "traces/trace_id=stopped": "unfinished",
        f"steps/replays-{spoilt}.parquet": "damaged",
        f"metrics/replays-{lost}.parquet": "missing",
        "curves/never.parquet": "incomplete",
        "warehouse.duckdb": "damaged",
        f"metrics/{LITTER}": "litter",
    }
    found = tokentape("check", "--json")
    assert (found.code, kinds(found.out)) == (1, wrong)
    mended = tokentape("check", "--repair")
    assert not [line for line in mended.out.splitlines() if line.split(": ")[1] == line.split(": ")[2]]  # a file is named once
    assert mended.code == 1  # tapes cannot be made again from here
    assert mended.out.count("(removed)") == 5
    assert run_ids(store) == [whole]
    left = {path: kind for path, kind in wrong.items() if path.startswith("traces/")}
    assert kinds(tokentape("check", "--json").out) == left


def test_a_warehouse_that_another_program_holds_is_left_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    held = duckdb.IOException("Could not set lock on file: Conflicting lock is held in PID 1")
    database_path(store).touch()
    monkeypatch.setattr(duckdb, "connect", raising(held))
    monkeypatch.setattr("tokentape.warehouse.sql._WAIT_S", 0.0)
    with pytest.raises(ValueError, match="is held by process 1"):
        list(check(store, database_path(store)))


def test_a_bad_tape_does_not_hide_the_others(store: Store, tokentape: Cli, tmp_path: Path) -> None:
    write_tiny(store, "mad")
    write_tiny(store, "rotten")
    Path(store.trace_path("mad", "manifest.json")).write_text("{")
    spoil(store.trace_path("rotten", "routing", "part-00000.parquet"))
    listed = tokentape.ok("ls")
    assert "tiny-0001" in listed.out
    assert "mad/manifest.json: not a manifest" in listed.err
    (tmp_path / "one.toml").write_text(STUDY)
    ran = grid.run(study.load(str(tmp_path / "one.toml")), store)
    assert (ran.n_run, len(ran.impossible)) == (1, 2)
    assert any("mad/manifest.json" in reason for reason in ran.impossible)
    assert any("rotten/routing/part-00000.parquet: changed since" in reason for reason in ran.impossible)
    assert tokentape("load").code == 0
    named = study.load(str(tmp_path / "one.toml")).model_copy(update={"traces": ("mad",)})
    with pytest.raises(ValueError, match=r"mad/manifest\.json: not a manifest"):
        grid.run(named, store)
    refused = tokentape.refused("replay", "rotten", *REPLAY[2:])
    assert "changed since it was written" in refused.err

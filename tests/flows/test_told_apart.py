"""Results that do not belong together stay apart: seeds of requests, refused points, machines of one name, comparisons."""

import json
import os
from pathlib import Path

import pytest
from command import Cli
from test_grid import SMALL as REPLAYS
from test_moved import NOON
from test_system_study import SMALL

import tokentape as tt
from tokentape.dashboards import rows
from tokentape.flows.moved import difference
from tokentape.warehouse.results import read_rows
from tokentape.warehouse.sql import connect
from tokentape.warehouse.tape import Store

TAPE, MACHINE = "tiny-0001", "h100-cxl-ndp"
GRID = f"""
[[grid]]
series = "s"
trace = "{TAPE}"
machine = "{MACHINE}"
system = "lru_offload"
panel = "p"
line = "l"
"""


def study(tokentape: Cli, tmp_path: Path, fields: str) -> dict[str, int]:
    (tmp_path / "d.toml").write_text(SMALL.partition("[[grid]]")[0] + GRID + fields)
    return json.loads(tokentape("study", "d.toml", "--json", "--workers", "1").out)  # type: ignore[no-any-return]


def test_points_that_cannot_be_had_and_comparisons_elsewhere_take_no_others_place(
    tokentape: Cli, store: Store, tmp_path: Path
) -> None:
    study(tokentape, tmp_path, 'budget = ["1B", "50%"]\nx = ["a", "b"]\n')
    found = {row["result_id"] is None for row in read_rows(store, "study_points", "d")}
    assert found == {True, False}
    for machine in (MACHINE, "phone-lpddr5x-ufs4", MACHINE):
        tokentape.ok("compare", TAPE, "--systems", "layered", "--machine", machine, "--budget", "60%")
    found = read_rows(store, "comparisons")
    assert {row["hardware"] for row in found} == {MACHINE, "phone-lpddr5x-ufs4"}
    assert len(found) == 8
    assert tt.open(store.root).sql("select count(*) from tape.routing").item() > 0


def test_runs_of_other_requests_are_not_compared(tokentape: Cli, store: Store, tmp_path: Path) -> None:
    fields = '"workload.order" = "shuffled"\n"workload.seed" = [1, 2, 3]\nbudget = "50%"\n'
    study(tokentape, tmp_path, fields)
    before = set(Path(store.root).glob("runs/system_runs-*.parquet"))
    for path in before:
        os.utime(path, (NOON, NOON))
    lost = min(before).stem
    for path in Path(store.root).glob(f"*/{lost}.parquet"):
        path.unlink()
    assert study(tokentape, tmp_path, fields)["run"] == 1
    assert not any(of.is_beyond for of in difference(store, "d@2026-11-23T12:30", "d@latest")[0])


def test_a_machine_that_changed_is_another_one(tokentape: Cli, store: Store, tmp_path: Path) -> None:
    for version, watts in (("old.toml", 10), ("new.toml", 20)):
        (tmp_path / version).write_text(f'base = "{MACHINE}"\nname = "mine"\n[static_w]\nvalue = {watts}\nsource = "assumed"\n')
        replay = ("replay", TAPE, "--policy", "lru", "--capacity", "50%", "--scope", "global", "--hardware", version)
        tokentape.ok(*replay)
    done = tokentape.refused("compare", TAPE, "--machine", "old.toml,new.toml", "--budget", "60%")
    assert "two of mine, mine go by one name" in done.err  # of a comparison's rows one would take the other's place
    tokentape.ok("load")
    with connect(tmp_path / "tape" / "warehouse.duckdb") as connection:
        names = rows.runs(connection, [TAPE])["hardware"].unique().to_list()
    assert len(names) == 2
    assert all(name.startswith("mine ") for name in names)


def test_a_replay_of_two_studies_counts_once(tokentape: Cli, store: Store, tmp_path: Path) -> None:
    small = REPLAYS.replace('"25%", "50%", "3 experts"', '"50%"').replace(', "per-layer"', "")
    for name, seeds in (("a", "[1, 2]"), ("b", "[1]")):
        (tmp_path / f"{name}.toml").write_text(small.replace("[1, 2]", seeds))
        tokentape.ok("study", f"{name}.toml", "--workers", "1")
    tokentape.ok("load")
    found = tt.open(store.root).sql("select policy, hit_frac, n_seeds from methods where policy = 'random'").row(0)
    told = json.loads(tokentape.ok("query", "gap_to_belady", "--json").out)
    (row,) = [row for row in told if row["policy"] == "random"]
    assert (row["hit_frac"], row["n_seeds"]) == (pytest.approx(found[1]), found[2])


def test_versions_of_a_system_are_told_by_a_hash_of_what_decides(tokentape: Cli, store: Store, tmp_path: Path) -> None:
    policy, found = tmp_path / "own.py", []
    lines = "from dataclasses import dataclass\nfrom tokentape.policies.lru import LRU\n@dataclass(frozen=True)\nclass Own(LRU): "
    for ahead, body, rooms in (("none", "pass", "46"), ("transitions", "pass", "46"), ("transitions", "'edited'", "4")):
        policy.write_text(lines + body + "\n")
        (tmp_path / "mine.toml").write_text(f'[system]\nschedule = "orca"\nresidency = "{policy}:Own"\nprefetch = "{ahead}"\n')
        for room in rooms:
            tokentape.ok("replay", TAPE, "--system", "mine.toml", "--hardware", MACHINE, "--set", f"residency.budget={room}0%")
        found.append({row["system_sha256"] for row in read_rows(store, "system_runs")})
    assert [len(versions) for versions in found] == [1, 2, 3]

"""What the comparison of two revisions notices, on folders made by hand: no study runs."""

import json
import subprocess
import tomllib
from pathlib import Path

import duckdb
import pytest

from bench.golden_all import side
from bench.golden_all.compare import compare

OLD_ID, NEW_ID = "0123456789abcdef0123", "fedcba9876543210fedc"
ROWS = [{"batch": 1, "ms": 2.5}, {"batch": 4, "ms": 3.5}]
CLAIMS = {"claims": [{"claim_id": "kelle/a", "replay": 1.5}, {"claim_id": "kelle/b", "replay": None}], "summary": []}
HELP = "Usage: tokentape study [OPTIONS]\n\n  Run a study.\n"


def part(folder: Path, key: str = OLD_ID, sql: str = "", **told: object) -> Path:
    """A part as a side leaves it. sql: done to its warehouse at last; told: in place of data, claims, words and help."""
    for name in ("store", "site", "out"):
        (folder / name).mkdir(parents=True)
    with duckdb.connect(folder / "store" / "warehouse.duckdb") as connection:
        connection.execute(f"""
            create table replays as select '{key}' as replay_id, 'lru' as policy, 'e-math-{key[:8]}' as trace_id;
            create table metrics as from (values ('{key}', 'hits', 0.5e0), ('{key}', 'hits', 0.5e0), ('{key}', 'seconds', null))
                of(replay_id, metric, value);
            create table traces as select 'e-math-{key[:8]}' as trace_id, '{key}' as created_utc;
            {sql}""")
    ends = dict(sorted({f"{key}/9": [1.5, 2.5], f"{key[::-1]}/9": [0.5, told.get("end", 3.5)]}.items()))
    data = {"data": {"points": told.get("data", ROWS)}, "choices": [{"trace": f"e-math-{key[:8]}"}], "ends": ends}
    words = told.get("words", "2.5 ms")
    html = f"<style>p {{}}</style><p>{words}</p><script type='text/javascript'>{key}</script>"
    html += f'<script type="application/json" id="page-data">{json.dumps(data)}</script>'
    (folder / "site" / "kelle.html").write_text(html)
    (folder / "out" / "claims.json").write_text(json.dumps(told.get("claims", CLAIMS)))
    (folder / "out" / "tokentape study.txt").write_text(str(told.get("help", HELP)))
    return folder


@pytest.fixture
def told(tmp_path: Path):
    """What is found of a changed part beside the part as it is: lines, those that differ first marked so."""
    old = part(tmp_path / "old")

    def compared(**changes: object) -> list[str]:
        return [str(found) for found in compare("kelle", old, part(tmp_path / "new", **changes))]  # type: ignore[arg-type]

    return compared


def test_ids_times_and_order_are_no_difference(told) -> None:
    backwards = {"claims": CLAIMS["claims"][::-1], "summary": []}
    turned = "create or replace table metrics as from metrics order by value desc"
    assert told(key=NEW_ID, data=ROWS[::-1], claims=backwards, sql=turned) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sql": "update metrics set value = 0.6 where rowid = 0"}, "DIFFERS kelle: table metrics: 1 rows moved, 1 of them by"),
        ({"sql": "update metrics set value = 0.5000000000000001 where rowid = 0"}, "table metrics: 1 rows moved, 0 of them by"),
        ({"sql": "update metrics set value = 0 where value is null"}, "table metrics: 1 rows lost"),
        ({"sql": "update metrics set value = 'nan' where rowid = 0"}, "table metrics: 1 rows moved, 1 of them by"),
        ({"sql": "delete from metrics where rowid = 0"}, "DIFFERS kelle: table metrics: 1 rows lost"),
        ({"sql": "insert into metrics from metrics limit 1"}, "DIFFERS kelle: table metrics: 1 rows added"),
        ({"sql": "update replays set policy = 'lfu'"}, "table metrics: 3 rows lost"),
        ({"sql": "alter table metrics drop column value"}, "DIFFERS kelle: table metrics: gone: value"),
        ({"sql": "drop table metrics"}, "DIFFERS kelle: tables and views: gone: metrics"),
        ({"data": [ROWS[0], {"batch": 4, "ms": 3.6}]}, "DIFFERS kelle: page kelle/data/points: 1 rows moved, 1 of them by"),
        ({"data": ROWS[:1]}, "DIFFERS kelle: page kelle/data/points: 1 rows lost"),
        ({"data": {"form": "another"}}, "DIFFERS kelle: page kelle: 1 values differ"),
        ({"end": 4.5}, "DIFFERS kelle: page kelle: 1 values differ"),
        ({"words": "2.6 ms"}, "DIFFERS kelle: page kelle: 2 lines of words differ"),
        ({"claims": {**CLAIMS, "claims": CLAIMS["claims"][:1]}}, "DIFFERS kelle: claims/claims: 1 rows lost"),
        ({"help": HELP.replace("a study", "any study")}, "DIFFERS kelle: tokentape study: 2 lines of words differ"),
    ],
)
def test_what_differs_is_told(told, changes, expected) -> None:
    assert expected in "\n".join(told(**changes))


def test_what_only_the_new_side_has_is_listed_and_no_difference(told) -> None:
    found = told(sql="alter table metrics add column system varchar; create view runs as from replays")
    assert [line[:8] for line in found] == ["new     "] * 2
    assert "runs" in found[0]
    assert "system" in found[1]


def test_a_table_may_become_a_view(told) -> None:
    assert told(sql="alter table metrics rename to stored; create view metrics as from stored")[0].startswith("new     ")


def test_the_working_tree_counts_with_its_new_files_and_leaves_the_index_alone(tmp_path, monkeypatch) -> None:
    def git(*arguments: str) -> str:
        names = ("-c", "user.name=n", "-c", "user.email=e")
        return subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    monkeypatch.setattr(side, "ROOT", tmp_path)
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "one")
    assert side.tree_of("") == side.tree_of("HEAD")
    (tmp_path / "b").write_text("2")
    assert side.tree_of("") != side.tree_of("HEAD")
    assert git("status", "--porcelain") == "?? b\n"
    with pytest.raises(SystemExit, match="nowhere"):
        side.tree_of("nowhere")


@pytest.fixture
def stand_in(tmp_path: Path):
    """A side whose command line notes its calls in `calls`, fails once at `site`, and has a group of commands."""
    binary = tmp_path / "venv" / "bin" / "tokentape"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        """#!/bin/sh
        echo "$* in $TZ" >> ../calls
        case "$*" in
        --help) printf 'Usage\\n\\nCommands:\\n  ls      List.\\n          More of it.\\n  models  Of models.\\n' ;;
        "models --help") printf 'Usage\\n\\nCommands:\\n  show  Show.\\n' ;;
        site*) [ -e failed ] || { touch failed; echo no room >&2; exit 2; } ;;
        *) echo "said $1" ;;
        esac
        """
    )
    binary.chmod(0o755)
    return side.Side(tmp_path, is_live=False, hash_seed="0")


def test_a_part_is_made_once_and_goes_on_where_it_stopped(stand_in) -> None:
    with pytest.raises(SystemExit, match=r"(?s)tokentape site --store store --out site exits with 2:.*no room"):
        stand_in.make("kelle", 1)
    place = stand_in.make("kelle", 1)
    assert {path.name for path in (place / "out").iterdir()} >= {"study.txt", "load.txt", "claims.json", "systems.json"}
    calls = (stand_in.folder / "calls").read_text().splitlines()
    assert calls[0] == "study kelle --no-live --store store --workers 1 in UTC"
    assert stand_in.make("kelle", 1) == place
    assert (stand_in.folder / "calls").read_text().splitlines() == calls


def test_every_command_is_asked_for_help(stand_in) -> None:
    made = stand_in.make("help", 1) / "out"
    names = {"tokentape", "tokentape ls", "tokentape models", "tokentape models show"}
    assert {path.stem for path in made.iterdir()} == names


def test_live_parts_are_made_at_their_smallest_and_nothing_else_changes() -> None:
    settings = "seeds = [0, 1]\n[live]\nseeds = [0, 1, 2]\nprompt = 64\n[[live.answered]]\nitems = 25\n[fit]\nitems = 9\n"
    made = tomllib.loads(side.smallest(settings))
    assert made["seeds"] == [0, 1]
    assert made["fit"] == {"items": 9}
    assert made["live"] == {"seeds": [0], "prompt": 64, "answered": [{"items": 1}]}

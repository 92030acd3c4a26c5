"""Studies: the shipped ones parse; a wrong file is one clear line; a copy of a published one runs by its path beside it."""

import importlib
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import Cli, written
from pydantic import ValidationError
from refusing import refuses
from tiny_tape import STUDY

from tokentape.flows import study
from tokentape.flows.grid import Cell, replay_once
from tokentape.flows.systems import SYSTEMS, grids
from tokentape.flows.systems.kelle.settings import Settings as KelleStudy
from tokentape.replay.cxl_ndp.system import decisions as ndp_decisions
from tokentape.replay.kelle.systems import decisions as kelle_decisions
from tokentape.replay.semantics import Semantics
from tokentape.warehouse.results import batches, read_rows, run_ids, stored
from tokentape.warehouse.tape import Store

MY_CACHE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "my_cache.py"
GOOD = STUDY.replace('ufs4"', 'ufs4", "machines/mine.toml"')


def test_shipped_studies_parse_and_patterns_pick_traces() -> None:
    assert "baselines" in grids()
    for name in grids():
        assert study.load(name).name == name
    ids = ["embedded-math-1", "embedded-code-2", "qwen-3"]
    assert study.matching(("*",), ids) == ids
    assert study.matching(("*math*", "qwen"), ids) == ["embedded-math-1", "qwen-3"]
    refuses("there are embedded-math-1", study.matching, ("gemma",), ids)
    refuses("store is empty", study.matching, ("*",), [])


def test_a_study_is_named_after_its_file_and_policies_of_one_name_are_told_apart_by_theirs(tmp_path: Path, store: Store) -> None:
    loaded = study.load(written(tmp_path, GOOD))
    assert loaded.name == "mine"
    assert loaded.hardware == ("phone-lpddr5x-ufs4", str(tmp_path / "machines/mine.toml"))
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(MY_CACHE.read_text())
    text = GOOD + '[[policies]]\nname = "a/mine.py:DecayedLFU"\n'
    assert len(study.load(written(tmp_path, text + text[len(GOOD) :] + "params = { bonus_events = 1.0 }")).policies) == 3
    assert len(study.load(written(tmp_path, text + '[[policies]]\nname = "b/mine.py:DecayedLFU"')).policies) == 3
    named = sorted(str(tmp_path / folder / "mine.py:DecayedLFU") for folder in ("a", "b"))
    for name in named:
        cell = Cell("tiny-0001", name, (), "phone-lpddr5x-ufs4", Semantics("global"), "50%")
        assert replay_once(store, cell)[1].settings["policy"] == name
    both = read_rows(store, "replays")
    assert sorted(row["policy"] for row in both) == named
    (tmp_path / "a" / "mine.py").write_text(MY_CACHE.read_text() + "\n")  # its newer result takes the place of its own
    replay_once(store, replace(cell, policy=named[0]))
    found = read_rows(store, "replays")
    assert sorted(row["policy"] for row in found) == named
    assert len({row["replay_id"] for row in found} & {row["replay_id"] for row in both}) == 1


ROOT = Path(__file__).resolve().parents[2]
SYSTEM_FOLDERS = {name: ROOT / "flows" / "systems" / module.split(".")[-2] for name, module in SYSTEMS.items()}


def machine(folder: Path, shipped: str) -> str:
    """A machine of one's own beside the copy; its file."""
    text = (ROOT / "hw" / "specs" / f"{shipped}.toml").read_text(encoding="utf-8")
    (folder / "my-machine.toml").write_text(text.replace(f'name = "{shipped}"', 'name = "my-machine"', 1), encoding="utf-8")
    return "my-machine.toml"


def copied(folder: Path, system: str, *changes: tuple[str, str]) -> Path:
    """The study's file, changed: pattern and what takes the place of its one match."""
    text = (SYSTEM_FOLDERS[system] / "study.toml").read_text(encoding="utf-8")
    for pattern, to in changes:
        text, n = re.subn(pattern, lambda match, to=to: to, text, count=1, flags=re.S | re.M)
        assert n == 1, pattern
    path = folder / f"my-{system}.toml"
    path.write_text(text, encoding="utf-8")
    return path


COPIES = tomllib.loads((Path(__file__).parent / "study_copies.toml").read_text())


@pytest.mark.parametrize("system", COPIES)
def test_a_copy_runs_beside_the_study_that_ships(system: str, tokentape: Cli, tmp_path: Path) -> None:
    machine(tmp_path, COPIES[system]["machine"])
    path = copied(tmp_path, system, *COPIES[system]["changes"])
    live = () if system == "layered_prefill" else ("--no-live",)
    done = tokentape.ok("study", str(path), "--runner", "threads", "--workers", "1", *live)
    assert f"study my-{system}: its runs are those of study 'my-{system}'" in done.err
    store = Store()
    runs = stored(store, "runs", batches(store))
    assert runs.height
    assert set(runs["study"]) == {f"my-{system}"}
    assert set(runs["copy_of"]) == {system}
    assert "my-machine" in set(runs["hardware"]) | set(re.findall(r"my-machine", " ".join(runs["facts"])))
    assert read_rows(store, "answers") == []
    slots = {"kelle": "refresh", "elmoe3d": "draft", "cxl_ndp": "place", "slicemoe": "residency", "layered_prefill": "schedule"}
    assert runs[slots[system]].drop_nulls().len(), "what decides is a column"
    assert tokentape("load").code == 0
    view = runs["view_name"][0]
    assert read_rows(store, view) == []  # views show what ships
    assert len(read_rows(store, view, f"my-{system}")) > 0


EDITED = {
    "slicemoe": ("slicemoe_points", "capacity_gb = 1.8", "capacity_gb = 2.4"),
    "layered_prefill": ("serving_points", "rate_per_s = 0.5", "rate_per_s = 0.25"),
}


@pytest.mark.parametrize("system", EDITED)
def test_a_copy_that_is_edited_has_the_points_of_its_file_alone(system: str, tokentape: Cli, tmp_path: Path) -> None:
    machine(tmp_path, COPIES[system]["machine"])
    path = copied(tmp_path, system, *COPIES[system]["changes"])
    how = ("--runner", "threads", "--workers", "1", *(() if system == "layered_prefill" else ("--no-live",)))
    view, was, edited = EDITED[system]
    (other := tmp_path / "other.toml").write_text(text := path.read_text())
    for at in (other, path):
        tokentape.ok("study", str(at), *how)
    before, beside = (read_rows(Store(), view, at.stem) for at in (path, other))
    path.write_text(text.replace(was, edited))
    for store in ("tape", "fresh"):
        tokentape.ok("study", str(path), *how, "--store", store)
    assert read_rows(Store(), view, path.stem) == read_rows(Store("fresh"), view, path.stem) != before
    assert read_rows(Store(), view, "other") == beside


def test_a_copy_that_no_longer_makes_rows_of_a_view_has_none(store: Store, tmp_path: Path) -> None:
    mine = KelleStudy.of_file(copied(tmp_path, "kelle"))
    told = {"sigma": 0.3, "anchor_frac": 0.1, "interval_s": 1e-3, "failure_frac": 0.01, "refresh_group": "all"}
    for rows in ([told], []):
        mine.write(store, {"kelle_retention": rows})
        assert mine.rows(store, "kelle_retention") == rows


WRONG = json.loads((Path(__file__).parent / "wrong_studies.json").read_text())


@pytest.mark.parametrize(("of", "right", "wrong", "says"), WRONG)
def test_what_a_study_says_wrongly_is_one_line_before_anything_runs(
    tokentape: Cli, store: Store, tmp_path: Path, of: str, right: str, wrong: str, says: str
) -> None:
    """Files of ours, each with one thing changed; at the end, whole ones."""
    texts = {"": "", "grid": GOOD, "small": (Path(__file__).parent / "small_study.toml").read_text()}
    text = texts[of] if of in texts else (SYSTEM_FOLDERS[of] / "study.toml").read_text(encoding="utf-8")
    assert right in text
    done = tokentape.refused("study", written(tmp_path, text.replace(right, wrong, 1)), "--workers", "1")
    assert says in done.err
    assert not run_ids(store, "system_runs")


SETTINGS = {name: importlib.import_module(module).Settings for name, module in SYSTEMS.items()}
OF_OTHER_TYPES: list[tuple[str, str, Any]] = [
    ("cxl_ndp", "overlaps", "no"), ("cxl_ndp", "ndp_macs", True), ("cxl_ndp", "batch", 1.5), ("elmoe3d", "batch", 0),
    ("kelle", "recomputes", "no"), ("kelle", "accounting", {"true_gqa": "no"}), ("kelle", "accounting", {"gqa": True}),
    ("kelle", "machine", 3), ("offloaders", "top_k", 0), ("slicemoe", "router", "lru"), ("kelle", "batch", []),
]  # fmt: skip


@pytest.mark.parametrize(("system", "name", "value"), OF_OTHER_TYPES)
def test_points_of_a_copy_are_held_to_their_types(system: str, name: str, value: Any) -> None:
    kind = SETTINGS[system].model_fields["grid"].annotation.__args__[0]
    given = {field: "a" if kind.FIELDS[field] is str else 1 for field in kind.NEEDED} | {name: value}
    wrong = "has no point" if value == [] else f"{name} = {value!r}: Input"
    for says, left_out in ((wrong, ""), *((f"{field} is missing", field) for field in kind.NEEDED)):
        with pytest.raises(ValidationError, match=re.escape(says)):
            kind(series="a", **{field: of for field, of in given.items() if field != left_out})


def test_points_that_one_name_stands_for_are_refused_and_not_lost(store: Store) -> None:
    made = {"kelle_points": [{"series": "a", "setting": "", "energy_j": joules} for joules in (1.0, 2.0)]}
    refuses("points are one in kelle_points; set apart series 'a', setting ''", SETTINGS["kelle"].shipped().write, store, made)


def test_runs_say_what_their_system_decides() -> None:
    """By the systems' own flags and names, whatever a page calls them."""
    assert kelle_decisions("Original+SRAM") == {"kv": "full"}
    assert kelle_decisions("AEP+SRAM") == {"kv": "aep"}
    assert kelle_decisions("Original+eDRAM") == {"kv": "full", "refresh": "uniform"}
    assert kelle_decisions("Kelle+eDRAM") == {"kv": "aerp", "refresh": "2drp"}
    assert ndp_decisions("OURS-3") == {"place": "prefill_guided", "precision": "prefix_split mean_bits=3"}
    assert ndp_decisions("OURS-16") == {"place": "prefill_guided"}
    assert [ndp_decisions(name).get("place") for name in ("MoNDE", "MoNDE never", "HOBBIT")] == ["balance", "never", None]

"""Studies of systems: fields multiplied into runs, made once; the pages of docs/findings say what the runs do."""

import json
from pathlib import Path

import pytest
from command import Cli, written
from tiny_tape import write_tiny

from bench.docs import blocks, findings
from tokentape.capture.importers.bigmoe import import_bigmoe
from tokentape.flows import grid, study
from tokentape.flows.study_run import run_study
from tokentape.warehouse.results import read_rows, stored_run
from tokentape.warehouse.tape import Store

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "findings").glob("*.md"))
PUBLISHED = ROOT.parents[1] / "shared" / "data" / "traces" / "bigmoeonedge" / "qwen.route.csv"
RECORDED = {
    "context_placement": "recorded routing",
    "layered_over_cache": "one prompt again and again",
    "near_starves_cache": "recorded routing",
    "one_at_a_time": "recorded routing",
}
SMALL = (Path(__file__).parent / "small_study.toml").read_text()


def test_fields_of_systems_machines_and_workloads_are_multiplied_and_run_once(
    tokentape: Cli, store: Store, tmp_path: Path
) -> None:
    path = written(tmp_path, SMALL)
    counts = [json.loads(tokentape("study", path, "--json", "--workers", "1").out) for _ in range(2)]
    assert [(of["run"], of["found"], of["impossible"]) for of in counts] == [(12, 0, 4), (0, 12, 4)]
    rows = read_rows(store, "study_points", "mine")
    ran = [row for row in rows if row["result_id"]]
    assert (len(rows), len({row["result_id"] for row in ran})) == (16, 12)
    assert {row["panel"] for row in rows} == {"32 GB/s", "64 GB/s"}
    assert all("kelle" in row["reason"] for row in rows if not row["result_id"])
    done = [stored_run(store, "system_runs", row["result_id"]) for row in ran]
    assert {facts["n_requests"] for facts, _ in done} == {6}
    assert len({facts["hardware_sha256"] for facts, _ in done}) == 2
    found = findings.cells(store, "mine")
    assert {place[2] for place in found} == {"near_compute", "sarathi"}
    page = "<!-- table small; tokens_per_s;  -->\n<!-- end --> <!-- is total_s; x; {0} / {0} --><!-- end -->"
    said = findings.refreshed(page.format("small | 32 GB/s | sarathi | 50%"), found)
    assert "| 64 GB/s | sarathi |" in said
    assert said.endswith("-->1<!-- end -->")


def test_tapes_that_are_given_take_the_place_of_those_that_grids_name(store: Store, tmp_path: Path) -> None:
    text = SMALL.replace('machine = "h', 'trace = "nope"\nmachine = "h').replace(
        '{ system = "kelle" }', '{ system = "kelle", trace = "no" }'
    )
    counts = run_study(written(tmp_path, text), store, workers=1, traces=("tiny-0001",))
    assert counts == {"run": 12, "found": 0, "impossible": 4}
    write_tiny(store, "tiny-0002")  # which arrives later
    run_study(written(tmp_path, text), store, workers=1, traces=("tiny-0002",))
    of_tapes = [(row["trace_id"], row["result_id"] is None) for row in read_rows(store, "study_points")]
    assert [of_tapes.count((f"tiny-000{n}", is_none)) for n in (1, 2) for is_none in (False, True)] == [12, 4] * 2
    assert [row["trace_id"] for row in read_rows(store, "failed_runs")] == ["tiny-0001"] * 4 + ["tiny-0002"] * 4


def test_a_tape_without_routing_is_named_and_keeps_no_other_from_its_runs(tokentape: Cli, store: Store, tmp_path: Path) -> None:
    write_tiny(store, "bare", tables=("requests", "tokens", "passes"))
    tokentape.ok("study", path := written(tmp_path, SMALL), "--dry-run")
    assert run_study(path, store, workers=1) == {"run": 12, "found": 0, "impossible": 20}
    reasons = [row["reason"] for row in read_rows(store, "study_points", "mine") if row["trace_id"] == "bare"]
    assert reasons.count("tape bare records no routing; import or capture one that does") == 12  # kelle takes no room


def test_pages_of_findings_are_those_of_the_studies() -> None:
    assert [page.stem for page in PAGES] == sorted(RECORDED)
    for page in PAGES:
        series = {point["series"] for point in study.load(page.stem).points()}
        told = [block[1].partition(" ")[2] for block in blocks(findings.KINDS).finditer(page.read_text())]
        assert told
        assert {part for text in told if "|" not in text for part in (text.partition(";")[0],)} <= series


@pytest.fixture(scope="module")
def recorded(place: Store) -> Store:
    import_bigmoe(PUBLISHED, place)
    return place


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="the recorded tape lies outside the repository")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_cells_of_a_page_are_what_the_recorded_tape_gives(recorded: Store, page: Path) -> None:
    asked = study.load(page.stem)
    (of,) = (of for of in asked.grid if RECORDED[page.stem] in of.series)
    room = "place.budget" if "place.budget" in (of.model_extra or {}) else "residency.budget"
    few = of.model_copy(update={"each": of.each[:2], room: ["50%"]})
    grid.run(asked.model_copy(update={"grid": (few,)}), recorded, workers=1)
    found = findings.cells(recorded, page.stem)
    every = [
        (block[1].partition(" ")[2], block[2]) for block in blocks(findings.KINDS).finditer(page.read_text(encoding="utf-8"))
    ]
    held = [block for block in every if block[0].startswith(of.series + ";")]
    lines = {line for _, text in held for line in text.splitlines()}
    cells = [text for told, _ in held for text in findings.values_of(told, found).values()]
    assert cells
    assert all(any(f" {text} |" in line for line in lines) for text in cells)

"""replay --system and compare: what they print, what they refuse, and cells that cannot be had."""

import json
import re
from pathlib import Path

import polars as pl
import pytest
from command import Cli
from tiny_tape import N_OUTPUT, N_REQUESTS, STUDY

from bench.compare import MACHINES, SYSTEMS
from tokentape.capture.importers.bigmoe import import_bigmoe
from tokentape.flows import system_runs as runs
from tokentape.flows.grid import record_machine
from tokentape.replay.result import Metric, ReplayResult
from tokentape.warehouse.results import batches, rows_of_run, stored
from tokentape.warehouse.tape import Store

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces" / "bigmoeonedge" / "qwen.route.csv"


@pytest.fixture
def tape(store: Store) -> str:
    return store.tapes()[0][0].trace_id


def test_a_system_says_its_decisions_and_its_metrics(tokentape: Cli, store: Store, tape: str) -> None:
    done = tokentape.ok(
        "replay", tape, "--system", "near_compute", "--set", "residency.budget=60%", "--hardware", "h100-cxl-ndp", "--json"
    )
    (table,) = json.loads(done.out)
    assert "place near_if_rare most=4" in table["title"]
    metrics = {row["metric"]: row["value"] for row in table["rows"]}
    assert metrics["n_lookups"] > metrics["n_hits"] > 0


def test_what_a_decision_of_ones_own_raises_is_one_line_with_its_place(tokentape: Cli, store: Store, tape: str) -> None:
    example = (Path(__file__).parents[2] / "docs" / "examples" / "my_placement.py").read_text()
    for line, says in (
        ("raise KeyError(layer)", r"mine\.py:NearWhenFew, line \d+: the policy raised KeyError: 0$"),
        ("n_missing = resident[0] = 0", r"^tokentape: NearWhenFew\.where does not compile with numba: .*setitem\(readonly array"),
    ):
        Path("mine.py").write_text(example.replace("n_missing = 0", line))
        done = tokentape("replay", tape, "--system", "near_compute", "--set", "place=mine.py:NearWhenFew")
        assert done.code == 2
        assert re.search(says, done.err.splitlines()[-1])


def test_compare_has_a_cell_for_every_system_and_says_why_one_is_empty(tokentape: Cli, store: Store, tape: str) -> None:
    done = tokentape.ok(
        "compare", tape, "--systems", "layered,kelle", "--machine", "workstation-rtx4090-pcie4,h100-cxl-ndp",
        "--budget", "60%,75%", "--workload", "rate=100,batch=2", "--json",
    )  # fmt: skip
    cells, best = json.loads(done.out)
    assert len(cells["rows"]) == 2 * 2 * 5
    lru = [row for row in cells["rows"] if row["system"] == "lru_offload"]
    assert [row["room"] for row in lru] == ["60%", "60%", "75%", "75%"]
    reasons = {row["system"]: row["limited by"] for row in cells["rows"]}
    assert "fixed schedule" in reasons["bound"]
    assert "tape tiny-0001 holds none" in reasons["kelle"]
    assert {row["machine"] for row in best["rows"]} == {"workstation-rtx4090-pcie4", "h100-cxl-ndp"}
    assert "bound" not in {name for row in best["rows"] for name in row.values()}


def test_of_equal_systems_the_first_is_best_by_every_metric(tokentape: Cli, store: Store, tape: str) -> None:
    """One request at a time is served by every schedule alike."""
    on = ("--machine", "h100,h100", "--workload", "batch=1", "--json")  # which has no tier in front of its experts; shown once
    done = tokentape.ok("compare", tape, "--systems", "layered,sarathi", *on)
    cells, best = json.loads(done.out)
    assert "experts int8-g32, priced by physical" in cells["title"]
    (row,) = best["rows"]
    assert {*row.values()} - {row["machine"], row["room"]} == {"no_offload"}


def test_best_is_nothing_that_sees_the_future_and_limits_are_medians_of_the_seeds() -> None:
    def cell(system: str, is_bound: bool, rate: float, *moe: float) -> runs.Cell:
        each = [{"tokens_per_s": rate, "moe_frac": share, "other_frac": 0.3} for share in moe]
        made = [{name: Metric(value, "1") for name, value in of.items()} for of in each]
        return runs.Cell(system, "mine", {str(i): ReplayResult({"is_bound": is_bound}, of) for i, of in enumerate(made)})

    cells = [cell("lru_offload", False, 1.0, 0.1, 0.5, 0.4), cell("prefetch_oracle", True, 2.0, 0.2)]
    assert runs.winners(cells) == {("mine", ""): {"tokens_per_s": "lru_offload"}}
    assert [runs.limit_of(of) for of in cells] == ["moe 40%", "other 30%"]


def test_a_share_is_the_same_bytes_for_every_system(store: Store, tape: str, tmp_path: Path) -> None:
    asked = runs.Asked(tape, "lru_offload", "", runs.workload_of("batch=1"), budget="75%", expert_format="int8-g32")
    sliced = tmp_path / "sliced.toml"  # zero points beside its scales
    route = 'route = { policy = "slicemoe", router = "lru", budget = "none" }'
    sliced.write_text(f'[system]\nschedule = {{ policy = "orca", max_seqs = 1 }}\n{route}\nresidency = {{ budget = "25%" }}\n')
    cells = runs.compare(store, asked, [str(sliced)], ["slicemoe-xpu"], 1, lambda *_: None)
    of = {cell.system: cell.any.settings for cell in cells if cell.any and cell.system != "no_offload"}
    assert {"sliced", "lru_offload"} <= of.keys(), [cell.reason for cell in cells]
    assert {row["capacity_frac"] for row in of.values()} == {0.75}


def test_a_run_is_kept_and_not_made_again(store: Store, tape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = runs.Asked(tape, "sarathi", "h100", runs.workload_of("batch=3,order=shuffled,seed=4"))
    key, made = runs.run_asked(store, asked)
    series = made.timeline
    assert int(series["n_decodes"].sum()) == N_REQUESTS * N_OUTPUT  # inputs after the prompt; the first token comes of the prompt
    (row,) = rows_of_run(store, "system_runs", key)
    assert row["schedule"].startswith("chunked")
    assert (row["place"], row["batch"], row["n_requests"]) == (None, 3, N_REQUESTS)
    assert made.settings.items() >= {name: of for name, of in row.items() if name not in ("run_id", "study")}.items()
    steps = stored(store, "steps", batches(store, "steps"))
    assert steps.height == len(series["step_s"])
    spent = (
        stored(store, "series", batches(store, "series")).group_by("metric").agg(of=pl.col("value").sum()).rows_by_key("metric")
    )
    assert spent["part_s"][0][0] == pytest.approx(made.metrics["total_s"].value, rel=1e-9)
    assert spent["part_j"][0][0] == pytest.approx(made.metrics["total_energy_j"].value, rel=1e-9)
    monkeypatch.setattr(runs, "run", None)
    assert runs.run_asked(store, runs.Asked.from_json(row["asked"]))[1].metrics == made.metrics


def test_answers_end_where_the_workload_says_and_what_is_near_while_decoding_is_counted_apart(store: Store, tape: str) -> None:
    of = {
        cut: runs.run_asked(
            store,
            runs.Asked(tape, "prefill_guided", "h100-cxl-ndp", runs.workload_of(f"batch=1,output={cut}"), {"place.budget": room}),
        )[1]
        for cut, room in ((2, "50%"), (N_OUTPUT, "50%"), (99, "50%"), (3, "1 expert"))
    }
    decodes = {cut: int(made.timeline["n_decodes"].sum()) for cut, made in of.items()}
    assert decodes == {2: N_REQUESTS, N_OUTPUT: N_REQUESTS * (N_OUTPUT - 1), 99: N_REQUESTS * N_OUTPUT, 3: 2 * N_REQUESTS}
    assert of[3].metrics["away_frac_decode"].value == 1.0  # no whole expert in any layer
    assert 0.0 < of[99].metrics["away_frac_decode"].value < 1.0


def test_bands_are_over_seeds_where_something_draws(tokentape: Cli, store: Store, tape: str) -> None:
    given = ("compare", tape, "--systems", "near_compute", "--seeds", "3", "--json", "--machine", "h100-cxl-ndp")
    for workload, n_runs in (("rate=2000,batch=2", 3), ("batch=2", 1)):
        done = tokentape.ok(*given, "--workload", workload)
        title = json.loads(done.out)[0]["title"]
        assert ("3 seeds" if n_runs == 3 else "one seed") in title
        rows = {row["system"]: row["against LRU"] for row in json.loads(done.out)[0]["rows"]}
        assert (rows["near_compute"]["low"] < rows["near_compute"]["high"]) == (n_runs == 3)
        assert rows["lru_offload"]["value"] == 0.0


def test_a_random_warm_up_is_drawn_by_the_workloads_seed(store: Store, tape: str) -> None:
    """Of another warm-up no seed decides anything, and its run is the same whatever the seed."""
    for warmup, n_runs in (("random", 2), ("pcw", 1)):
        changes = {"residency.budget": "50%", "route.warmup": warmup}
        each = [runs.Asked(tape, "slicemoe", "slicemoe-xpu", runs.workload_of(f"seed={seed}"), changes) for seed in (1, 2)]
        assert len({runs.setting_of(store, asked, asked.made(store)).seed for asked in each}) == n_runs


def test_what_no_one_chose_is_said_and_what_cannot_be_made_again_not_explained(tokentape: Cli, store: Store, tape: str) -> None:
    done = tokentape.ok("compare", tape, "--systems", "layered")
    assert f"{N_REQUESTS} requests of the tape, at most {N_REQUESTS} at once, all there at 0" in done.out
    assert "room for experts: what is left beside weights and KV" in done.err
    said = tokentape.ok("replay", tape, "--policy", "lru", "--capacity", "50%", "--scope", "global").err
    run = said.split("result ")[1].split()[0]
    assert f"result '{run}' is of replays, not of system_runs" in tokentape.refused("explain", run).err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "slots"),
    [
        ("near_compute", {"residency", "place"}),
        ("prefill_guided_3bit", {"precision", "place"}),
        ("shared_room", {"residency"}),
        ("slicemoe", {"route"}),
    ],
)
def test_what_explain_shares_out_is_the_runs_time_and_energy(
    tokentape: Cli, store: Store, tape: str, system: str, slots: set[str]
) -> None:
    """On one machine, whose code both share; of others in tests/replay/test_system_drafts.py."""
    given = ("--hardware", "h100-cxl-ndp", "--workload", "rate=100,batch=2", "--json")
    room = ("--set", "residency.budget=60%") if "residency" in slots or system == "slicemoe" else ()
    room += ("--set", "route.router=lru", "--set", "residency.start=cold") if system == "slicemoe" else ()
    done = tokentape.ok("replay", tape, "--system", system, *room, *given)
    total = {
        row["metric"]: row["value"]["value"] for row in json.loads(done.out)[0]["rows"] if row["metric"].startswith("total_")
    }
    done = tokentape.ok("explain", done.err.split("result ")[1].split()[0], "--json")
    shares, worths = (table["rows"] for table in json.loads(done.out))
    for what, metric in (("time", "total_s"), ("energy", "total_energy_j")):
        assert sum(row[what]["value"] for row in shares) == pytest.approx(total[metric], rel=1e-9)
        assert sum(row[f"of the {what}"] for row in shares) == pytest.approx(1.0, rel=1e-9)
    assert all(row["busy"]["value"] > 0.0 for row in shares if row["busiest resource"])
    of = {row["slot"]: row for row in worths}
    assert of.keys() == {"schedule", *slots}
    assert all(row["time"] for row in worths)
    ran = stored(store, "system_runs", batches(store, "system_runs"))
    for run_id, asked, name in ran.filter(pl.col("system").str.contains(" without ")).select("run_id", "asked", "system").rows():
        again = runs.Asked.from_json(asked)
        assert (again.key(store), again.name) == (run_id, name)  # so that it is explained, too
    if system == "near_compute":
        assert (of["residency"]["in its place"], of["place"]["in its place"]) == ("room for one layer's 2 experts", "nothing")
        assert of["place"]["time"]["value"] > 0.0  # missing experts then cross the link


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="the recorded tape lies outside the repository")
def test_the_qwen_tape_is_compared_on_three_machines(tokentape: Cli, store: Store) -> None:
    trace = import_bigmoe(PUBLISHED, store)
    given = ("--systems", ",".join(SYSTEMS), "--machine", ",".join(MACHINES), "--model", "qwen3-30b-a3b", "--json")
    done = tokentape.ok("compare", trace, *given)
    cells, best = (table["rows"] for table in json.loads(done.out))
    empty = {(row["system"], row["machine"]) for row in cells if not row["tokens/s"]}
    assert (len(cells), empty) == (21, {("no_offload", "phone-lpddr5x-ufs4")})
    assert [row["tokens_per_s"] for row in best] == ["lru_offload", "no_offload", "no_offload"]
    assert "no table of this GPU has gemm int4: from the roofline; losses of experts at few bits are drawn" in done.err


def test_a_damaged_result_is_no_reason_and_a_machine_that_was_dropped_comes_back(
    tokentape: Cli, store: Store, tape: str, tmp_path: Path
) -> None:
    asked = ("compare", tape, "--systems", "layered", "--machine", "phone-lpddr5x-ufs4", "--budget", "60%")
    tokentape.ok(*asked)
    (compared,) = Path(store.root).glob("runs/comparisons-*.parquet")
    before, damaged = compared.read_bytes(), max(Path(store.root).glob("metrics/system_runs-*.parquet"))
    content = damaged.read_bytes()
    damaged.write_bytes(content[:100] + b"?" + content[101:])
    done = tokentape(*asked)
    assert done.code == 2
    assert f"{damaged.name}: changed since it was written" in done.err
    assert compared.read_bytes() == before
    damaged.write_bytes(content)
    (machine,) = Path(store.root).glob("machines/*.parquet")
    held = machine.read_bytes()
    (tmp_path / "one.toml").write_text(STUDY)
    replay = ("replay", tape, "--policy", "lru", "--capacity", "60%", "--scope", "global", "--hardware", "phone-lpddr5x-ufs4")
    for again in (asked, replay, ("study", str(tmp_path / "one.toml"))):
        tokentape.ok(*again)
        machine.unlink()
        record_machine.cache_clear()  # as of another process
        tokentape.ok(*again)
        assert machine.read_bytes() == held

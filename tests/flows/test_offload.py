"""Streaming experts beside an engine that did: hits and bytes of its own tape, speeds of its other settings, clear refusals."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command import Cli

from bench.docs import validation as pages
from tokentape.capture.importers.bigmoe import import_bigmoe
from tokentape.flows import validation
from tokentape.flows.grid import load_trace
from tokentape.flows.system_runs import tape_of
from tokentape.flows.validation import streamed
from tokentape.hw.spec import load
from tokentape.policies.lru import LRU
from tokentape.replay.experts import replay
from tokentape.replay.semantics import ENGINE_BIGMOE
from tokentape.replay.serving.validation import NOTHING
from tokentape.replay.system import offload
from tokentape.warehouse.results import read_rows
from tokentape.warehouse.tape import Store

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny.route.csv"
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def rows():
    if not (DATA / "offload_measured").is_dir():
        pytest.skip("no measurements of an engine beside the project")
    return streamed(DATA / "offload_measured", DATA / "traces" / "bigmoeonedge", load("oneplus-15r"))


def test_hits_and_bytes_of_the_runs_own_tape_are_the_engines(rows):
    own = [row for row in rows if row.source.endswith(".metrics")]
    assert len({row.source for row in own}) == 2
    for row in own:
        if row.metric == "hit_frac":
            assert abs(row.predicted - row.measured) < 1e-4
        if row.metric == "read_bytes_per_token":
            assert abs(row.rel_err) < 0.005
        if row.metric == "io_s_per_token":
            assert abs(row.rel_err) < 0.12
        assert (row.fitted_on == NOTHING) == (row.metric in offload.OF_TAPE) == (not row.is_fitted)


def test_speeds_of_all_other_settings_follow_from_one_compute_time(rows):
    for log in ("qwen.metrics", "gemma.metrics"):
        on = f"compute_s and manage_s of {log}"
        others = [abs(row.rel_err) for row in rows if (row.metric, row.fitted_on) == ("tokens_per_s", on) and row.source != log]
        assert len(others) == 6
        assert sum(others) / 6 < 0.11


def test_a_recorded_tape_is_decoded_as_its_engine_had_it(tmp_path):
    """Experts of several sizes: the loop's hits and bytes are those of the replay that `verify` holds to the residency column."""
    store = Store(str(tmp_path))
    first_turn = [line for line in TINY.read_text().splitlines(keepends=True) if not line.startswith("1,")]
    (tmp_path / "one.csv").write_text("".join(first_turn))
    tape = tape_of(store, import_bigmoe(tmp_path / "one.csv", store), None)
    trace = load_trace(store, tape.trace_id)
    agreed = replay(trace, LRU(), load("oneplus-15r"), ENGINE_BIGMOE, 2 * offload.MIB, "recorded").metrics
    widths = {"hidden": 64, "n_heads": 2, "n_kv_heads": 2, "head_dim": 32, "vocab": 100, "expert_intermediate": 32}
    tape = replace(tape, geometry=tape.geometry.model_copy(update=widths))
    n_tokens = int(tape.n_inputs[0] - tape.n_prompt[0])
    run = offload.Streamed(
        "tiny", "tiny", "", "", True, tape.geometry.top_k, 4, True, 3, False, cache_mib=2.0, n_tokens=n_tokens, measured={}
    )
    found = offload.predicted(tape, run, load("oneplus-15r"), 0.0)
    assert found["hit_frac"] == pytest.approx(agreed["hit_frac"].value)
    made = offload.decode(offload.as_run(tape, run), run, load("oneplus-15r"), 0.0)
    assert made.slots.fetched_by_phase.sum() == agreed["backing_bytes"].value
    serial = offload.predicted(tape, replace(run, overlap=False), load("oneplus-15r"), 0.0)
    assert serial["tokens_per_s"] < found["tokens_per_s"]
    for metric in ("compute_s_per_token", "io_s_per_token"):
        assert serial[metric] == pytest.approx(found[metric], rel=1e-6)


def test_reads_share_their_lanes():
    """7 reads by 4 lanes: four together, then three; each round as long as its bytes take at the storage's rate."""
    assert offload.busy_s(n_reads=7, readers=4, read_s=0.5) == pytest.approx(0.5 * (16 + 9))


# The list of logs, the one log that there is, and what is said; of the seventh neither `overlap` is read.
REFUSED = json.loads((Path(__file__).parent / "offload_refused.json").read_text())


@pytest.mark.parametrize(("listed", "log", "words"), REFUSED)
def test_refusals_name_file_and_remedy(tokentape: Cli, tmp_path, listed, log, words):
    (tmp_path / "offload_logs.csv").write_text(listed)
    if log:
        (tmp_path / "a.csv").write_text(log)
    assert words in tokentape.refused("validate", "offload", str(tmp_path), "--tapes", str(tmp_path)).err


def test_json_rows_are_those_of_serving(tokentape: Cli, tmp_path, monkeypatch):
    made = offload.Row("log", 0, "hit_frac", "mean", 0.5, 0.6, 0.2)
    monkeypatch.setattr("tokentape.flows.validation.streamed", lambda *given: [made])
    (row,) = json.loads(tokentape.ok("validate", "offload", str(tmp_path), "--json").out)
    assert list(row) == ["source", "stage", "metric", "statistic", "measured", "predicted", "rel_err", "fitted_on", "is_fitted"]


def test_rows_are_recorded_for_the_page_beside_other_simulators(tmp_path):
    of = (NOTHING, False), ("a/0/ttft_s/mean, c/0/ttft_s/mean", True)
    free, fitted = (offload.Row("a", 0, "ttft_s", "mean", 1.0, 1.2, 0.2, *on) for on in of)
    held = offload.Row("b", 1, "ttft_s", "mean", 2.0, 1.8, -0.1, "ttft_s mean of a")
    store = Store(str(tmp_path))
    validation.record(store, "vllm_experiments", "h100", [free, fitted, held], 12)
    shown = {row["framework"]: row for row in read_rows(store, "validation")}
    assert (shown["tokentape"]["n"], shown["tokentape"]["version"]) == (2, "2 of 12")
    assert shown["tokentape"]["mape_frac"] == pytest.approx(0.15)
    assert shown["vidur"]["mape_frac"] == 0.12
    assert [row["split"] for row in read_rows(store, "validation_points")] == ["closed_form", "fitted", "held_out"]
    line, told = pages.table(pages.Run("vllm_experiments", "h100", told, [free, held], 12) for told in ("", "--end low"))[2:]
    assert line.startswith("| vllm_experiments | h100 | ttft_s | 15.0 % | 2 of 12 | no | BLIS evolved 23.0 % (12), ")
    assert told == "| vllm_experiments, `--end low` | h100 | ttft_s | 15.0 % | 2 of 12 | no |  |"


@pytest.mark.slow
def test_the_pages_show_what_the_commands_print():
    if not DATA.is_dir():
        pytest.skip("no measurements of engines beside the project")
    house, runs = Path(__file__).resolve().parents[2], pages.runs_of(DATA)
    for page in (house / "README.md", house / "docs" / "validation.md"):
        text = page.read_text(encoding="utf-8")
        assert pages.refreshed(text, runs) == text, "run `python -m bench.docs.validation DATA docs/validation.md README.md`"

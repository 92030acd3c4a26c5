"""Streaming experts beside an engine that did: hits and bytes of its own tape, speeds of its other settings, clear refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokentape.flows.cli import main
from tokentape.flows.offload import rows_of
from tokentape.hw.spec import load
from tokentape.replay.serving.validation import NOTHING
from tokentape.replay.system import offload

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
LIST = "log,model,geometry,tape,tape_of_run,active_experts,reader_threads,overlap,reads_per_expert,traced\n"
HEAD = "step,wall_ms,io_ms,compute_ms,read_bytes,cache_hit_pct,mgmt_ms\n"


@pytest.fixture(scope="module")
def rows():
    if not (DATA / "offload_measured").is_dir():
        pytest.skip("no measurements of an engine beside the project")
    return rows_of(DATA / "offload_measured", DATA / "traces" / "bigmoeonedge", load("oneplus-15r"))


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
        assert (row.fitted_on == NOTHING) == (row.metric in offload.OF_TAPE)


def test_speeds_of_all_other_settings_follow_from_one_compute_time(rows):
    for log in ("qwen.metrics", "gemma.metrics"):
        on = f"compute_s and manage_s of {log}"
        others = [abs(row.rel_err) for row in rows if (row.metric, row.fitted_on) == ("tokens_per_s", on) and row.source != log]
        assert len(others) == 6
        assert sum(others) / 6 < 0.11


def test_reads_share_their_lanes():
    """7 reads by 4 lanes: four together, then three; each round as long as its bytes take at the storage's rate."""
    assert offload.busy_s(n_reads=7, readers=4, read_s=0.5) == pytest.approx(0.5 * (16 + 9))


@pytest.mark.parametrize(
    ("listed", "log", "words"),
    [
        ("", "", "none of the logs"),
        ("a.csv,M,qwen3-30b-a3b,no.csv,yes,2,4,yes,3,no\n", HEAD + "1,9,1,5,7,50,1\n", "a.csv: no line `# summary`"),
        ("a.csv,M,qwen3-30b-a3b,no.csv,yes,2,4,yes,3,no\n", "step,wall_ms\n1,2\n", "column io_ms is missing"),
        (
            "a.csv,M,qwen3-30b-a3b,no.csv,yes,2,4,yes,3,no\n",
            HEAD + "1,9,1,5,7,50,1\n# summary cache_budget_MiB=9.0\n",
            "no such route trace; give its folder with --tapes",
        ),
    ],
)
def test_refusals_name_file_and_remedy(tmp_path, capsys, listed, log, words):
    (tmp_path / "offload_logs.csv").write_text(LIST + listed)
    if log:
        (tmp_path / "a.csv").write_text(log)
    with pytest.raises(SystemExit) as ended:
        main(["validate", "offload", str(tmp_path), "--tapes", str(tmp_path)])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_json_rows_are_those_of_serving(tmp_path, capsys, monkeypatch):
    made = offload.Row("log", 0, "hit_frac", "mean", 0.5, 0.6, 0.2)
    monkeypatch.setattr("tokentape.flows.offload.rows_of", lambda *given: [made])
    with pytest.raises(SystemExit) as ended:
        main(["validate", "offload", str(tmp_path), "--json"])
    assert ended.value.code == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert list(row) == ["source", "stage", "metric", "statistic", "measured", "predicted", "rel_err", "fitted_on"]

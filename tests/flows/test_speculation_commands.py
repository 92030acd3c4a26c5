"""Speculative decoding from the command line: a tape, its metrics, its pools replayed, an ordinary replay of it."""

import json
from pathlib import Path

import pytest
from command import Cli

from tokentape.flows.systems.elmoe3d.live import replay_points
from tokentape.warehouse.tables import TABLES
from tokentape.warehouse.tape import Store

CAPTURE = ("capture", "--model", "embedded", "--dataset", "math", "--max-requests", "2", "--max-new-tokens", "16")


@pytest.mark.embedded
def test_a_tape_its_metrics_its_pools_and_an_ordinary_replay(tokentape: Cli, tmp_path: Path) -> None:
    tables = "requests,tokens,routing,scores,acceptance,rounds"
    done = tokentape.ok(*CAPTURE, "--tables", tables, "--draft", "elastic", "--pool-frac", "0.25", "--draft-bits", "0")
    trace_id = done.out.strip()
    tape = Store(str(tmp_path / "tape")).open(trace_id)
    assert tape.manifest.settings["speculation"]["pool_frac"] == 0.25
    shown = tokentape("decide", "draft", trace_id)
    assert "tau_accepted" in shown.out
    assert "alpha_1_conditional" in shown.out
    assert "pools, exact" in shown.out
    assert "pools, approximate" in tokentape("decide", "draft", trace_id, "--pool", "lru", "--pool-frac", "0.5").out
    tokentape.ok("replay", trace_id, "--policy", "lru", "--capacity", "50%", "--scope", "global")
    assert tokentape.sql("select n_tokens from traces") == [{"n_tokens": tape.manifest.rows["tokens"]}]
    rows = replay_points(tape, ("hotness", "random"), (0.25, 0.5))
    assert {row["fidelity"] for row in rows} == {"exact", "approximate"}
    assert {*rows[0], "study"} == set(TABLES["acceptance_points"].columns)


def test_imported_responses_have_metrics_and_no_pools(tokentape: Cli, tmp_path: Path) -> None:
    stats = {"acceptance_histogram": [1, 2], "num_spec_steps": 3, "num_accepted_draft_tokens": 2, "num_draft_tokens": 3}
    body = {
        "usage": {"prompt_tokens": 4, "completion_tokens": 5},
        "metrics": {"speculative_decoding": stats | {"num_spec_tokens": 1}},
    }
    file = tmp_path / "responses.json"
    file.write_text(json.dumps(body))
    done = tokentape.ok("import", "acceptance", str(file))
    assert "rounds_unordered" in done.err
    shown = tokentape("decide", "draft", done.out.strip())
    assert "0.6667" in shown.out
    refused = tokentape.refused("decide", "draft", done.out.strip(), "--pool", "lru")
    assert "capture one with" in refused.err

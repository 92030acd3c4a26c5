"""A policy inside the embedded model from the command line: its tape, the tape replayed, Buddy's similarity."""

import json
from pathlib import Path

import pytest
from command import Cli
from tiny_tape import write_tiny

from tokentape.capture import models
from tokentape.warehouse.results import read_rows, run_ids
from tokentape.warehouse.tape import Store

POLICY = ("--param", "router=cache_prior", "--param", "router.strength=0.3", "--param", "pair=MAT42")
RUN = ("evaluate", "--datasets", "code", "--max-items", "1", "--policy", "slicemoe", "--cache", "40%")


@pytest.mark.embedded
def test_a_policy_leaves_a_tape_that_replays_to_the_same_misses(tokentape: Cli, tmp_path: Path) -> None:
    done = tokentape.ok(*RUN, *POLICY, "--tape")
    store = Store(str(tmp_path / "tape"))
    (trace_id,) = store.trace_ids()
    assert trace_id in done.err
    tokentape.ok(
        "replay", trace_id, "--policy", "slicemoe", *POLICY, "--capacity", "40%", "--scope", "global", "--start", "cold",
        "--hardware", "slicemoe-xpu",
    )  # fmt: skip
    told = tokentape.sql("select value from metrics where metric = 'high_bit_miss_frac'")
    (quality,) = read_rows(store, "quality")
    assert told[0]["value"] == pytest.approx(quality["miss_frac"], rel=1e-9)
    assert json.loads(quality["parameters"])["router.strength"] == "0.3"
    tokentape.ok(*RUN, "--param", "router=buddy", "--param", f"router.similarity={trace_id[:12]}")
    assert len(read_rows(store, "quality")) == 2


@pytest.mark.embedded
def test_losses_are_captured_loaded_and_place_experts_inside_the_model(tokentape: Cli, tmp_path: Path) -> None:
    done = tokentape.ok(
        "capture", "--model", "embedded", "--dataset", "docs", "--tables", "losses",
        "--max-requests", "3", "--max-prompt-tokens", "64",
    )  # fmt: skip
    trace_id = done.out.strip()
    told = tokentape.sql("select count(*) as n, min(mse) as least from expert_losses")
    assert told[0]["n"] == 4 * 16 * 4 * 2
    assert told[0]["least"] > 0
    run = ("evaluate", "--datasets", "code", "--max-items", "1", "--policy", "cxl_ndp", "--param", f"losses={trace_id}")
    done = tokentape.ok(*run, "--param", "bits=2", "--param", "rule=reversed", "--param", "method=rtn", "--param", "hot=6")
    (row,) = read_rows(Store(str(tmp_path / "tape")), "quality")
    parameters = json.loads(row["parameters"])
    assert (parameters["losses"], parameters["rule"], parameters["hot"]) == (trace_id, "reversed", 6)
    assert 0 < row["hot_frac"] < 1
    assert 0 < row["agreement_frac"] < 1
    assert row["perplexity"] > 1
    assert row["table_loss"] > 0
    for wrong, words in (
        (("--param", "rule=best"), "unknown rule 'best'"),
        (("--param", "bit=2"), "unknown parameter of cxl_ndp: 'bit'"),
        (("--param", "method=awq"), "holds no losses of awq; it has gptq, rtn"),
        (("--param", "hot=half"), "hot=half is not a whole number"),
        (("--cache", "40%"), "--cache and --scheme are of slicemoe"),
    ):
        refused = tokentape.refused(*run, *wrong)
        assert words in refused.err


def test_a_tape_of_choices_alone_replays_with_the_stock_router(tokentape: Cli, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "tape"))
    write_tiny(store)
    done = tokentape.ok(
        "replay", "tiny", "--policy", "slicemoe", "--capacity", "50%", "--scope", "global", "--hardware", "slicemoe-xpu"
    )
    assert "high_bit_miss_frac" in done.out
    (key,) = run_ids(store)
    assert "flash" in tokentape("timeline", key).out


@pytest.mark.parametrize(("of", "study"), [("experts", "slicemoe"), ("drafts", "elmoe3d"), ("kv", "kelle")])
def test_the_orderings_are_printed_and_kept_by_study(
    tokentape: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str, study: str
) -> None:
    from tokentape.capture import orderings

    row = {"model_id": "m", "dataset": "code", "assertion": "a / b", "margin": "<= 1.1", "mean": 1.2, "low": 1.0, "high": 1.3}
    monkeypatch.setattr(models, "load", lambda *told: None)
    monkeypatch.setattr(orderings, "measured", lambda *told: [row | {"n_seeds": 4, "holds": False}])
    done = tokentape("orderings", "--of", of)
    assert "0 of 1 hold" in done.out
    assert "NO" in done.out
    kept = read_rows(Store(str(tmp_path / "tape")), "orderings")[0]
    assert (kept["study"], kept["mean"]) == (study, 1.2)

"""replay --system and compare: what they print, what they refuse, and cells that cannot be had."""

from __future__ import annotations

import json

import pytest
from command import Cli
from tiny_tape import N_OUTPUT, N_REQUESTS

from tokentape.warehouse.tape import Store


@pytest.fixture
def tape(store: Store) -> str:
    return store.tapes()[0][0].trace_id


def test_a_system_says_its_decisions_and_its_metrics(tokentape: Cli, store: Store, tape: str) -> None:
    done = tokentape(
        "replay", tape, "--system", "near_compute", "--set", "residency.budget=60%", "--hardware", "h100-cxl-ndp", "--json"
    )
    assert done.code == 0, done.err
    (table,) = json.loads(done.out)
    assert "place near_if_rare most=4" in table["title"]
    metrics = {row["metric"]: row["value"] for row in table["rows"]}
    assert metrics["n_lookups"] > metrics["n_hits"] > 0


def test_compare_has_a_cell_for_every_system_and_says_why_one_is_empty(tokentape: Cli, store: Store, tape: str) -> None:
    done = tokentape(
        "compare", tape, "--systems", "layered,prefill_guided_3bit", "--machine", "workstation-rtx4090-pcie4,h100-cxl-ndp",
        "--budget", "60%", "--workload", "rate=100,batch=2", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    cells, best = json.loads(done.out)
    assert len(cells["rows"]) == 2 * 5
    reasons = {row["system"]: row["limited by"] for row in cells["rows"]}
    assert "fixed schedule" in reasons["bound"]
    assert {row["machine"] for row in best["rows"]} == {"workstation-rtx4090-pcie4", "h100-cxl-ndp"}
    assert "bound" not in {name for row in best["rows"] for name in row.values()}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--system", "nope"), "unknown system 'nope'"),
        (("--system", "lru_offload", "--policy", "lru"), "--policy has no effect with --system"),
        (("--system", "lru_offload", "--set", "residency.budget=1B"), "is below one layer's event"),
        (("--system", "lru_offload", "--set", "residency.budget=101%"), "more than all experts"),
        (("--system", "prefill_guided", "--set", "residency=lru"), "slot residency is filled twice"),
        (("--system", "lru_offload", "--set", "place=lru"), "not of place"),
        (("--system", "lru_offload", "--set", "draft=elastic"), "slot draft"),
        (("--system", "lru_offload", "--set", "precision=uniform"), "add place"),
        (("--system", "lru_offload", "--set", "schedule.max_seqs=0"), "max_seqs"),
        (("--system", "lru_offload", "--workload", "requests=99"), "requests=99: tape"),
        (("--system", "lru_offload", "--workload", "speed=3"), "unknown word of --workload"),
        (("--system", "lru_offload", "--workload", "rate=fast"), "is not a number"),
        (("--system", "lru_offload", "--model", "qwen3-30b-a3b"), "give the tape's own model"),
        (("--policy", "lru", "--scope", "global"), "--capacity is missing"),
    ],
)
def test_bad_input_is_one_line_and_code_2(tokentape: Cli, store: Store, tape: str, given: tuple[str, ...], said: str) -> None:
    done = tokentape("replay", tape, *given)
    assert done.code == 2
    assert said in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_every_output_token_is_made(store: Store, tape: str) -> None:
    from tokentape.flows.system_runs import run_system, workload_of
    from tokentape.policies.slots import system_of

    result = run_system(store, tape, system_of("sarathi"), "h100", workload_of("batch=3,order=shuffled,seed=4"))
    series = result.timeline
    assert int(series["n_decode"].sum()) == N_REQUESTS * N_OUTPUT  # inputs after the prompt; the first token comes of the prompt
    assert len(result.request_metrics["finish_s"]) == N_REQUESTS

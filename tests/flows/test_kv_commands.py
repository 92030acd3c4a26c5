"""tokentape decide kv on a recorded tape and KV policies in `evaluate`."""

import json
from pathlib import Path

import numpy as np
import pytest
from command import Cli

from tokentape.flows.inside_model import kv_run, system_tried
from tokentape.flows.system_runs import tape_of
from tokentape.hw.spec import load
from tokentape.policies.kv import KV_POLICIES
from tokentape.policies.kv.refresh import BitRates, Intervals
from tokentape.policies.resolve import resolve
from tokentape.policies.slots import system_of
from tokentape.replay.serving.run import Limits
from tokentape.replay.system.recorded import Recorded
from tokentape.replay.system.run import Setting, simulate
from tokentape.warehouse.results import read_rows
from tokentape.warehouse.tape import Store

CAPTURE = (
    "capture", "--model", "embedded", "--dataset", "code", "--max-requests", "2", "--max-prompt-tokens", "40",
    "--max-new-tokens", "24", "--tables", "requests,tokens,passes,routing,attention",
)  # fmt: skip
OWN = """
from dataclasses import dataclass
from tokentape.policies.kv.streaming import Streaming

@dataclass(frozen=True)
class Mine(Streaming):
    sink: int = 2
"""


def shared_room_beats_halves(tape: Recorded) -> None:
    """docs/systems.md: fewer bytes are fetched and prompts answer sooner where KV and experts share the room."""
    requests, machine = tape.requests(np.arange(24) / 2e3, np.arange(24) % 2), load("workstation-rtx4090-pcie4")
    for budget in ("75%", "100%"):
        given = {"schedule.chunk_tokens": "64", "schedule.max_seqs": "48", "residency.budget": budget}
        one = simulate(tape, requests, system_of("sarathi", {**given, "residency.share_kv": "true"}), machine)
        half = one.slots.budget_bytes // 2
        split = Setting(limits=Limits(kv_blocks=half // 2048, block_tokens=1))
        two = simulate(tape, requests, system_of("sarathi", {**given, "residency.budget": f"{half}B"}), machine, split)
        assert one.slots.fetched < two.slots.fetched
        assert one.serving.ttft_s.mean() < two.serving.ttft_s.mean()


@pytest.mark.embedded
def test_a_tape_through_policies_and_into_the_warehouse(tokentape: Cli, tmp_path: Path) -> None:
    assert tokentape(*CAPTURE).code == 0
    store = Store(str(tmp_path / "tape"))
    (trace_id,) = store.trace_ids()
    for policy in ("aerp", "kelle", "oracle", "streaming"):
        done = tokentape.ok("decide", "kv", trace_id, "--policy", policy, "--param", "budget=16", "--param", "sink=2")
        assert "attention on retained tokens" in done.out
    assert ("bound" in done.out) is False
    (tmp_path / "mine.py").write_text(OWN)
    tokentape.ok("decide", "kv", trace_id, "--policy", f"{tmp_path / 'mine.py'}:Mine", "--param", "budget=16", "--no-renorm")
    rows = {row["policy"]: row for row in read_rows(store, "kv_replays")}
    assert set(rows) == {"aerp", "oracle", "streaming", "Mine"}  # on a tape kelle is aerp
    assert rows["Mine"]["kept_mass_frac"] == rows["streaming"]["kept_mass_frac"]
    assert rows["oracle"]["is_bound"]
    assert rows["aerp"]["x_bytes"] > 0
    told = tokentape.sql("select count(*) as n from kv_timeline where policy = 'aerp'")
    assert told[0]["n"] == len([r for r in read_rows(store, "kv_timeline") if r["policy"] == "aerp"]) > 0
    small = ("--set", "kv.budget=16", "--set", "kv.sink=2", "--hardware", "kelle-edram", "--json")
    (table,) = json.loads(tokentape("replay", trace_id, "--system", "kelle", *small).out)
    metrics = {row["metric"]: row["value"] for row in table["rows"]}
    assert "kv aerp budget=16" in table["title"]
    assert "refresh_j_per_token" in metrics
    assert "kv_peak_bytes" in metrics
    shared_room_beats_halves(tape_of(store, trace_id, None))


@pytest.mark.embedded
def test_evaluate_takes_kv_policies(tokentape: Cli, tmp_path: Path) -> None:
    sizes = ("--param", "prompt_tokens=24", "--param", "decode_tokens=16", "--max-items", "2", "--datasets", "code")
    tokentape.ok("evaluate", "--policy", "kelle", "--param", "budget=16", "--param", "sink=2", *sizes, "--seeds", "2")
    tokentape.ok("evaluate", "--policy", "full", "--param", "storage=quarot", *sizes)
    rows = read_rows(Store(str(tmp_path / "tape")), "quality")
    kelle = [json.loads(r["parameters"]) for r in rows if r["policy"] == "kelle"]
    assert len(kelle) == 2
    assert kelle[0]["storage"] == "int16"
    assert kelle[0]["intervals"] == "2drp"
    assert all(r["kv_bytes"] > 0 and r["perplexity"] > 1 and r["miss_frac"] is None for r in rows)
    (rotated,) = (r for r in rows if r["policy"] == "full")
    bits = 4 + 20 / 32  # with a scale and a zero point per head
    assert rotated["kv_bytes"] == 4 * 4 * 32.0 * 32 * 2 * bits / 8  # layers, heads, mean tokens, width, K and V


@pytest.mark.embedded
def test_a_policy_alone_measures_what_a_system_with_it_does(tokentape: Cli, tmp_path: Path) -> None:
    sizes = ("--param", "prompt_tokens=24", "--param", "decode_tokens=16", "--max-items", "2", "--datasets", "code")
    typed = ("budget=16", "sink=2", "accounting=physical", "intervals=2drp")
    tokentape.ok("evaluate", "--policy", "aerp", *(word for one in typed for word in ("--param", one)), *sizes)
    tokentape.ok("evaluate", "--system", "kelle", "--set", "kv.budget=16", "--set", "kv.sink=2", *sizes)
    rows = {row.pop("policy"): row for row in read_rows(Store(str(tmp_path / "tape")), "quality")}
    assert json.loads(rows["aerp"].pop("parameters"))["storage"] == "int16"
    assert json.loads(rows["kelle"].pop("parameters"))["refresh"].startswith("2drp ")
    assert rows["aerp"] == rows["kelle"]


def test_parameters_as_typed() -> None:
    policy = resolve("kv", "aerp", {"budget": "none", "score_bits": "4", "is_per_head": "false", "theta": "0.25"})
    assert (policy.budget, policy.recent, policy.score_bits, policy.is_per_head, policy.theta) == (None, "auto", 4, False, 0.25)
    assert resolve("kv", "streaming", {"budget": "32"}).limits == (32, 4, 28)
    assert resolve("kv", "aep", {"recent": "5"}).limits[2] == 5
    assert type(resolve("kv", "kelle", {})) is KV_POLICIES["aerp"]
    assert BitRates.parse("1e-3") == BitRates.uniform(1e-3)
    assert BitRates.parse("1e-3,0,2e-3,0") == BitRates(hst_msb=1e-3, lst_msb=2e-3)
    assert "intervals" not in kv_run("kelle", {"rate": "0"}, 1).parameters
    assert kv_run("kelle", {}, 1).rates == BitRates.of(Intervals())
    assert kv_run("kelle", {"intervals": "1050"}, 1).rates == BitRates.of(Intervals.uniform(1050))
    assert Intervals.parse("180,3600,720,5400") == Intervals(180, 3600, 720, 5400)
    for params, scheme, words in (
        ({"pool_frac": "0.5"}, "amat", "--param pool_frac has no effect: system h2o has no policy in slot draft"),
        ({"method": "gptq"}, "amat", "--param method has no effect: system h2o has no policy in slot precision"),
        ({}, "base_sym", "--scheme has no effect: system h2o has no policy in slot route"),
    ):
        with pytest.raises(ValueError, match=words):
            system_tried(system_of("h2o"), params, 1, Store("tape"), scheme)

"""decide place, bits and kv on small tapes, their rows in the warehouse, and policies inside the embedded model by `evaluate`."""

import json
from pathlib import Path

import numpy as np
import pytest
from command import Cli
from refusing import refuses
from tiny_tape import N_LAYERS, TINY, write_losses, write_tiny

from tokentape.capture import models
from tokentape.flows.inside_model import kv_run, system_tried
from tokentape.flows.placement import capacity_of
from tokentape.flows.system_runs import tape_of
from tokentape.hw.spec import load
from tokentape.policies.kv.refresh import BitRates, Intervals
from tokentape.policies.resolve import resolve
from tokentape.policies.slots import system_of
from tokentape.replay.serving.run import Limits
from tokentape.replay.system.recorded import Recorded
from tokentape.replay.system.run import Setting, simulate
from tokentape.warehouse.results import read_rows
from tokentape.warehouse.tape import Store


def test_placements_of_a_tape(tokentape: Cli, store: Store) -> None:
    done = tokentape.ok("decide", "place", "tiny", "--capacity", "3 experts", "--batch", "1,2,9")
    assert "3 of a layer's 8 experts on the GPU" in done.out
    assert "left out: batches of more than the tape's 3 sequences" in done.err
    assert "left out, since they fill no batch: the last sequences, 1 with batches of 2" in done.err
    step = tokentape.ok("step", "cxl_ndp", "--tape", "tiny", "--batch", "2", "--system", "ours")
    assert "left out, since they fill no batch: the tape's last 1 of 3 sequences" in step.err
    hits = read_rows(store, "cxl_ndp_hits")
    frac = {(row["placement"], row["batch"]): row["gpu_hit_frac"] for row in hits if row["layer"] is None}
    assert {batch for _, batch in frac} == {1, 2}
    assert ("shuffled_prompts", 2) not in frac  # one batch of two: no other prompt
    for batch in (1, 2):
        fixed = [frac[name, batch] for name in ("prefill_guided", "static_global", "random")]
        assert max(fixed) <= frac["oracle", batch]
        assert frac["never", batch] == 0.0
    assert len(hits) == 4 * len(frac)
    similar = read_rows(store, "cxl_ndp_similarity")
    assert [row["layer"] for row in similar] == [0, 1, 2, None]
    assert similar[-1]["own_cosine"] == pytest.approx(np.mean([row["own_cosine"] for row in similar[:-1]]))
    use = read_rows(store, "cxl_ndp_use")
    assert {row["request_id"] for row in use} == {0, 1}
    assert {row["first_step"] for row in use} == set(range(0, 32, 4))
    assert tokentape.sql("select count(*) as n from cxl_ndp_hits where placement = 'oracle'") == [{"n": 8}]
    drawn = ("--requests", "2", "--prompt", "3", "--output", "0", "--no-scores")
    prompts = tokentape.ok("synthesize", "--like", "OLMoE-1B-7B", *drawn).out.strip()
    assert "no sequence decodes in batches of 1; record" in tokentape.refused("decide", "place", prompts).err


def test_parameters_and_capacities(tokentape: Cli, store: Store) -> None:
    for arguments in (
        ("--capacity", "50%", "--alpha", "0", "--placement", "prefill_guided,ema", "--beta", "0.5"),
        ("--capacity", "30kB", "--expert-format", "fp16", "--placement", "prefill_guided"),
        ("--scope", "global", "--capacity", "2 experts"),
        ("tiny-0001", "--capacity", "1 experts", "--placement", "shuffled_prompts"),
        ("--placement", "random", "--seed", "1234567"),
    ):
        said = tokentape.ok("decide", "place", "tiny", "--batch", "1,1", *arguments).err
        assert "left out" not in said  # a batch given twice
    found = {(row["placement"], row["hot_experts"]) for row in read_rows(store, "cxl_ndp_hits")}
    named = {"prefill_guided alpha=0": 4, "ema beta=0.5 alpha=0": 4, "prefill_guided": 2, "random seed=1234567": 4}
    assert set(named.items()) <= found
    assert ("oracle, across layers", 2) in found
    assert "tiny-0001 + tiny-0001" in {row["source"] for row in read_rows(store, "cxl_ndp_hits")}
    assert not any(name.startswith("ema") and "across" in name for name, _ in found)


def test_a_share_of_a_layer_is_whole_experts_that_it_has_room_for() -> None:
    odd = TINY.model_copy(update={"n_experts": 15})
    shares = {"50%": 7, "90%": 13, "60%": 9, "1.5 experts": 1, "7 experts": 7, "100%": 15}
    assert {text: capacity_of(text, "per-layer", odd, "recorded").experts for text in shares} == shares
    refuses("less than one of a layer's 15 experts", capacity_of, "0.5 experts", "per-layer", odd, "recorded")
    refuses("less than one", capacity_of, "1kB", "per-layer", odd, "fp16")


def test_bits_of_measured_losses(tokentape: Cli, store: Store) -> None:
    write_losses(store, losses := "tiny-losses")
    tokentape.ok("decide", "precision", losses, "--method", "rtn", "--mean-bits", "2,2.5,3")
    rows = read_rows(store, "bit_losses")
    assert len(rows) == 3 * 5 * (1 + N_LAYERS)
    by_rule = {(row["rule"], row["mean_bits"], row["layer"]): row["loss"] for row in rows}
    for mean_bits in (2.0, 3.0):
        for layer in (None, *range(N_LAYERS)):
            lost = {rule: by_rule[rule, mean_bits, layer] for rule in ("optimum", "prefix_split", "uniform", "reversed")}
            assert lost["optimum"] <= lost["prefix_split"] <= lost["uniform"]
            assert lost["optimum"] <= lost["reversed"]
    for arguments in (
        ("--routing", "tiny-0001", "--capacity", "3 experts"),
        ("--routing", "tiny-0001", "--loss-weight", "prefill_share", "--scope", "global", "--alpha", "1"),
    ):
        tokentape.ok("decide", "precision", losses, "--method", "rtn", "--mean-bits", "2", *arguments)
    rankings = {(row["ranking"], row["hot_experts"]) for row in read_rows(store, "bit_losses")}
    assert rankings == {
        ("loss", 0),
        ("importance alpha=0.5, tiny-0001", 3),
        ("importance alpha=1, tiny-0001, across layers, prefill share", 4),
    }


def test_context_routing_is_drawn_and_placed(tokentape: Cli, store: Store) -> None:
    sizes = ("--requests", "6", "--prompt", "40", "--output", "31", "--no-scores", "--seed", "2")
    done = tokentape.ok("synthesize", "--like", "Mixtral-8x7B", "--routing", "context", *sizes)
    assert "nothing is known" not in done.err
    assert tokentape("decide", "place", done.out.strip(), "--batch", "1").code == 0
    frac = {row["placement"]: row["gpu_hit_frac"] for row in read_rows(store, "cxl_ndp_hits") if row["layer"] is None}
    assert frac["prefill_guided"] > frac["static_global"] + 0.05
    other = tokentape("synthesize", "--like", "OLMoE-1B-7B", "--routing", "context", *sizes)
    assert "nothing is known of this one" in other.err


POLICY = ("--param", "router=cache_prior", "--param", "router.strength=0.3", "--param", "pair=MAT42")
RUN = ("evaluate", "--datasets", "code", "--max-items", "1", "--policy", "slicemoe", "--cache", "40%")


@pytest.mark.embedded
def test_a_policy_leaves_a_tape_that_replays_to_the_same_misses(tokentape: Cli, tmp_path: Path) -> None:
    done = tokentape.ok(*RUN, *POLICY, "--tape")
    store = Store(str(tmp_path / "tape"))
    (trace_id,) = store.trace_ids()
    assert trace_id in done.err
    system = ("replay", trace_id, "--system", "slicemoe", "--set", "residency.budget=40%", "--hardware", "slicemoe-xpu")
    slots = ("route.router=cache_prior", "route.router.strength=0.3", "route.pair=MAT42", "residency.start=cold")
    tokentape.ok(*system, *(word for slot in slots for word in ("--set", slot)))
    (run,) = read_rows(store, "system_runs")
    assert "open loop: rerouted tokens keep the scores of the natural route" in run["outside_envelope"]
    told = tokentape.sql("select value from metrics where metric = 'high_bit_miss_frac'")
    (quality,) = read_rows(store, "quality")
    assert told[0]["value"] == pytest.approx(quality["miss_frac"], rel=1e-9)
    assert json.loads(quality["parameters"])["router.strength"] == "0.3"
    tokentape.ok(*RUN, "--param", "router=buddy", "--param", f"router.similarity={trace_id[:12]}")
    rows = [json.loads(row["parameters"]) for row in read_rows(store, "quality")]
    assert sorted(row.get("router.similarity", "") for row in rows) == ["", trace_id]
    alike = ("--set", "route.router=buddy", "--set", f"route.router.similarity={trace_id[:12]}")
    assert "route slicemoe router=buddy router.similarity=" in tokentape.ok(*system, *alike).out


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
    (row,) = read_rows(store := Store(str(tmp_path / "tape")), "quality")
    of_system = system_tried(system_of("prefill_guided_3bit"), {"losses": trace_id[:12], "method": "rtn"}, 1, store)
    assert of_system.parameters["losses"] == trace_id
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
    done = tokentape.ok("replay", "tiny", "--system", "slicemoe", "--set", "route.router=lru", "--hardware", "slicemoe-xpu")
    assert "high_bit_miss_frac" in done.out
    assert "open loop" not in read_rows(store, "system_runs")[0]["outside_envelope"]


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
    tokentape.ok(
        "decide", "kv", trace_id, "--policy", own := f"{tmp_path / 'mine.py'}:Mine", "--param", "budget=16", "--no-renorm"
    )
    (table,) = json.loads(tokentape.ok("decide", "kv", trace_id, "--policy", "aerp", "--param", "budget=16", "--json").out)
    assert all(isinstance(row["mean after a token"], float | int | dict) for row in table["rows"])
    rows = {row["policy"]: row for row in read_rows(store, "kv_replays")}
    assert set(rows) == {"aerp", "oracle", "streaming", own}  # on a tape kelle is aerp
    assert rows[own]["kept_mass_frac"] == rows["streaming"]["kept_mass_frac"]
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
    assert resolve("kv", "streaming", {"budget": "32"}).limits == (32, 4, 28)
    assert resolve("kv", "aep", {"recent": "5"}).limits[2] == 5
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
    tried = [system_tried(system_of("slicemoe"), {}, 1, Store("tape"), scheme).parameters for scheme in ("amat", "none")]
    assert tried[1] == tried[0] | {"scheme": "none"}

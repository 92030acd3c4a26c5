"""simulate, capacity, calibrate serving, import requests: what they print and write."""

import json
import os
import signal
from itertools import product
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from command import Cli
from refusing import refuses
from tiny_tape import write_tiny

from tokentape.flows.commands import serving as commands_serving
from tokentape.flows.commands import serving_fit as commands_serving_fit
from tokentape.flows.running import Running
from tokentape.flows.serving.setup import Point, workload_of
from tokentape.hw import serving_fits
from tokentape.replay.serving import fit as serving_fit
from tokentape.replay.serving import run
from tokentape.warehouse.results import read_rows
from tokentape.warehouse.tables import schema
from tokentape.warehouse.tape import Store

HEADER = "arrival_s,n_prompt_tokens,n_output_tokens\n"
FEW = ("--requests", "40", "--seeds", "3")
PAPER = ("--profile", "layered_prefill")
CHUNKED = ("--scheduler", "chunked", *PAPER)


def test_a_point_is_printed_with_bands_and_kept(tokentape: Cli):
    done = tokentape.ok("serving", "simulate", "--scheduler", "layered", "--rate", "1.3", *FEW)
    setting = "layered on h100x2, qwen3-30b-a3b, arxiv (poisson) at 1.3 requests/s, 3 seeds"
    for words in (setting, "ttft_mean_s", " to ", "slo_frac"):
        assert words in done.out
    said = [line for line in done.err.splitlines() if not line.endswith(" s")]  # which is how far it is, where that takes long
    assert [line.partition(" ")[2] for line in said] == ["outside the envelope: output head: n 75968 outside 32 to 65536"]
    rows = read_rows(Store("tape"), "serving_points")
    assert {row["study"] for row in rows} == {"adhoc"}
    assert {"ttft_mean_s", "saturation_distance_frac", "energy_j_per_token"} <= {row["metric"] for row in rows}
    again = tokentape("serving", "simulate", "--scheduler", "layered", "--rate", "1.3", *FEW)
    assert again.out == done.out
    assert read_rows(Store("tape"), "serving_points") == rows


def test_rates_beyond_saturation_and_what_lies_outside_are_said(tokentape: Cli):
    done = tokentape.ok("serving", "simulate", "--rate", "4", "--requests", "300", "--seeds", "2", *CHUNKED)
    assert "the queue grows without bound" in done.err
    assert "-" in next(line for line in done.out.splitlines() if "saturation_distance_frac" in line)
    Path("few.csv").write_text(HEADER + "0,100,50\n0.1,100,50\n")  # they leave at 6 a second, and none waits
    assert "without bound" not in tokentape.ok("serving", "simulate", "--workload", "few.csv").err
    pair = ("serving", "simulate", "--scheduler", "disaggregated", "--workload", "sharegpt", "--requests", "100", "--seeds", "1")
    assert "16.8 requests/s arrive, 2.91 are started" in tokentape.ok(*pair, "--rate", "20", "--max-seqs", "8").err
    for calm in (("--rate", "2"), ("--arrival", "at_once")):
        assert "without bound" not in tokentape.ok(*pair, *calm).err
    other = ("--model", "gpt-oss-20b", "--param", "n_max=12", "--hardware", "a100x2", "--rate", "0.5")
    done = tokentape.ok("serving", "simulate", *other, *FEW, *PAPER)
    for words in ("coverage was measured on 128 experts", "constants were fitted on h100x2", "fitted with qwen3-30b-a3b"):
        assert words in done.err
    done = tokentape.ok("serving", "simulate", "--workload", "prompt-8192")
    assert "ttft_mean_s" in done.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--scheduler", "chunked", "--param", "chunk_tokens=1024", "--rate", "1"),
        ("--scheduler", "orca", "--rate", "1"),
        ("--scheduler", "static", "--rate", "1"),
        ("--scheduler", "disaggregated", "--hardware", "h100", "--rate", "1"),
        ("--rate", "1", "--cv", "3"),
        ("--arrival", "at_once"),
        ("--workload", "sharegpt", "--rate", "2", "--coverage", "independent"),
        ("--rate", "1", "--kv-blocks", "4000", "--slo-ttft", "3", "--slo-tbt", "0.2"),
        ("--rate", "1", "--memory-frac", "0.5"),
        ("--rate", "1", *PAPER, "--fit", "h100x2-long-context"),
        ("--rate", "1", *PAPER, "--expert-times", "measured"),
        ("--rate", "1", "--profile", "gpu_operators"),
        ("--rate", "1", "--verify-nodes", "4", "--acceptance", "0.8,0.7,0.6", "--draft-ms", "1.5"),
    ],
)
def test_every_kind_of_point_runs(tokentape: Cli, arguments):
    done = tokentape.ok("serving", "simulate", *arguments, *FEW)
    assert "ttft_mean_s" in done.out


def test_points_that_differ_are_told_apart(tokentape: Cli):
    Path("r.csv").write_text(HEADER + "0,100,20\n0,200,10\n")
    for more in ((), ("--max-seqs", "1"), ("--memory-frac", "0.8"), ("--fit", "h100x2-long-context", *PAPER), PAPER):
        tokentape.ok("serving", "simulate", "--scheduler", "chunked", "--workload", "r.csv", *more)
    rows = [row for row in read_rows(Store("tape"), "serving_points") if row["metric"] == "ttft_mean_s"]
    assert len({(row["policy_params"], row["profile"]) for row in rows}) == len(rows) == 5


@pytest.mark.parametrize("n", [0, 3])
def test_a_trace_alone_has_windows_and_no_more_than_requests(tokentape: Cli, n):
    Path("r.csv").write_text(HEADER + "0,100,20\n1,200,10\n")
    point = Point(scheduler="chunked", workload="r.csv", arrival="trace", windows=n)
    refuses(f"windows {n}: r.csv has 2 requests", workload_of, Store("tape"), point, 1.0, 1)
    drawn = Point(scheduler="chunked", rate_per_s=1.0, windows=2)
    refuses("windows 2 has no effect with --arrival poisson", workload_of, Store("tape"), drawn, 1.0, 0)


def test_a_file_that_changed_between_two_runs_of_a_study_is_read_again(tmp_path: Path):
    point = Point(scheduler="chunked", workload=str(tmp_path / "r.csv"), arrival="trace")
    for n in (100, 700):
        Path(point.workload).write_text(f"{HEADER}0,{n},20\n")
        at = Running(None, Store(str(tmp_path)), runner="threads", workers=1)
        ((_, found),) = at.each(lambda store, _, of: workload_of(store, of, 1.0, 0), [point])
        assert found.n_prompt_tokens.tolist() == [n]


def test_a_changed_scheduler_of_ones_own_is_another_point(tokentape: Cli):
    mine = "from dataclasses import dataclass\nfrom tokentape.policies.serving import Chunked\n\n@dataclass(frozen=True)\n"
    told = []
    for chunk in (512, 512, 1024):
        Path("mine.py").write_text(f"{mine}class Mine(Chunked):\n    chunk_tokens: int = {chunk}\n")
        tokentape.ok("serving", "simulate", "--scheduler", "mine.py:Mine", "--rate", "1", *FEW)
        told.append({row["point_id"] for row in read_rows(Store("tape"), "serving_points")})
    assert [len(ids) for ids in told] == [1, 1, 2]
    assert told[0] < told[2]
    assert "scheduler_source" not in Point(scheduler="chunked").text, "ours is hashed with its room"


def test_kv_memory_is_what_the_machine_leaves_unless_told_otherwise(tokentape: Cli):
    """141 GB of weights: refused on two of 80 GB, served without memory by name; else the blocks are told and kept."""
    too_large = ("--model", "mixtral-8x22b", "--rate", "0.1", *FEW)
    refused = tokentape.refused("serving", "simulate", *too_large)
    for words in ("281 GB of weights", "activations", "154 GB, 90 % of its memory", "--kv-blocks unbounded"):
        assert words in refused.err
    assert not read_rows(Store("tape"), "serving_points")
    unbounded = tokentape.ok("serving", "simulate", *too_large, "--kv-blocks", "unbounded")
    assert "kv_blocks" not in unbounded.out
    served = tokentape("serving", "simulate", "--rate", "1", *FEW)
    blocks = next(line.split() for line in served.out.splitlines() if " kv_blocks " in line)
    assert blocks[1] == "58,220", "90 % of two GPUs less weights and activations"
    found = {row["model_id"]: row["value"] for row in read_rows(Store("tape"), "serving_points") if row["metric"] == "kv_blocks"}
    assert found == {"qwen3-30b-a3b": 58220.0}


def test_experts_that_do_not_fit_are_fetched_and_it_is_told(tokentape: Cli):
    """61 GB of weights on a card of 24 GB."""
    done = tokentape.ok("serving", "simulate", "--hardware", "workstation-rtx4090-pcie4", "--rate", "0.01", *FEW)
    held = next(line for line in done.out.splitlines() if "experts_held_frac" in line)
    assert "15" in held
    assert all(line.endswith(" s") for line in done.err.splitlines())  # how far it is, where that takes long
    paper = tokentape("serving", "simulate", "--hardware", "workstation-rtx4090-pcie4", "--rate", "0.01", *FEW, *PAPER)
    assert "85% of the experts are fetched, which profile layered_prefill does not count" in paper.err
    assert "experts_held_frac" not in tokentape("serving", "simulate", "--rate", "1", *FEW).out


def test_a_tape_brings_its_requests_and_its_coverage(tokentape: Cli):
    write_tiny(Store("tape"))
    done = tokentape.ok(
        "serving", "simulate", "--workload", "tiny", "--arrival", "poisson", "--rate", "2", "--coverage", "tiny", *FEW
    )
    for words in ("decode coverage, mean error of the forms against tape tiny-0001", "paper_table", "uniform"):
        assert words in done.out
    assert "coverage was recorded on 3 MoE layers of 8 experts" in done.err


def test_drafts_of_a_tape_are_accepted_as_recorded(tokentape: Cli):
    of_all = {key: [] for key in ("pool", "hotness", "next_pool", "entered")} | {"n_drafted": 3, "n_verified": 3}
    of_all |= {"request_id": 0, "bonus_token_id": 0, "is_clipped": False}
    accepted = product(enumerate((0, 1, 1, 2)), range(2))
    rounds = [of_all | {"round": i, "layer": layer, "n_accepted": n} for (i, n), layer in accepted]
    rounds += [of_all | {"round": i, "layer": 0, "n_accepted": 0, "is_clipped": True} for i in range(4, 12)]  # by a length limit
    write_tiny(Store("tape"), "drafts-0001", {"rounds": pa.Table.from_pylist(rounds, schema=schema("rounds"))})
    write_tiny(Store("tape"))
    options = ("--rate", "1", "--verify-nodes", "3", "--draft-ms", "1", "--coverage", "tiny", *FEW)
    done = tokentape.ok("serving", "simulate", *options, "--acceptance", "drafts")
    assert "drafts count as tokens" not in done.err, "the tape tells"
    found = {row["metric"]: row for row in read_rows(Store("tape"), "serving_points")}
    assert found["accepted_mean"]["value"] == pytest.approx(1.0, abs=0.05)
    assert '"acceptance": "drafts"' in found["accepted_mean"]["policy_params"]
    assert "recorded no rounds" in tokentape("serving", "simulate", *options, "--acceptance", "tiny").err
    dense = ("--model", "llama-3.1-8b", "--rate", "1", "--verify-nodes", "1", "--acceptance", "0.5", *FEW)
    assert "drafts count as tokens" not in tokentape.ok("serving", "simulate", *dense).err, "it has no experts"


def test_requests_of_a_file_are_imported_and_served(tokentape: Cli, tmp_path: Path):
    (tmp_path / "log.csv").write_text("when,asked,given\n0,100,5\n2,300,7\n1,200,6\n")
    done = tokentape.ok("import", "requests", "log.csv", "--arrival", "when", "--prompt", "asked", "--output", "given")
    assert "3 requests, the last 2.000 s after the first" in done.err
    served = tokentape("serving", "simulate", "--workload", done.out.strip())
    assert "(trace), 1 seed" in served.out
    (tmp_path / "azure.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n")
    assert tokentape("import", "requests", "azure.csv").code == 0
    (tmp_path / "m.jsonl").write_text('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n' * 2)
    shared = ("serving", "simulate", "--workload", tokentape("import", "requests", "m.jsonl").out.strip(), "--prefix-cache")
    assert "prefixes" not in tokentape.ok(*shared).err
    assert "vLLM forgets what layers with a window need sooner" in tokentape.ok(*shared, "--model", "gpt-oss-20b").err
    assert "a state, of no prefix" in tokentape.refused(*shared, "--model", "nemotron-3-nano-30b-a3b").err
    off = {"max_num_seqs": 8, "max_num_batched_tokens": 512, "enable_prefix_caching": False}
    Path("meta.json").write_text(json.dumps({"model": "Qwen/Qwen3-8B", "vllm_version": "0.19.0", "engine_kwargs": off}))
    assert "the engine caches no" in tokentape.refused(*shared, "--engine", "meta.json", "--hardware", "h100").err


def test_capacity_is_found_within_a_hundredth_and_rates_that_miss_nothing_end_the_search(tokentape: Cli, monkeypatch):
    ask = ("serving", "capacity", *CHUNKED, "--seeds", "1", "--slo-tbt", "0.125", "--slo-ttft")
    ((row,),) = (table["rows"] for table in json.loads(tokentape(*ask, "10", "--json").out))
    assert row["scheduler"] == "chunked"
    assert 1.0 < row["requests/s that meet both"] < row["requests/s that do not"] <= 1.011 * row["requests/s that meet both"]
    assert "no rate" in tokentape(*ask, "1e-9").out
    monkeypatch.setattr(commands_serving, "MOST_REQUESTS", 5000)
    done = tokentape.refused("serving", "capacity", *CHUNKED, "--seeds", "1", "--slo-ttft", "1e9", "--slo-tbt", "1e9")
    assert "the limits still hold at 8 requests/s" in done.err


@pytest.mark.parametrize("asked", [("simulate", "--rate", "1"), ("capacity", "--slo-ttft", "2", "--slo-tbt", "0.125")])
def test_ctrl_c_ends_a_kernel_that_serves_millions_of_requests(tokentape: Cli, monkeypatch, asked: tuple[str, ...]) -> None:
    """`gone_soon` watches while it runs: a kernel does not hear of Ctrl-C before its last request."""
    watched, serve = [], run.serve

    def told(*args, **options):
        watched.append(signal.set_wakeup_fd(-1))
        signal.set_wakeup_fd(watched[-1])
        return serve(*args, **options)

    monkeypatch.setattr("tokentape.replay.serving.measure.serve", told)
    assert tokentape("serving", *asked, *CHUNKED, "--seeds", "1").code == 0
    assert watched
    assert min(watched) >= 0


def test_constants_are_fitted_written_and_shown_fact_by_fact(tokentape: Cli, monkeypatch, tmp_path: Path):
    done = tokentape.ok("calibrate", "serving", "--check", "h100x2")
    for words in ("prefill 512", "moe_share 8192", "run 2048 expert_load_per_request", "published", "error"):
        assert words in done.out
    with monkeypatch.context() as broken:
        broken.setattr("tokentape.replay.serving.facts.simulated", None)
        assert "mode 'all' is unknown" in tokentape.refused("calibrate", "serving", "--check", "h100x2", "--mode", "all").err
    pytest.importorskip("scipy")
    monkeypatch.setattr(serving_fit, "SEEDS", (1,))
    monkeypatch.setattr(serving_fit, "N_STEPS", 2)
    tokentape.ok("calibrate", "serving", "--out", "my.toml")
    found = serving_fits.load(str(tmp_path / "my.toml"))
    assert found.machine == "h100x2"
    assert sorted(path.name for path in tmp_path.glob("my*")) == ["my.toml"]
    assert tokentape("serving", "simulate", "--rate", "1", "--fit", "my.toml", *PAPER, *FEW).code == 0


def test_facts_left_out_are_predicted(tokentape: Cli, tmp_path: Path, monkeypatch):
    pytest.importorskip("scipy")
    monkeypatch.setattr(commands_serving_fit, "PULLS", (0.5,))
    monkeypatch.setattr(commands_serving_fit, "FEWER", (1,))
    monkeypatch.setattr(serving_fit, "N_STEPS", 1)
    done = tokentape.ok("calibrate", "serving", "--cross-validate")
    row = next(line for line in done.out.splitlines() if line.split()[:1] == ["0.5"] or " 0.5 " in line)
    *groups, total = [float(word) for word in row.replace("│", " ").split()[1:]]
    assert len(groups) == 6  # three runs, prompts, shares, decode steps
    assert total == pytest.approx(sum(groups), abs=0.5)
    assert not list(tmp_path.glob("*.toml"))


def test_a_log_is_validated_fitted_to_simulated_and_imported(tokentape: Cli, tmp_path: Path) -> None:
    """The same settings and requests by every command: the fitted constant makes the means of the log's own rows nearer."""
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 512}
    meta = {"model": "meta-llama/Llama-3.1-8B", "vllm_version": "0.19.0", "engine_kwargs": settings}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    lengths = {"input_toks": 100, "output_toks": 5}
    rows = [lengths | {"queued_ts": i, "first_token_ts": i + 0.02, "last_token_ts": i + 0.06} for i in range(3)]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, rows)))
    on = ("--hardware", "h100", "--json")
    found = {}
    for options in (
        ("validate", "serving", str(tmp_path), *on),
        ("calibrate", "serving", ".", *on, "--out", "host.toml"),
    ):
        told = json.loads(tokentape(*options).out)
        found[options[0]] = {(row["metric"], row["statistic"]): row["rel_err"] for row in told}
        on_rows = f"means of ttft_s, tpot_s, e2e_s of {tmp_path.name}"
        assert {row["fitted_on"] for row in told} == {"nothing" if options[0] == "validate" else on_rows}
        assert {row["is_fitted"] for row in told} == {options[0] == "calibrate"}
    assert abs(found["calibrate"]["tpot_s", "mean"]) < abs(found["validate"]["tpot_s", "mean"])
    again = json.loads(tokentape("validate", "serving", str(tmp_path), *on, "--host", "host.toml").out)
    assert all(row["is_fitted"] for row in again)
    assert f"2 of what was measured are called {tmp_path.name}, stage 0" in tokentape("validate", "serving", ".", ".", *on).err
    assert {(row["metric"], row["statistic"]): row["rel_err"] for row in again} == pytest.approx(found["calibrate"], abs=1e-5)
    log = tokentape("import", "requests", str(tmp_path / "requests.jsonl")).out.strip()
    simulate = ("serving", "simulate", "--engine", str(tmp_path / "meta.json"), "--hardware", "h100", "--workload", log)
    assert tokentape(*simulate, "--out", "times.csv").code == 0
    times = pl.read_csv("times.csv")
    assert times["n_prompt_tokens"].to_list() == [100] * 3
    ttft_s = 0.02 * (1 + found["validate"]["ttft_s", "mean"])
    assert (times["first_token_s"] - times["arrival_s"]).mean() == pytest.approx(ttft_s)
    os.link("times.csv", "first.csv")  # a file that is there is replaced once the new one is whole, not written over
    for version, gathers_s in (("0.19.0", 0.002), ("0.24.0", 0.0)):
        (tmp_path / "meta.json").write_text(json.dumps(meta | {"vllm_version": version}))
        tokentape.ok(*simulate, "--client", "--out", "times.csv")
        times = pl.read_csv("times.csv")
        assert (times["first_token_s"] - times["arrival_s"]).mean() == pytest.approx(ttft_s + 0.0032 + 0.00028 + gathers_s)
    assert (pl.read_csv("first.csv")["first_token_s"] - pl.read_csv("first.csv")["arrival_s"]).mean() == pytest.approx(ttft_s)
    (tmp_path / "meta.json").write_text(json.dumps(meta | {"engine_kwargs": settings | {"tensor_parallel_size": 2}}))
    assert " on h100x2, llama-3.1-8b" in tokentape.ok(*simulate).out, "two of the GPU serve, not one"
    for option, value in (("--max-seqs", "3"), ("--acceptance", "0.8"), ("--draft-ms", "1"), ("--fit", "nonsense")):
        assert f"{option} has no effect with --engine" in tokentape(*simulate, option, value).err

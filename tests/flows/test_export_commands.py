"""export: every form beside its definition, read back by its consumer where that installs, or by our own importer."""

import dataclasses
import importlib.util
import json
import re
import shlex
import tracemalloc
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import Cli
from refusing import refuses
from tiny_tape import N_EXPERTS, N_LAYERS, N_OUTPUT, N_PROMPT, N_REQUESTS, TINY, TOP_K

from bench.peer import peer_run
from tokentape.capture.importers.request_traces import import_requests
from tokentape.capture.importers.routing_columns import Layout
from tokentape.capture.importers.routing_table import import_routing
from tokentape.flows.grid import load_trace
from tokentape.policies.cache import ExpertCache
from tokentape.policies.residency import CACHES
from tokentape.replay.exports import arrivals, eplb, llama
from tokentape.replay.exports.aiconfigurator import experiment
from tokentape.replay.exports.loads import loads
from tokentape.replay.exports.oracle import oracle_general
from tokentape.replay.semantics import Semantics
from tokentape.replay.stream import stream
from tokentape.replay.trace import CELLS, trace_from_tables
from tokentape.warehouse.tape import Store

MOONCAKE = ("timestamp", "input_length", "output_length", "hash_ids")


@pytest.fixture
def routing(store: Store) -> pl.DataFrame:
    return store.open("tiny").read("routing")


def counts_of(routing: pl.DataFrame) -> np.ndarray:
    counts = np.zeros((N_LAYERS, N_EXPERTS), np.int64)
    for layer, ids in routing.select("layer", "expert_ids").iter_rows():
        counts[layer, ids] += 1
    return counts


def test_oracle_general_and_physical_maps_by_hand() -> None:
    """Keys 3, 1, 3 of 10 and 20 bytes: u32 time, u64 object, u32 size, i64 next."""
    raw = oracle_general(np.array([3, 1, 3], np.int32), np.array([10, 20, 10]), np.array([7, 7, 8])).tobytes()
    never = "ffffffffffffff7f"
    assert raw.hex() == (
        f"07000000 0400000000000000 0a000000 0200000000000000 07000000 0200000000000000 14000000 {never}"
        f"08000000 0400000000000000 0a000000 {never}"
    ).replace(" ", "")
    refuses("does not fit oracleGeneral's 32 bits", oracle_general, np.zeros(1, np.int32), 1 << 32)
    # Two replicas to the heaviest per replica, of equals the lower; then 4, 8/3, 8/3, 8/3, 2, 2 are packed as they come.
    counts = np.array([[8, 4, 2, 2], [1, 1, 1, 9]])
    assert eplb.physical_map(counts, 2, 2).tolist() == [[0, 1, 3, 0, 0, 2], [2, 3, 3, 0, 1, 3]]
    assert eplb.physical_map(counts, 2, 0).tolist() == [[0, 3, 1, 2], [2, 3, 0, 1]]
    refuses("do not share out among 3 ranks evenly", eplb.physical_map, counts, 3, 1)


def test_libcachesim_counts_the_same_misses(routing: pl.DataFrame, store: Store, tokentape: Cli, tmp_path: Path) -> None:
    pytest.importorskip("libcachesim")
    out = tmp_path / "trace.oracleGeneral.bin"
    assert tokentape("export", "oracle", "tiny", "--out", str(out)).code == 0
    keys = stream(load_trace(store, "tiny"), Semantics("global", lookup="serial")).keys
    assert out.stat().st_size == 24 * keys.size
    sizes, caches = np.ones(N_LAYERS * N_EXPERTS, np.int64), np.zeros(N_LAYERS * N_EXPERTS, np.int32)
    for policy in ("lru", "belady"):
        cache = ExpertCache(CACHES[policy](), sizes, caches, np.array([10], np.int64))
        assert peer_run(out, policy, 10)[0] == pytest.approx(1 - cache.advance(keys).mean(), abs=1e-6)
    assert tokentape("export", "oracle", "tiny", "--layer", "1", "--out", str(out)).code == 0
    assert out.stat().st_size == 24 * (keys // N_EXPERTS == 1).sum()


def test_hot_experts_for_ktransformers(routing: pl.DataFrame, tokentape: Cli, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    out = tmp_path / "hot.pt"
    done = tokentape("export", "kt", "tiny", "--capacity", "6 experts", "--out", str(out), "--json")
    held, counts = torch.load(out, weights_only=True), counts_of(routing)
    assert held["logical_count"].tolist() == counts.tolist()
    assert held["gpu_experts_masks"].sum(dim=1).tolist() == [2] * N_LAYERS
    best = np.sort(counts, axis=1)[:, -2:].sum() / counts.sum()
    rows = {row[""]: row["value"] for row in json.loads(done.out)[0]["rows"]}
    assert rows["experts on the GPU"] == 6
    assert counts[held["gpu_experts_masks"].numpy()].sum() == pytest.approx(best * counts.sum())
    assert 0 < rows["lookups that find them, decode"] < 1
    tokentape("export", "kt", "tiny", "--capacity", "6 experts", "--scope", "global", "--phase", "decode", "--out", str(out))
    assert torch.load(out, weights_only=True)["gpu_experts_masks"].sum() == 6


def test_layers_of_experts_for_llama_cpp(routing: pl.DataFrame, tokentape: Cli) -> None:
    said = shlex.split(tokentape("export", "ot", "tiny", "--capacity", "70%", "--phase", "prefill").out)
    assert said[::2] == ["-ot", "-ot"]
    overrides = [rule.rpartition("=")[::2] for rule in said[1::2]]
    placed = {
        layer: next(device for pattern, device in overrides if re.search(pattern, f"blk.{layer}.ffn_down_exps.weight"))
        for layer in range(N_LAYERS)
    }
    of_pass = (
        routing.filter(pl.col("position") < N_PROMPT).group_by("layer", "pass_id").agg(pl.col("expert_ids").explode().n_unique())
    )
    read = dict(of_pass.group_by("layer").agg(pl.col("expert_ids").mean()).iter_rows())
    most = sorted(sorted(read, key=lambda layer: (-read[layer], layer))[:2])
    assert placed == {layer: "CUDA0" if layer in most else "CPU" for layer in range(N_LAYERS)}
    assert not any(re.search(pattern, "blk.1.ffn_down_shexp.weight") for pattern, _ in overrides)
    assert llama.override_tensors([], "CUDA0") == '-ot "\\.ffn_(gate|up|down|gate_up)_exps\\.=CPU"'


def test_a_layer_without_rows_balances_nothing(routing: pl.DataFrame, store: Store) -> None:
    trace = load_trace(store, "tiny")
    first, mapped = trace.row_layer == 0, eplb.as_numbered(counts_of(routing))
    ids, widths = trace.ids_of(np.flatnonzero(first))
    columns = {name: getattr(trace, name)[first] for name in ("row_pass", "row_layer", "row_request", "row_position")}
    alone = dataclasses.replace(trace, **columns, ids=ids, offsets=np.concatenate(([0], np.cumsum(widths))))
    found = np.bincount(ids, minlength=N_EXPERTS).reshape(4, -1).sum(axis=1)
    assert eplb.balance(alone, mapped, 4, "all")[0] == pytest.approx(found.mean() / found.max())


def test_a_long_tape_is_counted_part_by_part(store: Store) -> None:
    """By hand and in the memory of a part, not of arrays of all choices."""
    tiny = load_trace(store, "tiny")
    rng, n = np.random.default_rng(0), 2 * CELLS * N_LAYERS
    row_pass, row_layer = (of.astype(np.int32) for of in np.divmod(np.arange(n), N_LAYERS))
    first = rng.integers(0, N_EXPERTS, n, np.int32)
    ids = np.stack([first, (first + rng.integers(1, N_EXPERTS, n, np.int32)) % N_EXPERTS], axis=1)
    passes = np.arange(n // N_LAYERS)
    kinds = (passes % 3 > 0).astype(np.uint8)
    long = dataclasses.replace(
        tiny, row_pass=row_pass, row_layer=row_layer, row_request=np.zeros(n, np.int32), row_position=row_pass, ids=ids.ravel(),
        offsets=2 * np.arange(n + 1), pass_ids=passes, pass_kind=kinds, pass_tokens=np.ones_like(passes),
        member_offsets=np.arange(passes.size + 1), members=np.zeros_like(passes),
    )  # fmt: skip
    of_decode = kinds[row_pass] == 1
    counts = np.zeros((N_LAYERS, N_EXPERTS), np.int64)
    np.add.at(counts, (np.repeat(row_layer[of_decode], 2), ids[of_decode].ravel()), 1)
    held = np.stack([(ids[of_decode] // 2 == rank).sum(axis=1) for rank in range(4)], axis=1)
    tracemalloc.start()
    assert (loads(long, "decode") == counts).all()
    assert llama.experts_read(long, "decode").tolist() == [2.0] * N_LAYERS
    whole, by_pass = eplb.balance(long, eplb.as_numbered(counts), 4, "decode")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * ids.size
    of_ranks = counts.reshape(N_LAYERS, 4, 2).sum(axis=2)
    assert whole == pytest.approx(np.average(of_ranks.mean(axis=1) / of_ranks.max(axis=1), weights=of_ranks.sum(axis=1)))
    assert by_pass == pytest.approx(np.mean(held.mean(axis=1) / held.max(axis=1)))


@pytest.mark.parametrize("form", eplb.FORMS)
def test_physical_maps_are_read_back(form: str, routing: pl.DataFrame, store: Store, tokentape: Cli, tmp_path: Path) -> None:
    out = tmp_path / "map.json"
    asked = ("--ranks", "4", "--redundant", "4", "--form", form, "--out", str(out))
    done = tokentape("export", "eplb", "tiny", *asked, "--json")
    held, counts = json.loads(out.read_text()), counts_of(routing)
    if form == "vllm-ascend":  # as _expert_file_to_tensor reads it
        layers = [[device["device_expert"] for device in layer["device_list"]] for layer in held["layer_list"]]
        mapped = np.array(layers, np.int32).reshape(held["moe_layer_count"], -1)
        assert held["layer_list"][0]["device_count"] == 4
    else:
        mapped = np.array(held["physical_to_logical_map"])
        assert held.get("model_name", "tiny") == "tiny"  # the model, not the tape
    assert (mapped == eplb.physical_map(counts, 4, 4)).all()
    assert (eplb.read_map(out, store.open("tiny").geometry) == mapped).all()
    balance = {row["experts"]: row for row in json.loads(done.out)[0]["rows"]}
    assert list(balance) == ["as numbered", "by load", "by load, 4 replicas"]
    shares = [row["whole tape"] for row in balance.values()]
    assert shares == sorted(shares)
    found = np.array([[sum(of[e] / list(row).count(e) for e in row[r : r + 3]) for r in range(0, 12, 3)]
                      for of, row in zip(counts, mapped.tolist(), strict=True)])  # fmt: skip
    assert shares[-1] == pytest.approx(np.mean(found.mean(axis=1) / found.max(axis=1)))
    assert all(0 < row["pass by pass"] <= row["whole tape"] for row in balance.values())


def test_a_profile_for_llama_cpp_s_cache_is_its_tracer_s_file(
    routing: pl.DataFrame, tokentape: Cli, store: Store, tmp_path: Path
) -> None:
    out = tmp_path / "profile.csv"
    assert tokentape("export", "moe-trace", "tiny", "--out", str(out)).code == 0
    first = routing.row(0, named=True)
    assert out.read_text().splitlines()[0] == f"-{N_PROMPT},0,{first['expert_ids'][0]},{first['expert_ids'][1]}"
    back = store.open(import_routing([out], store, Layout.of("moe-trace-positions", {}), n_experts=N_EXPERTS))
    assert back.read("routing")["expert_ids"].to_list() == routing["expert_ids"].to_list()
    assert back.read("passes")["n_tokens"].to_list() == [N_PROMPT, *[1] * N_OUTPUT] * N_REQUESTS
    for name in ("request_id", "position"):
        assert back.read("routing")[name].to_list() == routing[name].to_list()


def test_a_batchs_requests_stand_one_after_another_in_a_profile(routing: pl.DataFrame, store: Store) -> None:
    steps, prompts, passes = N_OUTPUT + 1, dict.fromkeys(range(N_REQUESTS), N_PROMPT), store.open("tiny").passes
    together = routing.with_columns(pl.col("pass_id") % steps).sort("pass_id", "layer", "request_id", "position")
    batched = passes.head(steps).with_columns(pl.col("n_tokens") * N_REQUESTS, request_ids=pl.lit([*prompts], pl.List(pl.UInt32)))
    found = [trace_from_tables("tiny", TINY, "captured", *of) for of in ((routing, passes), (together, batched))]
    assert llama.trace_csv(found[1], prompts) == llama.trace_csv(found[0], prompts)


def test_a_step_and_all_passes_for_perfetto(routing: pl.DataFrame, tokentape: Cli, tmp_path: Path) -> None:
    asked = ("--policy", "lru", "--capacity", "50%", "--scope", "global", "--hardware", "phone-lpddr5x-ufs4")
    run = tokentape("replay", "tiny", *asked).err.split("result ")[1].split()[0]
    out, whole = tmp_path / "trace.json", {}
    for which in ("all", "slowest"):
        assert tokentape("export", "chrome", run, "--pass", which, "--out", str(out)).code == 0
        held = json.loads(out.read_text())["traceEvents"]
        slices = [event for event in held if event["ph"] == "X"]
        threads = {event["tid"]: event["args"]["name"] for event in held if event["name"] == "thread_name"}
        assert {event["tid"] for event in slices} == set(threads)
        assert all({"name", "ts", "dur", "pid", "args"} <= set(event) for event in slices)
        whole[which] = slices
    assert len(whole["all"]) == N_REQUESTS * (N_OUTPUT + 1)
    step = max((event for event in whole["all"] if event["args"]["n_tokens"] == 1), key=lambda event: event["dur"])
    assert max(event["ts"] + event["dur"] for event in whole["slowest"]) == pytest.approx(step["dur"], rel=1e-9)
    done = tokentape("replay", "tiny", "--system", "lru_offload", "--hardware", "phone-lpddr5x-ufs4", "--json")
    total_s = {row["metric"]: row["value"] for row in json.loads(done.out)[0]["rows"]}["total_s"]["value"]
    run = done.err.split("result ")[1].split()[0]
    assert tokentape("export", "chrome", run, "--out", str(out)).code == 0
    slices = [event for event in json.loads(out.read_text())["traceEvents"] if event["ph"] == "X"]
    assert sum(event["dur"] for event in slices) == pytest.approx(1e6 * total_s, rel=1e-9)
    assert "is of a system" in tokentape("timeline", run).err


def test_an_experiment_of_aiconfigurator_accepts_what_whole_rounds_did(store: Store, tokentape: Cli, tmp_path: Path) -> None:
    """Four requests, of which the second repeats a block of 512 tokens; the file is YAML with the fields of its Task."""
    yaml, path, out = pytest.importorskip("yaml"), tmp_path / "mooncake.jsonl", tmp_path / "exp.yaml"
    rows = [(600, 10, [0, 1]), (1000, 20, [0, 2]), (200, 30, [3]), (200, 40, [4])]
    path.write_text("".join(json.dumps(dict(zip(MOONCAKE, (0, *row), strict=True))) + "\n" for row in rows))
    trace = import_requests(path, store, "mooncake")
    asked = ("--system", "h200_sxm", "--gpus", "8", "--model", "Qwen/Qwen3-30B-A3B", "--out", str(out))
    assert tokentape("export", "aiconfigurator", trace, *asked).code == 0
    where = {"serving_mode": "agg", "model_path": "Qwen/Qwen3-30B-A3B", "system_name": "h200_sxm", "total_gpus": 8}
    if importlib.util.find_spec("aiconfigurator"):  # not among the tests' packages: its tables are 80 MB
        from aiconfigurator.cli.main import build_experiment_tasks

        assert build_experiment_tasks(yaml_path=str(out))["tape"].prefix == 128
    assert yaml.safe_load(out.read_text()) == {"tape": where | {"isl": 500, "osl": 25, "prefix": 128}}
    # Of three rounds the last is cut short by a length limit.
    requests = pl.DataFrame({"n_prompt_tokens": [6], "n_output_tokens": [9]})
    rounds = pl.DataFrame({"n_drafted": [4, 4, 4], "n_accepted": [3, 2, 0], "is_clipped": [False, False, True]})
    (fields,) = experiment(requests, {}, rounds, "m", "h200_sxm", 1).values()
    assert (fields["nextn"], fields["nextn_accepted"]) == (4, 2.5)


def test_requests_are_read_back(routing: pl.DataFrame, tokentape: Cli, store: Store, tmp_path: Path) -> None:
    for form in ("llmservingsim", "mooncake"):
        out = tmp_path / f"{form}.jsonl"
        assert tokentape("export", "requests", "tiny", "--form", form, "--out", str(out)).code == 0
        table = store.open(import_requests(out, store, form)).read("requests")
        assert table.select("n_prompt_tokens", "n_output_tokens").rows() == [(N_PROMPT, N_OUTPUT)] * N_REQUESTS
    lines = [json.loads(line) for line in (tmp_path / "llmservingsim.jsonl").read_text().splitlines()]
    prompt = store.open("tiny").read("tokens").filter(pl.col("request_id") == 0, pl.col("position") < N_PROMPT)
    assert lines[0]["input_tok_ids"] == prompt.sort("position")["token_id"].to_list()
    assert routing["expert_ids"].list.len().unique().to_list() == [TOP_K]


def test_shorter_prefix_blocks_become_mooncake_s() -> None:
    """The last of the blocks within 512 tokens stands for all before it; 96 tokens do not divide 512."""
    prompts = [list(range(40)), [*range(40), 99], [*range(33), 100]]
    columns = {"request_id": [0, 1, 2], "arrival_s": [0.0] * 3, "n_prompt_tokens": [640, 650, 530], "n_output_tokens": [1] * 3}
    frame = pl.DataFrame(columns | {"prefix_blocks": prompts})
    for block_tokens, expected in ((16, [[31, 39], [31, 99], [31, 100]]), (96, [[0, 1], [2, 3], [4, 5]])):
        lines = arrivals.lines("mooncake", frame, {}, block_tokens).splitlines()
        assert [json.loads(line)["hash_ids"] for line in lines] == expected


def test_a_tape_of_one_decoded_token_leaves_as_it_is(tokentape: Cli, store: Store, tmp_path: Path) -> None:
    """No prompt, no model, no widths."""
    (tmp_path / "one.csv").write_text('position,layer,phase,expert_ids\n0,0,decode,"[3]"\n')
    trace = tokentape("import", "routing", str(tmp_path / "one.csv"), "--n-experts", "8").out.strip()
    assert tokentape("export", "requests", trace, "--out", str(tmp_path / "out")).code == 0
    assert json.loads((tmp_path / "out").read_text()) == {"input_toks": 0, "output_toks": 1, "arrival_time_ns": 0}
    asked = ("--policy", "lru", "--capacity", "50%", "--scope", "global")
    for command, said in (
        (("export", "aiconfigurator", trace, "--system", "x", "--gpus", "1", "--out", str(tmp_path / "exp")), "give --model"),
        (("export", "ot", trace, "--capacity", "50%", "--phase", "prefill"), "has no prefill; choose decode for --phase"),
        (("replay", trace, *asked), "no expert width; import it with --model or --expert-bytes"),
    ):
        done = tokentape.refused(*command)
        assert said in done.err

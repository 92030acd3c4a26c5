"""A capture from end to end: what the tape holds, and that a killed and resumed one holds the same."""

import dataclasses
import re
import shutil

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from refusing import refuses
from safetensors.torch import load_file, save_file
from tiny_families import disagreements, read
from transformers import AutoModelForCausalLM, AutoTokenizer

from tokentape.capture import models, plan, run
from tokentape.capture.evaluate import evaluate
from tokentape.capture.live import texts
from tokentape.capture.run import CaptureSettings, capture, estimate
from tokentape.warehouse.tape import Store

ALL = ("requests", "tokens", "passes", "routing", "scores", "attention")


@pytest.fixture(scope="module")
def settings(model_folder, prompts):
    return CaptureSettings(model_folder("Qwen3Moe"), prompts, tables=ALL, max_requests=5, max_prompt_tokens=20, max_new_tokens=6)


def reference(folder, ids):
    """(nll of tokens 1.., attentions, router logits) of one plain forward pass over `ids`."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        out = model(input_ids=torch.tensor([ids]), output_attentions=True, output_router_logits=True)
    nll = torch.nn.functional.cross_entropy(out.logits[0, :-1], torch.tensor(ids[1:]), reduction="none")
    return nll.numpy(), out.attentions, out.router_logits


def test_the_tape_of_a_greedy_capture(settings, captured):
    tape, tables = captured
    requests, tokens, passes = tables["requests"], tables["tokens"], tables["passes"]
    layers = tape.geometry.moe_layers
    n_inputs = int((requests["n_prompt_tokens"] + requests["n_output_tokens"]).sum()) - len(requests)
    assert len(tokens) == n_inputs  # the last token generated is nobody's input
    assert len(tables["routing"]) == len(tables["scores"]) == n_inputs * len(layers)
    assert passes["pass_id"].to_list() == list(range(len(passes)))
    assert passes["n_tokens"].sum() == n_inputs
    per_pass = tokens.group_by("pass_id").len().sort("pass_id")["len"].to_list()
    assert per_pass == passes["n_tokens"].to_list()
    assert tokens.filter(pl.col("position") == 0)["nll"].null_count() == len(requests) == tokens["nll"].null_count()
    keys = ["request_id", "position", "layer"]
    assert tables["scores"].select(keys).equals(tables["routing"].select(keys))
    ordered = tables["routing"].sort("pass_id", "layer", "request_id", "position", maintain_order=True)
    assert ordered.equals(tables["routing"])
    model = AutoModelForCausalLM.from_pretrained(settings.model).eval()
    for request_id in range(len(requests)):
        ids = tokens.filter(pl.col("request_id") == request_id)["token_id"].to_list()
        n_prompt = requests["n_prompt_tokens"][request_id]
        whole = model.generate(torch.tensor([ids[:n_prompt]]), do_sample=False, max_new_tokens=6)[0].tolist()
        assert ids == whole[:-1]
        nll, _, _ = reference(settings.model, ids)
        np.testing.assert_allclose(tokens.filter(pl.col("request_id") == request_id)["nll"][1:], nll, atol=1e-4)


def test_recorded_scores_explain_the_recorded_experts(captured):
    tape, tables = captured
    manifest = tape.manifest
    assert manifest.score_rule == "softmax"
    assert manifest.score_params["norm_topk_prob"] is True
    for layer in tape.geometry.moe_layers:
        ids = np.array(tables["routing"].filter(pl.col("layer") == layer)["expert_ids"].to_list())
        scores = np.array(tables["scores"].filter(pl.col("layer") == layer)["scores"].to_list(), dtype=np.float32)
        assert not disagreements(ids, scores, manifest.score_rule, manifest.score_params, layer).any()
    weights = np.array(tables["routing"]["gate_weights"].to_list())
    assert (np.diff(weights, axis=1) <= 0).all()


def test_attention_rows_are_those_of_the_model(settings, captured):
    _, tables = captured
    ids = tables["tokens"].filter(pl.col("request_id") == 1)["token_id"].to_list()
    n_prompt = tables["requests"]["n_prompt_tokens"][1]
    _, attentions, _ = reference(settings.model, ids)
    rows = tables["attention"].filter(pl.col("request_id") == 1)
    for row in rows.iter_rows(named=True):
        heads = slice(row["kv_head"] * 2, row["kv_head"] * 2 + 2)
        matrix = attentions[row["layer"]][0, heads].sum(0).numpy()
        if row["reduction"] == "column_sum":
            assert (row["position"], row["n_queries"]) == (n_prompt - 1, n_prompt)
            expected = matrix[:n_prompt, :n_prompt].sum(0)
        else:
            assert row["n_queries"] == 1
            expected = matrix[row["position"], : row["position"] + 1]
        assert row["key_positions"] is None
        assert row["rest"] == 0
        np.testing.assert_allclose(row["mass"], expected, atol=2e-5)
    assert len(rows) == (1 + len(ids) - n_prompt) * 3 * 2  # passes x layers x kv heads


@pytest.mark.parametrize(("keep", "size"), [("top:4", 4), ("block:8", 8)])
def test_shortened_attention_keeps_the_whole_mass(settings, captured, store, keep, size):
    full = captured[1]["attention"]
    short = read(store, capture(dataclasses.replace(settings, attention=keep), store))[1]["attention"]
    for a, b in zip(full.iter_rows(named=True), short.iter_rows(named=True), strict=True):
        assert sum(b["mass"]) + b["rest"] == pytest.approx(sum(a["mass"]), rel=1e-5)
        if keep.startswith("top"):
            positions = b["key_positions"] or range(len(b["mass"]))
            assert len(b["mass"]) == min(size, len(a["mass"]))
            np.testing.assert_allclose(np.array(a["mass"])[list(positions)], b["mass"], rtol=1e-6)
        else:
            assert b["reduction"] == "block_sum"
            assert b["key_positions"] == list(range(0, len(a["mass"]), size))


def test_sums_of_blocks_by_query_head_are_named_as_the_others_are(settings, store):
    rows = read(store, capture(dataclasses.replace(settings, attention="block:8", query_heads=True), store))[1]["attention"]
    assert (rows["query_head"].is_not_null() == (rows["reduction"] == "head_sum")).all()
    head, of_group = (rows.filter(reduction=of, n_queries=rows["n_queries"].max()) for of in ("head_sum", "block_sum"))
    assert len(head) == 2 * len(of_group) > 0
    assert sum(head["mass"].explode()) == pytest.approx(sum(of_group["mass"].explode()))


@pytest.mark.parametrize("family", ["Qwen3Moe", "GptOss", "DeepseekV3"])
def test_a_batch_of_unequal_prompts_records_what_single_requests_do(model_folder, prompts, store, family):
    base = CaptureSettings(model_folder(family), prompts, tables=ALL, max_requests=5, max_prompt_tokens=20, max_new_tokens=6)
    single = read(store, capture(base, store))[1]
    batched = read(store, capture(dataclasses.replace(base, batch_size=3), store))[1]
    assert batched["requests"].equals(single["requests"])
    keys = ["request_id", "position", "layer", "kv_head"]
    for name, values in (("tokens", "nll"), ("scores", "scores"), ("routing", "gate_weights"), ("attention", "mass")):
        key = [k for k in keys if k in single[name].columns]
        a, b = single[name].sort(key), batched[name].sort(key)
        assert a.select(key).equals(b.select(key))
        for column in {"expert_ids", "token_id", "key_positions"} & set(a.columns):
            assert a[column].to_list() == b[column].to_list()
        flat = [f[values].explode() if f[values].dtype == pl.List else f[values] for f in (a, b)]
        np.testing.assert_allclose(*[x.fill_null(0).to_numpy() for x in flat], atol=2e-4)
    assert batched["passes"]["request_ids"][0].to_list() == [0, 1, 2]


def test_a_sliding_window_names_the_positions_it_still_holds(model_folder, prompts, store):
    base = CaptureSettings(model_folder("GptOss"), prompts, tables=("attention",), max_requests=2, max_new_tokens=6, batch_size=2)
    base = dataclasses.replace(base, max_prompt_tokens=20)
    rows = read(store, capture(base, store))[1]["attention"].filter(pl.col("reduction") == "row")
    late = rows.filter((pl.col("layer") == 0) & (pl.col("position") >= 8))
    assert len(late)
    for row in late.iter_rows(named=True):
        assert row["key_positions"] == list(range(row["position"] - 7, row["position"] + 1))


def test_sampling_depends_on_seed_and_request_and_no_new_tokens_mean_prefill_only(settings, store):
    hot = dataclasses.replace(settings, temperature=1.0, top_p=0.9, top_k=50, tables=("tokens",))
    first = read(store, capture(hot, store))[1]["tokens"]
    fewer = read(store, capture(dataclasses.replace(hot, max_requests=2), store))[1]["tokens"]
    other = read(store, capture(dataclasses.replace(hot, seed=1), store))[1]["tokens"]
    ids = ["request_id", "position", "token_id"]
    assert first.filter(pl.col("request_id") < 2).select(ids).equals(fewer.select(ids))
    assert first["token_id"].to_list() != other["token_id"].to_list()
    _, tables = read(store, capture(dataclasses.replace(settings, max_new_tokens=0), store))
    assert set(tables["passes"]["kind"]) == {"prefill"}
    assert tables["requests"]["n_output_tokens"].sum() == 0


def test_teacher_forcing_follows_the_data_set(model_folder, tmp_path, store):
    data = tmp_path / "qa.jsonl"
    data.write_text('{"question": "1+1?", "answer": "it is #### 2"}\n{"question": "2+2?", "answer": "#### 4"}\n')
    base = CaptureSettings(model_folder("Qwen3Moe"), str(data), tables=("tokens",), max_prompt_tokens=20, max_new_tokens=30)
    base = dataclasses.replace(base, teacher_forced=True)
    _, tables = read(store, capture(base, store))
    tokenizer = AutoTokenizer.from_pretrained(base.model)
    ids = tables["tokens"].filter(pl.col("request_id") == 0)["token_id"].to_list()
    assert tokenizer.decode(ids, skip_special_tokens=True) == "1+1?it is #### "  # all but the last forced token
    assert tables["requests"]["n_output_tokens"].to_list() == [len("it is #### 2"), len("#### 4")]
    document = tmp_path / "doc.txt"
    document.write_text("abcdefghijklmnopqrstuvwxyz")
    forced = dataclasses.replace(base, dataset=str(document), max_prompt_tokens=10, max_new_tokens=5)
    _, tables = read(store, capture(forced, store))
    assert tokenizer.decode(tables["tokens"]["token_id"].to_list(), skip_special_tokens=True) == "abcdefghijklm"


def test_geometry_is_measured_from_the_tensors(model_folder, prompts, store):
    base = CaptureSettings(model_folder("DeepseekV3"), prompts, max_requests=1, max_prompt_tokens=9, max_new_tokens=2)
    geometry = store.open(capture(base, store)).geometry
    model = AutoModelForCausalLM.from_pretrained(base.model)
    experts = model.model.layers[1].mlp.experts
    size = sum(p.numel() * p.element_size() for p in experts.parameters()) // 8
    assert geometry.recorded_expert_bytes == (size, size)
    assert size == 4 * geometry.expert_params
    assert (geometry.moe_layers, geometry.n_experts, geometry.top_k, geometry.n_shared_experts) == ((1, 2), 8, 3, 1)
    total = sum(p.numel() * 4 for p in model.parameters())
    read_by_a_token = total - 2 * 8 * size - model.get_input_embeddings().weight.numel() * 4
    assert sum(geometry.recorded_dense_bytes) == pytest.approx(read_by_a_token, rel=0.01)  # buffers besides


# -------------------------------------------------------------------------------------------------------------- resuming


class Killed(BaseException):
    pass


def stop(*told):
    raise Killed


def killed_after(store, n_files, monkeypatch):
    """Makes the store die at its n-th file, as a kill would: nothing is cleaned up."""
    write, left = store.write_shard, [n_files]

    def dying(path, rows):
        if not left[0]:
            raise Killed
        left[0] -= 1
        write(path, rows)

    monkeypatch.setattr(store, "write_shard", dying)


@pytest.mark.parametrize(("temperature", "kills"), [
    (0.0, (0, 6, 17)), (1.0, (9,)),
    pytest.param(0.0, (1, 5, 9), marks=pytest.mark.slow),
    pytest.param(1.0, (1,), marks=pytest.mark.slow),
])  # fmt: skip
def test_a_killed_and_resumed_capture_equals_an_uninterrupted_one(settings, tmp_path, monkeypatch, temperature, kills):
    monkeypatch.setattr(plan, "SHARD_REQUESTS", 2)
    wanted = dataclasses.replace(settings, batch_size=2, temperature=temperature)
    whole_store = Store(str(tmp_path / "whole"))
    trace_id = capture(wanted, whole_store)
    whole = whole_store.open(trace_id)
    assert whole.manifest.n_shards == 3
    # Before, between and inside the shards' six files each, and before the manifest; drawn tokens inside two.
    for n_files in kills:
        store = Store(str(tmp_path / f"killed{n_files}"))
        with monkeypatch.context() as patch:
            killed_after(store, n_files, patch)
            with pytest.raises(Killed):
                capture(wanted, store)
        assert store.trace_ids() == []
        if n_files:
            refuses("--resume", capture, wanted, store)
        with pytest.raises(Killed):  # and killed once more, inside a shard
            capture(wanted, store, resume=True, progress=stop)
        assert capture(wanted, store, resume=True) == trace_id
        again = store.open(trace_id)
        assert again.manifest.model_dump(exclude={"created_utc"}) == whole.manifest.model_dump(exclude={"created_utc"})
        for name in ALL:
            for mine, theirs in zip(again.files(name), whole.files(name), strict=True):
                with store.fs.open(mine, "rb") as a, whole_store.fs.open(theirs, "rb") as b:
                    assert a.read() == b.read()


def test_a_finished_capture_returns_at_once_and_its_progress_counted_to_the_end(settings, store, monkeypatch):
    seen = []
    capture(settings, store, progress=lambda *told: seen.append(told))
    n_tokens = store.open(store.trace_ids()[0]).manifest.rows["tokens"]
    done, total, text = seen[-1]
    assert done == n_tokens <= total
    assert re.fullmatch(r"5/5 requests, [\d,]+ tokens/s", text)
    trace_id = capture(settings, store)
    assert trace_id.startswith("qwen3moe-prompts-")
    assert plan.plan(dataclasses.replace(settings, max_new_tokens=5)).trace_id != trace_id
    monkeypatch.setattr(models, "load", None)
    assert capture(settings, store) == trace_id


# ------------------------------------------------------------------------------------------------------------- bad input


def test_the_estimate_bounds_the_tape_and_stops_one_that_cannot_fit(settings, store, monkeypatch):
    expected = estimate(settings, store)
    assert expected.fits
    long = dataclasses.replace(settings, max_requests=7, max_new_tokens=40)
    trace_id = capture(long, store)
    assert estimate(long, store).table_bytes["scores"] > sum(store.fs.size(f) for f in store.open(trace_id).files("scores"))
    monkeypatch.setattr(plan, "_free_bytes", lambda root: 1000)
    refuses("lower --max-requests", capture, dataclasses.replace(settings, seed=9), store, error=OSError)
    assert store.trace_ids() == [trace_id]
    assert store.unfinished_ids() == []


def test_routing_of_a_dense_model_and_an_absent_one_are_refused(model_folder, prompts, store, settings):
    with pytest.raises(ValueError, match="--tables requests,tokens,attention"):
        capture(CaptureSettings(model_folder("Llama"), prompts, max_prompt_tokens=9, max_new_tokens=2), store)
    refuses("check the name", capture, dataclasses.replace(settings, model="nobody/nothing"), store, error=OSError)
    for change, message in (({"dtype": "float31"}, "did you mean 'float32'"), ({"chat_template": True}, "no chat template")):
        refuses(message, capture, dataclasses.replace(settings, **change), store)
    assert store.trace_ids() == store.unfinished_ids() == []


def broken(folder, path, name, value, place=...):
    """Another folder of the model, with this value in a weight."""
    shutil.copytree(folder, path, dirs_exist_ok=True)
    weights = load_file(path / "model.safetensors")
    weights[name][place] = value
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return str(path)


def test_nan_scores_are_refused_with_their_place(settings, store, tmp_path):
    model = broken(settings.model, tmp_path / "broken", "model.layers.1.mlp.gate.weight", torch.nan, (0, 0))
    refuses("NaN at request 0, position 0, layer 1", capture, dataclasses.replace(settings, model=model), store)


def test_nan_behind_the_routers_and_of_a_dense_model_is_refused(model_folder, prompts, store, tmp_path):
    model = broken(model_folder("Llama"), tmp_path / "broken", "model.norm.weight", torch.inf)
    greedy = CaptureSettings(model, prompts, ("tokens",), max_requests=1, max_prompt_tokens=9, max_new_tokens=2)
    refuses("nll: NaN at request 0, position 1; the model's numbers overflow", capture, greedy, store)
    refuses("logits: NaN at request 0; the model's", capture, dataclasses.replace(greedy, tables=("requests",)), store)
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    refuses("logits: NaN at request 0; the model's", evaluate, greedy.model, [str(tmp_path / "a.jsonl")])
    refuses("logits: NaN; the model's", capture, dataclasses.replace(greedy, temperature=1.0, tables=("requests",)), store)
    broken(model_folder("Llama"), tmp_path / "broken", "model.layers.1.self_attn.q_proj.weight", torch.nan, (0, 0))
    attention = dataclasses.replace(greedy, tables=("attention",))
    refuses("mass: NaN at request 0, position [0-9]+, layer 1; the model's", capture, attention, store)


def test_broken_model_files_are_one_line(settings, store, tmp_path, monkeypatch):
    folder = tmp_path / "broken"
    shutil.copytree(settings.model, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).rename(tmp_path / name)
    with pytest.raises(ValueError, match=r"broken has no tokenizer; save the model's own beside it"):
        capture(dataclasses.replace(settings, model=str(folder)), store)
    for name in ("tokenizer.model", "spiece.model"):
        (folder / name).write_bytes(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02")  # SentencePiece's
        with monkeypatch.context() as patched:
            patched.setattr("tokentape.capture.models.is_sentencepiece_available", lambda: False)
            needs = f"its {name} needs sentencepiece and protobuf; pip install"
            refuses(needs, capture, dataclasses.replace(settings, model=str(folder)), store)
        (folder / name).unlink()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).rename(folder / name)
    weights = folder / "model.safetensors"
    save_file({name: of for name, of in load_file(weights).items() if "1.mlp.gate." not in name}, weights, {"format": "pt"})
    with pytest.raises(ValueError, match=r"1 weights are not in its files, such as model\.layers\.1\.mlp\.gate\.weight"):
        capture(dataclasses.replace(settings, model=str(folder)), store)
    weights.write_bytes(weights.read_bytes()[:1000])
    refuses("could not be loaded", capture, dataclasses.replace(settings, model=str(folder)), store)
    (folder / "config.json").unlink()
    refuses("no config", capture, dataclasses.replace(settings, model=str(folder)), store)
    assert store.trace_ids() == store.unfinished_ids() == []


# ---------------------------------------------------------------------------------------------------------------- memory


def test_out_of_memory_ends_with_the_tape_of_a_smaller_batch(settings, tmp_path, monkeypatch, caplog):
    wanted = dataclasses.replace(settings, batch_size=4)
    small = Store(str(tmp_path / "small"))
    trace_id = capture(dataclasses.replace(wanted, batch_size=2), small)
    decode = run.decode

    def full(model, requests, *args, **kwargs):
        if len(requests) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return decode(model, requests, *args, **kwargs)

    monkeypatch.setattr(run, "decode", full)
    store = Store(str(tmp_path / "large"))
    assert capture(wanted, store) == trace_id
    assert store.unfinished_ids() == []
    assert [record.message for record in caplog.records] == ["out of memory with batches of 4: going on with 2, as another tape"]
    assert store.open(trace_id).manifest.sha256 == small.open(trace_id).manifest.sha256
    monkeypatch.setattr(run, "decode", lambda *args, **kwargs: full(None, [0] * 3))
    refuses("no memory for one request", capture, dataclasses.replace(wanted, seed=1), store)


@pytest.mark.parametrize("family", ["Qwen3Moe", "GptOss", "DeepseekV3", "Gemma2", "OPT", "GraniteMoe"])
def test_log_likelihoods_in_chunks_are_those_of_all_logits_at_once(model_folder, prompts, store, monkeypatch, family):
    base = CaptureSettings(model_folder(family), prompts, ("tokens",), 5, max_prompt_tokens=20, max_new_tokens=2, batch_size=3)
    whole = read(store, capture(base, store))[1]["tokens"]
    widths = []
    head = texts.nll_of
    monkeypatch.setattr(texts, "NLL_CHUNK_ELEMENTS", 3 * 260 * 4)  # four columns of three requests
    monkeypatch.setattr(texts, "nll_of", lambda logits, ids: widths.append(ids.numel()) or head(logits, ids))
    chunked = read(store, capture(dataclasses.replace(base, seed=1), store))[1]["tokens"]
    assert max(widths) == 12
    assert chunked.drop("nll").equals(whole.drop("nll"))
    np.testing.assert_allclose(chunked["nll"].drop_nulls(), whole["nll"].drop_nulls(), atol=1e-6, rtol=1e-6)


def test_the_estimate_is_by_table_what_a_capture_writes_and_holds(settings, store, monkeypatch, tmp_path):
    """Prompts and outputs at their limits: of every large table at most what is said and, bar compression, a fifth at least."""
    text = tmp_path / "long.jsonl"
    text.write_text("".join(f'{{"prompt": "{chr(97 + i) * 70} {i}"}}\n' for i in range(4)))
    long = dataclasses.replace(settings, dataset=str(text), max_requests=4, max_prompt_tokens=64, max_new_tokens=40, batch_size=2)
    for wanted in (long, dataclasses.replace(long, attention_rows=8, query_heads=True, key_pages=8)):
        expected = estimate(wanted, store)
        tape = store.open(capture(wanted, store))
        for name in ("routing", "scores", "attention"):
            with store.fs.open(tape.files(name)[0], "rb") as handle:
                groups = pq.ParquetFile(handle).metadata
            written = sum(groups.row_group(i).total_byte_size for i in range(groups.num_row_groups))
            assert expected.table_bytes[name] / 5 < written < 1.1 * expected.table_bytes[name], name
        assert expected.largest == max(expected.table_bytes.items(), key=lambda of: of[1])
    model = AutoModelForCausalLM.from_pretrained(settings.model)
    assert expected.memory_bytes["weights"] == 4 * model.num_parameters()
    cache = getattr(model(torch.ones(2, 104, dtype=torch.long)), texts.CACHE)
    assert expected.memory_bytes["keys and values"] == sum(4 * (of.keys.numel() + of.values.numel()) for of in cache.layers)

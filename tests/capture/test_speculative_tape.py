"""A tape of speculative decoding: every node of every pass, the accepted path as an ordinary tape, resumed byte for byte."""

import dataclasses
import json
import shutil

import numpy as np
import polars as pl
import pytest
import torch
from refusing import refuses
from tiny_families import disagreements, read
from transformers import AutoModelForCausalLM

from tokentape.capture import plan
from tokentape.capture.run import CaptureSettings, capture, estimate
from tokentape.capture.speculation.settings import DraftSettings
from tokentape.policies.speculation.pools import restricted_topk
from tokentape.replay.trace import trace_from_tables

TREE = DraftSettings(depth=3, width=2, verify_nodes=4, pool_frac=0.25)


@pytest.fixture(scope="module")
def settings(model_folder, prompts):
    lengths = {"max_requests": 5, "max_prompt_tokens": 20, "max_new_tokens": 9}
    return CaptureSettings(model_folder("Qwen3Moe"), prompts, **lengths, batch_size=2, speculation=TREE)


def ordinary(settings):
    return dataclasses.replace(settings, speculation=None, batch_size=1, tables=("tokens", "routing", "scores"))


def test_the_accepted_path_is_the_ordinary_tape(settings, captured, store):
    _, ours = captured
    _, plain = read(store, capture(ordinary(settings), store))
    assert ours["requests"].equals(plain["requests"])
    inputs = ["request_id", "position", "token_id"]
    assert ours["tokens"].select(inputs).equals(plain["tokens"].select(inputs))
    np.testing.assert_allclose(ours["tokens"]["nll"].drop_nulls(), plain["tokens"]["nll"].drop_nulls(), atol=1e-4)
    keys = ["request_id", "position", "layer"]
    a, b = (tables["routing"].sort(keys) for tables in (ours, plain))
    assert a.select(*keys, "expert_ids").equals(b.select(*keys, "expert_ids"))
    np.testing.assert_allclose(a["gate_weights"].explode(), b["gate_weights"].explode(), atol=1e-4)
    assert ours["scores"].select(keys).equals(ours["routing"].select(keys))


def test_the_nodes_of_draft_and_verify_passes(captured):
    tape, tables = captured
    nodes, acceptance, rounds = tables["node_routing"], tables["acceptance"], tables["rounds"]
    layers, top_k = tape.geometry.moe_layers, tape.geometry.top_k
    assert (
        tables["node_scores"]
        .select("request_id", "round", "phase", "node", "layer")
        .equals(nodes.select("request_id", "round", "phase", "node", "layer"))
    )
    draft, verify = (nodes.filter(pl.col("phase") == phase) for phase in ("draft", "verify"))
    assert draft["expert_ids"].list.len().unique().to_list() == [2]  # a pool of two, fewer than top-k
    assert verify["expert_ids"].list.len().unique().to_list() == [top_k]
    assert draft["natural_ids"].list.len().unique().to_list() == [top_k]
    assert verify["natural_ids"].null_count() == len(verify)
    per_round = acceptance.group_by("request_id", "round").agg(
        pl.col("is_verified").sum().alias("v"), pl.col("is_accepted").sum().alias("a"), pl.len().alias("n")
    )
    merged = rounds.join(per_round, on=["request_id", "round"])
    for ours, theirs in (("n_verified", "v"), ("n_accepted", "a"), ("n_drafted", "n")):
        assert merged[ours].to_list() == merged[theirs].to_list()
    once = rounds.unique(["request_id", "round"])
    assert len(verify) == (once["n_verified"].sum() + once.height) * len(layers)  # the root too
    assert acceptance.filter(pl.col("is_accepted") & ~pl.col("is_verified")).is_empty()
    assert (acceptance["target_prob"].is_null() == ~acceptance["is_verified"]).all()
    for layer in layers:
        scores = np.array(tables["node_scores"].filter(pl.col("layer") == layer)["scores"].to_list(), dtype=np.float32)
        both = nodes.filter(pl.col("layer") == layer).with_columns(pl.coalesce("natural_ids", "expert_ids").alias("own"))
        ids = np.array(both["own"].to_list())
        assert not disagreements(ids, scores, tape.manifest.score_rule, tape.manifest.score_params, layer).any()
    scored = nodes.with_columns(tables["node_scores"]["scores"]).filter(pl.col("phase") == "draft")
    for row in scored.join(rounds.select("request_id", "round", "layer", "pool"), on=["request_id", "round", "layer"]).to_dicts():
        chosen = restricted_topk(np.array([row["scores"]]), np.array(row["pool"]), top_k)[0]
        assert row["expert_ids"] == chosen.tolist()  # in the order of the scores
        assert sum(row["gate_weights"]) == pytest.approx(1.0)  # the family renormalises over what was chosen


@pytest.mark.parametrize(("family", "keep", "width"), [("Qwen3Moe", "full", 2), ("GptOss", "full", 1), ("Mistral", "top:4", 1)])
def test_attention_of_the_accepted_path_is_that_of_an_undrafted_capture(model_folder, prompts, store, family, keep, width):
    draft = DraftSettings("ngram") if family == "Mistral" else DraftSettings(depth=3, width=width, pool_frac=0.5)
    told = {"max_requests": 2, "max_prompt_tokens": 20, "max_new_tokens": 14, "attention": keep, "attention_rows": 3}
    drafted = CaptureSettings(model_folder(family), prompts, ("tokens", "attention"), **told, speculation=draft)
    tape, ours = read(store, capture(drafted, store))
    _, plain = read(store, capture(dataclasses.replace(drafted, speculation=None, tables=("tokens", "attention")), store))
    keys = ["request_id", "position", "layer", "kv_head", "reduction", "n_queries"]
    is_node = pl.col("reduction") == "node_row"
    a, b = (tables["attention"].filter(is_node.not_()).sort(keys) for tables in (ours, plain))
    assert a.select(*keys, "key_positions").equals(b.select(*keys, "key_positions"))
    np.testing.assert_allclose(a["mass"].explode(), b["mass"].explode(), atol=2e-5)
    np.testing.assert_allclose(a["rest"], b["rest"], atol=2e-5)
    verifying = ours["passes"].filter(pl.col("kind") == "verify")["pass_id"].implode()
    verify = ours["attention"].filter(pl.col("pass_id").is_in(verifying))
    n_heads = tape.manifest.attention["n_kv_heads"] * tape.geometry.n_layers
    once = ours["rounds"].unique(["request_id", "round"])
    assert len(verify) == (once["n_verified"].sum() + once.height) * n_heads  # rejected nodes and the root too
    assert verify["node"].null_count() == 0
    assert (ours["attention"].filter(is_node)["pass_id"].is_in(verifying).not_()).any() == (family != "Mistral")  # drafts


def test_attention_of_rejected_nodes_is_that_of_their_own_text(settings, store):
    wanted = dataclasses.replace(settings, tables=("tokens", "attention"), max_requests=2)
    _, tables = read(store, capture(wanted, store))
    model = AutoModelForCausalLM.from_pretrained(settings.model, attn_implementation="eager").eval()
    verify = tables["passes"].filter(pl.col("kind") == "verify").select("pass_id")
    nodes = tables["attention"].join(verify, on="pass_id").join(tables["acceptance"], on=["request_id", "round", "node"])
    rejected = nodes.filter(pl.col("is_accepted").not_(), pl.col("layer") == 2, pl.col("kv_head") == 1)
    assert len(rejected)
    assert set(rejected["reduction"]) == {"node_row"}
    named = {(r["request_id"], r["round"], r["node"]): r for r in tables["acceptance"].iter_rows(named=True)}
    for row in rejected.iter_rows(named=True):
        node, behind = row["node"], []
        while node:
            of = named[row["request_id"], row["round"], node]
            behind.insert(0, of["draft_token_id"])
            node = of["parent"]
        text = tables["tokens"].filter(pl.col("request_id") == row["request_id"]).sort("position")["token_id"].to_list()
        ids = text[: row["position"] + 1 - len(behind)] + behind
        with torch.inference_mode():
            matrix = model(torch.tensor([ids]), output_attentions=True).attentions[2][0, 2:4].sum(0)
        np.testing.assert_allclose(row["mass"], matrix[-1], atol=2e-5)


def test_what_entered_was_read_and_pools_keep_their_size(captured):
    _, tables = captured
    rounds, nodes = tables["rounds"], tables["node_routing"].filter(pl.col("phase") == "verify")
    assert rounds["pool"].list.len().unique().to_list() == [2]
    nodes = nodes.with_columns(batch=pl.col("request_id") // 2)
    grouped = nodes.group_by("batch", "round", "layer").agg(pl.col("expert_ids"))
    read_by = {
        (row["batch"], row["round"], row["layer"]): {e for ids in row["expert_ids"] for e in ids}
        for row in grouped.iter_rows(named=True)
    }
    pools: dict[tuple[int, int], list[int]] = {}
    n_entered = 0
    for row in rounds.sort("request_id", "round").iter_rows(named=True):
        key = (row["request_id"], row["layer"])
        if row["round"]:
            assert row["pool"] == pools[key]
        assert set(row["entered"]) <= read_by[row["request_id"] // 2, row["round"], row["layer"]] & set(row["next_pool"])
        stay = [e for e in row["pool"] if e in row["next_pool"]]
        left = sorted(set(row["pool"]) - set(stay), key=lambda e: (row["hotness"][e], -e))[len(row["entered"]) :]
        pools[key] = sorted([*stay, *left, *row["entered"]])
        n_entered += len(row["entered"])
    assert n_entered > 0


def test_an_ordinary_replay_sees_the_accepted_path_only(captured):
    tape, tables = captured
    trace = trace_from_tables(tape.trace_id, tape.geometry, "captured", tables["routing"], tables["passes"])
    assert trace.pass_ids.size == (tables["passes"]["kind"] != "draft").sum()
    assert trace.pass_tokens.sum() == len(tables["tokens"])
    assert trace.row_pass.size == len(tables["tokens"]) * len(tape.geometry.moe_layers)


def test_a_resumed_capture_writes_the_same_bytes(settings, store, tmp_path, monkeypatch):
    monkeypatch.setattr("tokentape.capture.plan.SHARD_REQUESTS", 2)
    trace_id = capture(settings, store)
    whole = {p.relative_to(tmp_path): p.read_bytes() for p in (tmp_path / "store").rglob("*.parquet")}
    folder = tmp_path / "store" / "traces" / f"trace_id={trace_id}"
    (folder / "manifest.json").unlink()
    for table in folder.iterdir():
        (table / "part-00001.parquet").unlink()
    refuses("--resume", capture, settings, store)
    assert capture(settings, store, resume=True) == trace_id
    assert {p.relative_to(tmp_path): p.read_bytes() for p in (tmp_path / "store").rglob("*.parquet")} == whole


def test_a_dense_model_has_no_elastic_draft_and_no_layers_with_ngrams(model_folder, prompts, store):
    settings = CaptureSettings(
        model_folder("Llama"), prompts, ("tokens",), 3, max_prompt_tokens=20, max_new_tokens=8, speculation=DraftSettings("ngram")
    )
    tape, tables = read(store, capture(settings, store))
    assert (tape.manifest.tables, tape.manifest.score_rule) == (("requests", "tokens", "passes", "acceptance", "rounds"), None)
    assert tables["rounds"]["layer"].null_count() == len(tables["rounds"])
    assert set(tables["passes"]["kind"]) == {"prefill", "verify"}
    refuses("dense model", capture, dataclasses.replace(settings, tables=("tokens",), speculation=DraftSettings()), store)


def test_the_estimate_is_an_upper_bound(settings, store):
    expected = estimate(settings, store)
    size = store.size_bytes(capture(settings, store))
    assert set(expected.table_bytes) == set(settings.tables)
    assert size < expected.total_bytes + 64 * 1024 * len(settings.tables)  # footers of small files


def test_ordinary_settings_and_names_know_nothing_of_drafts(settings):
    assert "speculation" not in ordinary(settings).recorded()
    assert settings.recorded()["speculation"]["pool"] == "hotness"


def test_a_small_model_whose_context_is_too_short_is_refused(model_folder, prompts, tmp_path):
    shutil.copytree(model_folder("Llama"), tmp_path / "small")
    config = json.loads((tmp_path / "small/config.json").read_text())
    (tmp_path / "small/config.json").write_text(json.dumps(config | {"max_position_embeddings": 24}))
    draft = DraftSettings(f"model:{tmp_path / 'small'}")
    settings = CaptureSettings(
        model_folder("Llama"), prompts, ("tokens",), max_prompt_tokens=20, max_new_tokens=8, speculation=draft
    )
    refuses(r"exceed the context of .*small \(24\)", plan.plan, settings)

"""Importer of BigMoeOnEdge: a tiny committed trace, the published ones where they lie, and every way a file can be wrong."""

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from refusing import full, refuses

from tokentape.capture.importers.bigmoe import import_bigmoe
from tokentape.capture.importers.limits import BadImport
from tokentape.flows.commands.imports import importer_of
from tokentape.warehouse.tape import Store, Tape

REPO = Path(__file__).resolve().parents[2]
TINY = REPO / "tests" / "data" / "tiny.route.csv"
PUBLISHED = REPO.parent / "shared" / "data" / "traces" / "bigmoeonedge"
BUDGET_BYTES = 2 << 20
EXPERT_BYTES = (262144, 262144, 196608)
Batch = tuple[int, list[list[int]]]  # a layer and its tokens' expert ids
needs_published = pytest.mark.skipif(not PUBLISHED.exists(), reason="the published traces are not beside this checkout")


def simulate_residency(batches: list[Batch], expert_bytes: tuple[int, ...], budget: int) -> list[list[list[int]]]:
    """1 where an expert was resident. A batch is a layer and its tokens' ids; repeats promote; evict after it, never a member."""
    cache: OrderedDict[tuple[int, int], int] = OrderedDict()
    residency, used = [], 0
    for layer, tokens in batches:
        members = {(layer, e) for ids in tokens for e in ids}
        residency.append([[int((layer, e) in cache) for e in ids] for ids in tokens])
        for e in (e for ids in tokens for e in ids):
            used += expert_bytes[layer] if (layer, e) not in cache else 0
            cache[layer, e] = expert_bytes[layer]
            cache.move_to_end((layer, e))
        while used > budget and next(iter(cache)) not in members:  # members are the most recent: the first one ends the search
            used -= cache.popitem(last=False)[1]
    return residency


def decode_batches(tape: Tape) -> tuple[list[Batch], list[bool]]:
    """Every (pass, layer) batch of the tape in order, and whether it is decode."""
    routing = tape.read("routing").join(tape.read("passes").select("pass_id", "kind"), on="pass_id", maintain_order="left")
    grouped = routing.group_by("pass_id", "layer", "kind", maintain_order=True).agg("expert_ids")
    return [(row["layer"], row["expert_ids"]) for row in grouped.to_dicts()], (grouped["kind"] == "decode").to_list()


def test_a_byte_order_mark_and_windows_line_ends_are_no_damage(store: Store, tmp_path: Path) -> None:
    (saved := tmp_path / "saved.csv").write_text(TINY.read_text(), encoding="utf-8-sig", newline="\r\n")
    assert importer_of(saved) == "bigmoe"
    ours, theirs = (store.open(import_bigmoe(path, store)).read("routing") for path in (saved, TINY))
    assert ours.equals(theirs)
    saved.write_text(DROPS, newline="\r\n")
    assert store.open(import_bigmoe(saved, store)).read("routing").equals(theirs), "of an engine that can drop, and did not"


def test_golden_import(store: Store) -> None:
    tape = store.open(import_bigmoe(TINY, store))
    assert tape.trace_id.startswith("tiny-route-")
    m = tape.manifest
    assert (m.origin, m.model_id, m.source) == ("imported", "tiny-moe", "tiny.route.csv")
    assert m.rows == {"requests": 2, "tokens": 27, "passes": 20, "routing": 9 * 2 + 2 + 18 * 3}
    assert m.geometry.recorded_expert_bytes == EXPERT_BYTES
    assert (m.geometry.top_k, m.geometry.n_experts, m.geometry.moe_layers, m.geometry.hidden) == (2, 8, (0, 1, 2), 0)
    assert m.flags["missing_rows"] == {"expected": 81, "found": 74, "missing_by_layer": {"2": 7}}
    requests = tape.read("requests")
    assert requests["n_prompt_tokens"].to_list() == [5, 4]
    assert requests["n_output_tokens"].to_list() == [10, 8]
    passes = tape.read("passes")
    assert passes["n_tokens"].to_list() == [5, *[1] * 10, 4, *[1] * 8]
    assert passes["request_ids"].to_list() == [[0]] * 11 + [[1]] * 9
    tokens = tape.read("tokens")
    assert tokens["token_id"].null_count() == len(tokens) == 27
    assert tokens.filter(phase="prefill")["pass_id"].unique().sort().to_list() == [0, 11]
    routing = tape.read("routing")
    assert routing["pass_id"].is_sorted()
    assert routing.filter(pass_id=0)["layer"].to_list() == [0] * 5 + [1] * 5 + [2]
    assert routing.filter(pass_id=0)["position"].to_list() == [0, 1, 2, 3, 4] * 2 + [4]
    weights = np.array(routing["gate_weights"].to_list())
    assert np.allclose(weights.sum(axis=1), 1, atol=1e-6)
    assert (weights[:, 0] >= weights[:, 1]).all()


def test_residency_survives_and_is_right_for_the_budget(store: Store) -> None:
    tape = store.open(import_bigmoe(TINY, store))
    batches, is_decode = decode_batches(tape)
    expected = simulate_residency(batches, EXPERT_BYTES, BUDGET_BYTES)
    found = iter(tape.read("routing")["residency"].to_list())
    for hits, decode in zip(expected, is_decode, strict=True):
        for row in hits:
            assert next(found) == (row if decode else [0, 0])
    assert 0.2 < np.mean([hit for hits, d in zip(expected, is_decode, strict=True) if d for row in hits for hit in row]) < 0.9


@needs_published
@pytest.mark.parametrize(
    ("name", "n_routing", "n_decode", "n_hits", "n_prefill_unique", "flags"),
    [
        ("qwen", 7461, 36864, 29597, 2662, {"top_k_override", "missing_rows"}),
        ("gemma", 4710, 23040, 18872, 1538, {"top_k_override"}),
    ],
)
def test_published_traces(
    store: Store, name: str, n_routing: int, n_decode: int, n_hits: int, n_prefill_unique: int, flags: set[str]
) -> None:
    tape = store.open(import_bigmoe(PUBLISHED / f"{name}.route.csv", store))
    routing = tape.read("routing").join(tape.read("passes").select("pass_id", "kind"), on="pass_id")
    decode, prefill = routing.filter(kind="decode"), routing.filter(kind="prefill")
    assert len(routing) == n_routing
    assert decode["expert_ids"].list.len().sum() == n_decode
    assert decode["residency"].list.sum().sum() == n_hits
    assert prefill.explode("expert_ids").select("layer", "expert_ids").n_unique() == n_prefill_unique
    assert tape.geometry.top_k == 6
    assert set(tape.manifest.flags) == flags
    assert tape.manifest.flags["top_k_override"] == {"recorded": 6, "model": 8}
    batches, is_decode = decode_batches(tape)
    expected = simulate_residency(batches, tape.geometry.recorded_expert_bytes, 4000 << 20)
    assert [row for hits, d in zip(expected, is_decode, strict=True) if d for row in hits] == decode["residency"].to_list()


def test_widths_come_from_the_model_that_is_named(store: Store, tmp_path: Path) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = {"model_type": "qwen3_moe", "num_hidden_layers": 3, "num_experts": 8, "num_experts_per_tok": 4, **sizes}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {"moe_intermediate_size": 16, "intermediate_size": 16, "decoder_sparse_step": 1}))
    bare, tape = (store.open(import_bigmoe(TINY, store, model=of)) for of in (None, path))
    assert tape.trace_id != bare.trace_id
    assert (tape.geometry.hidden, tape.geometry.n_kv_heads, tape.geometry.top_k) == (32, 2, 2)
    assert tape.geometry.recorded_expert_bytes == EXPERT_BYTES
    assert tape.manifest.flags["top_k_override"] == {"recorded": 2, "model": 4}
    assert tape.read("routing").equals(bare.read("routing"))
    path.write_text(path.read_text().replace('"num_experts": 8', '"num_experts": 16'))
    with pytest.raises(BadImport, match=r"tiny\.route\.csv: --model .*: n_experts is 16, the tape's is 8; give the tape's own"):
        import_bigmoe(TINY, store, model=path)


def test_an_import_is_idempotent_and_starts_over_where_it_was_interrupted(store: Store, tmp_path: Path) -> None:
    trace_id = import_bigmoe(TINY, store)
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.rglob("*") if p.is_file()}
    assert import_bigmoe(TINY, store) == trace_id
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.rglob("*") if p.is_file()} == before
    store.fs.rm(store.trace_path(trace_id, "manifest.json"))
    assert import_bigmoe(TINY, store) == trace_id
    assert store.trace_ids() == [trace_id]
    changed = tmp_path / "tiny.route.csv"
    changed.write_text(TINY.read_text().replace("tiny-moe", "other-moe"))
    assert import_bigmoe(changed, store) != trace_id


LINES = TINY.read_text().splitlines(keepends=True)
HEAD, BODY = LINES[:6], LINES[6:]
DROPS = "".join([*HEAD[:5], HEAD[5].replace("\n", ",dropped\n"), *(line.replace("\n", ",0\n") for line in BODY)])


def test_a_missing_file_is_named_and_a_failed_write_leaves_no_tape(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses(r"nothing\.csv", import_bigmoe, tmp_path / "nothing.csv", store, error=FileNotFoundError)
    monkeypatch.setattr(store, "write_bytes", full)
    refuses("No space left", import_bigmoe, TINY, store, error=OSError)
    assert store.trace_ids() == store.unfinished_ids() == []


def test_contamination_flags(store: Store, tmp_path: Path) -> None:
    body = [line.rstrip("\n").split(",") for line in BODY]
    for row in body:
        row[5], row[6] = row[4], "0.5"  # every token chooses experts 0 and 1 with equal weights
    path = tmp_path / "warmup.csv"
    path.write_text("".join(HEAD).replace("tiny-moe", "OLMoE-1B-7B") + "".join(",".join(r) + "\n" for r in body))
    flags = store.open(import_bigmoe(path, store)).manifest.flags
    assert flags["repeated_tokens_frac"] == 1.0
    assert flags["uniform_weights_frac"] == 1.0
    assert flags["top_k_override"] == {"recorded": 2, "model": 8}  # as OLMoE was published
    assert "duplicate_prompts" not in flags  # the prompts have different lengths


def test_prompts_that_are_split_or_given_twice(store: Store, tmp_path: Path) -> None:
    turn_0 = [line for line in BODY if line.startswith("0,")]
    path = tmp_path / "twice.csv"
    path.write_text("".join(HEAD + turn_0 + ["1" + line[1:] for line in turn_0]))
    assert store.open(import_bigmoe(path, store)).manifest.flags["duplicate_prompts"] == 1
    # An engine with a small batch runs all layers for the first part of a prompt, then for the rest.
    prefill = [line for line in BODY if line.startswith("0,0,") and line.split(",")[3] != "2"]
    by_part = sorted(prefill, key=lambda line: int(line.split(",")[2]) >= 3)  # stable: layer-major within each part
    path = tmp_path / "split.csv"
    path.write_text("".join(HEAD + by_part))
    passes = store.open(import_bigmoe(path, store)).read("passes")
    assert passes["n_tokens"].to_list() == [3, 2]
    assert passes["kind"].to_list() == ["prefill", "prefill"]

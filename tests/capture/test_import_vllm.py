"""Importer of vLLM's routed experts: each layout it has had, one request or many, and every way they can be wrong."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import importer_cases
import numpy as np
import pytest
from importer_routings import npy_text

from tokentape.capture.importers.limits import BadImport
from tokentape.capture.importers.vllm import import_vllm
from tokentape.warehouse.tape import Store, Tape

CONFIG = importer_cases.CONFIG | {"architectures": ["Qwen3MoeForCausalLM"], "num_key_value_heads": 2, "head_dim": 16}
P, G, L, K = 6, 5, 2, 4


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    ids = rng.random((P + G, L, 16)).argsort(axis=2)[:, :, :K].astype(np.int16)
    return {"prompt_routed_experts": ids[:P], "routed_experts": ids[P:]}


def save(folder: Path, content: dict[str, np.ndarray], config: dict[str, object] | None = None) -> tuple[Path, Path]:
    npz, config_path = folder / "request.npz", folder / "config.json"
    np.savez(npz, **content)
    config_path.write_text(json.dumps(CONFIG if config is None else config))
    return npz, config_path


def test_vllm_round_trip(store: Store, tmp_path: Path) -> None:
    content = arrays() | {"prompt_token_ids": np.arange(100, 100 + P), "token_ids": np.arange(200, 200 + G + 1)}
    tape = store.open(import_vllm(*save(tmp_path, content), store))
    assert tape.geometry.moe_layers == (1, 2)
    assert tape.manifest.flags == {}
    routing, tokens = tape.read("routing"), tape.read("tokens")
    assert routing["gate_weights"].null_count() == len(routing) == (P + G) * L
    assert routing.filter(pass_id=0)["layer"].to_list() == [1] * P + [2] * P
    back = np.array(routing.sort("position", "layer")["expert_ids"].to_list()).reshape(P + G, L, K)
    assert (back[:P] == content["prompt_routed_experts"]).all()
    assert (back[P:] == content["routed_experts"]).all()
    assert tokens["token_id"].to_list() == [*range(100, 100 + P), *range(200, 200 + G)]  # the last token is no pass's input
    assert tokens["pass_id"].to_list() == [0] * P + list(range(1, G + 1))
    requests = tape.read("requests")
    assert (requests["n_prompt_tokens"][0], requests["n_output_tokens"][0]) == (P, G + 1)
    assert len(requests["prompt_sha256"][0]) == 64


def test_arrays_without_token_ids_or_of_a_smaller_top_k(store: Store, tmp_path: Path) -> None:
    tape = store.open(import_vllm(*save(tmp_path, arrays()), store))
    assert tape.read("tokens")["token_id"].null_count() == P + G
    assert tape.read("requests")["prompt_sha256"][0] is None
    assert tape.read("requests")["n_output_tokens"][0] == G + 1  # the last one is no pass's input
    content = {name: ids[:, :, :3] for name, ids in arrays().items()}
    tape = store.open(import_vllm(*save(tmp_path, content), store))
    assert tape.geometry.top_k == 3
    assert tape.manifest.flags == {"top_k_override": {"recorded": 3, "model": 4}}


@pytest.mark.parametrize("with_tokens", [True, False])
def test_vllm_row_of_the_last_token_is_dropped(with_tokens: bool, store: Store, tmp_path: Path) -> None:
    content = arrays()
    content["routed_experts"] = np.concatenate((content["routed_experts"], np.zeros((1, L, K), np.int16)))
    if with_tokens:
        content |= {"prompt_token_ids": np.arange(P), "token_ids": np.arange(G + 1)}
    tape = store.open(import_vllm(*save(tmp_path, content), store))
    assert tape.manifest.rows["tokens"] == P + G
    assert list(tape.manifest.flags) == ["last_row_dropped"]


# ----------------------------------------------------------------------------------------------------- one array, JSON, many


def whole(seed: int = 0) -> np.ndarray:
    """Rows of prompt and generated tokens in one array, as newer versions return them."""
    return np.concatenate(list(arrays(seed).values()))


def padded(ids: np.ndarray) -> np.ndarray:
    """All layers, the dense first one filled with zeros."""
    return np.concatenate((np.zeros((len(ids), 1, K), ids.dtype), ids), axis=1)


def response(seed: int = 0, **changes: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "token_ids": list(range(200, 201 + G)),
        "routed_experts": npy_text(padded(whole(seed)).astype(np.uint8)),
    }
    usage = {"prompt_tokens": P, "completion_tokens": G + 1}
    return {"model": "m", "choices": [choice | changes], "usage": usage, "prompt_token_ids": list(range(100, 100 + P))}


def from_server(store: Store, folder: Path, *bodies: dict[str, Any], config: dict[str, object] | None = None) -> Tape:
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    path = folder / "responses.jsonl"
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    return store.open(import_vllm(path, folder / "config.json", store))


def ids_of(tape: Tape, request: int = 0) -> np.ndarray:
    rows = tape.read("routing").filter(request_id=request).sort("position", "layer")
    return np.array(rows["expert_ids"].to_list()).reshape(-1, L, K)


@pytest.mark.parametrize("known", [("prompt_token_ids",), ("token_ids",), ("prompt_token_ids", "token_ids")])
@pytest.mark.parametrize("pad", [False, True], ids=["MoE layers", "all layers"])
def test_one_array_of_prompt_and_output(known: tuple[str, ...], pad: bool, store: Store, tmp_path: Path) -> None:
    tokens = {"prompt_token_ids": np.arange(100, 100 + P), "token_ids": np.arange(200, 201 + G)}
    content = {"routed_experts": padded(whole()) if pad else whole()} | {name: tokens[name] for name in known}
    tape = store.open(import_vllm(*save(tmp_path, content), store))
    assert tape.geometry.moe_layers == (1, 2)
    assert (ids_of(tape) == whole()).all()
    assert tape.read("passes")["n_tokens"].to_list() == [P, *[1] * G]
    assert tape.read("requests")["n_prompt_tokens"].to_list() == [P]
    assert tape.read("requests")["n_output_tokens"].to_list() == [G + 1]
    assert tape.manifest.flags == {}


def test_a_server_s_lines_are_one_tape_of_many_requests(store: Store, tmp_path: Path) -> None:
    usage_alone = {name: value for name, value in response(1).items() if name != "prompt_token_ids"}
    usage_alone["choices"] = [{"index": 0, "routed_experts": npy_text(whole(1)), "token_ids": None}]
    two = response(2)
    two["choices"].append(two["choices"][0] | {"index": 1, "routed_experts": npy_text(whole(3)[: P + 2]), "token_ids": [7, 8, 9]})
    two["usage"]["completion_tokens"] = G + 1 + 3
    without = {"choices": [{"index": 0, "routed_experts": None}], "usage": None}
    tape = from_server(store, tmp_path, response(0), usage_alone, without, two)
    for request, ids in enumerate((whole(0), whole(1), whole(2), whole(3)[: P + 2])):
        assert (ids_of(tape, request) == ids).all()
    requests = tape.read("requests")
    assert requests["n_prompt_tokens"].to_list() == [P] * 4
    assert requests["n_output_tokens"].to_list() == [G + 1, G + 1, G + 1, 3]
    assert requests["prompt_sha256"].is_null().to_list() == [False, True, False, False]
    assert tape.read("tokens").filter(request_id=3)["token_id"].to_list() == [*range(100, 100 + P), 7, 8]
    assert tape.manifest.flags == {"without_experts": 1, "duplicate_prompts": 2}
    assert tape.read("passes")["request_ids"].to_list() == [[0]] * (G + 1) + [[1]] * (G + 1) + [[2]] * (G + 1) + [[3]] * 3
    assert "one after another" in tape.manifest.settings["order"]


def test_lists_of_v0_21_and_the_prompt_s_at_the_response(store: Store, tmp_path: Path) -> None:
    parts = arrays()
    body = response(0, routed_experts=parts["routed_experts"].tolist()) | {
        "prompt_routed_experts": parts["prompt_routed_experts"].tolist()
    }
    assert (ids_of(from_server(store, tmp_path, body)) == whole()).all()


@pytest.mark.parametrize("none", [None, []])
def test_an_answer_of_one_token_has_the_prompt_s_rows_alone(none: list[int] | None, store: Store, tmp_path: Path) -> None:
    body = {"prompt_routed_experts": whole()[:P].tolist(), "choices": [{"index": 0, "routed_experts": none}]}
    tape = from_server(store, tmp_path, body | {"usage": {"prompt_tokens": P, "completion_tokens": 1}})
    assert (ids_of(tape) == whole()[:P]).all()
    assert tape.read("requests").select("n_prompt_tokens", "n_output_tokens").rows() == [(P, 1)]


def test_a_completion_of_several_prompts(store: Store, tmp_path: Path) -> None:
    """Its usage is the sum of its prompts: it says nothing of one of them."""
    one = {"routed_experts": npy_text(whole()), "prompt_token_ids": list(range(P)), "token_ids": list(range(G + 1))}
    other = {"routed_experts": npy_text(whole(1)[1:]), "prompt_token_ids": list(range(P - 1)), "token_ids": list(range(G + 1))}
    usage = {"prompt_tokens": 2 * P - 1, "completion_tokens": 2 * G + 2}
    body = {"object": "text_completion", "choices": [one, other], "usage": usage}
    tape = from_server(store, tmp_path, body)
    assert (ids_of(tape, 1) == whole(1)[1:]).all()
    assert tape.read("requests")["n_prompt_tokens"].to_list() == [P, P - 1]
    body["choices"] = [{"routed_experts": npy_text(whole()[: P + 2])}] * 2
    with pytest.raises(BadImport, match="choice 0: routed_experts does not say where the prompt ends"):
        from_server(store, tmp_path, body | {"usage": {"prompt_tokens": P, "completion_tokens": 6}})


def test_several_files_are_one_tape_in_the_order_given(store: Store, tmp_path: Path) -> None:
    paths = []
    for seed in (3, 1):
        paths.append(tmp_path / f"{seed}.npz")
        np.savez(paths[-1], routed_experts=whole(seed), prompt_token_ids=np.arange(P))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    tape = store.open(import_vllm(paths, tmp_path / "config.json", store))
    assert (ids_of(tape, 0) == whole(3)).all()
    assert (ids_of(tape, 1) == whole(1)).all()
    assert tape.manifest.settings["files"] == ["3.npz", "1.npz"]


def test_an_import_loads_nothing_that_it_can_do_without(tmp_path: Path) -> None:
    (tmp_path / "responses.jsonl").write_text(json.dumps(response()), encoding="utf-8-sig")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    script = f"""
import sys
from tokentape.capture.importers.vllm import import_vllm
from tokentape.warehouse.tape import Store
import_vllm({str(tmp_path / "responses.jsonl")!r}, {str(tmp_path / "config.json")!r}, Store({str(tmp_path / "store")!r}))
print(sorted({{"pandas", "polars", "pyarrow.compute", "numba", "torch"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

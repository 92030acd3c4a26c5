"""SGLang's routed experts: responses of both endpoints, dumps of the recorder, and how they can be wrong.

MoE layers 1 and 2 of three, top 4 of 16 experts (importer_cases.CONFIG). Files are made as the places define them that
importers/sglang.py cites.
"""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from importer_cases import config_of

from tokentape.capture.importers.sglang import import_sglang
from tokentape.warehouse.tape import Store, Tape

torch = pytest.importorskip("torch")
P, N = 3, 2
# [P + N - 1][layers][k]; layer 0 is dense: zeros.
ROWS = [[[0] * 4, [t, t + 1, t + 2, t + 3], [15 - t, 14 - t, 13 - t, 12 - t]] for t in range(P + N - 1)]
EXPERTS = base64.b64encode(struct.pack(f"<{(P + N - 1) * 12}i", *np.ravel(ROWS).tolist())).decode()
COUNTS = {"prompt_tokens": P, "completion_tokens": N}
LOGPROBS = {
    "input_token_logprobs": [[None, 7, None], [-0.5, 8, None], [-0.25, 9, None]],
    "output_token_logprobs": [[-0.1, 10, None], [-0.2, 11, None]],
}
GENERATE = {"text": "ab", "output_ids": [10, 11], "meta_info": {"id": "r", **COUNTS, **LOGPROBS, "routed_experts": EXPERTS}}
CHAT = {"choices": [{"index": 0, "message": {}}], "usage": COUNTS, "sglext": {"routed_experts": EXPERTS}}


def responded(folder: Path, store: Store, *bodies: Any) -> Tape:
    path = folder / "responses.jsonl"
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    return store.open(import_sglang([path], config_of(path), store))


def ids_of(tape: Tape, request: int) -> list[list[list[int]]]:
    rows = tape.read("routing").filter(request_id=request).sort("position", "layer")["expert_ids"].to_list()
    return [rows[i : i + 2] for i in range(0, len(rows), 2)]


def test_responses_of_both_endpoints(store: Store, tmp_path: Path) -> None:
    answer = {"meta_info": {**COUNTS, "routed_experts": ROWS}}
    listed = {"choices": [{}, answer], "usage": {"prompt_tokens": P, "completion_tokens": 2 * N}}  # usage is of both
    tape = responded(tmp_path, store, GENERATE, CHAT, listed, {"text": "", "meta_info": COUNTS})
    assert [ids_of(tape, request) for request in range(3)] == [[row[1:] for row in ROWS]] * 3
    requests, tokens = tape.read("requests"), tape.read("tokens")
    assert requests["n_prompt_tokens"].to_list() == [P] * 3
    assert requests["n_output_tokens"].to_list() == [N] * 3
    assert tokens.filter(request_id=0)["token_id"].to_list() == [7, 8, 9, 10]  # the last one is no pass's input
    assert tokens.filter(request_id=1)["token_id"].null_count() == P + N - 1
    assert tape.read("passes")["n_tokens"].to_list() == [P, *[1] * (N - 1)] * 3
    assert tape.manifest.flags == {"without_experts": 1, "duplicate_prompts": 1}
    assert tape.manifest.settings["importer"] == "sglang"
    batches = responded(tmp_path, store, [GENERATE, GENERATE], [GENERATE])  # an answer to several prompts is a list of them
    assert batches.read("requests")["n_prompt_tokens"].to_list() == [P] * 3


def record(number: int, mode: int, tokens: list[int], positions: list[int], lengths: list[int] | None) -> dict[str, Any]:
    """A pass as _DetailSinglePassGatherer.collect has it: all layers, eight places, -1 where nothing was chosen."""
    ids = torch.full((3, len(tokens), 8), -1, dtype=torch.int32)
    for at, (token, position) in enumerate(zip(tokens, positions, strict=True)):
        for layer in (1, 2) if token >= 0 else ():
            ids[layer, at, :4] = torch.tensor([(token + position + layer + i) % 16 for i in range(4)], dtype=torch.int32)
    found = {"input_ids": tokens, "positions": positions, "extend_seq_lens": lengths, "forward_mode": mode}
    counts = torch.zeros((3, 18), dtype=torch.int32)
    more = {"topk_ids_of_layer": ids, "misc_objects": [], "global_physical_count": counts}
    return {"forward_pass_id": number, "rank": 0, "gatherer_key": "primary", **found, **more}


def chosen(token: int, position: int, physical: dict[int, int] | None = None) -> list[list[int]]:
    return [[(physical or {}).get((token + position + layer + i) % 16, (token + position + layer + i) % 16) for i in range(4)]
            for layer in (1, 2)]  # fmt: skip


MAP = torch.arange(18).repeat(3, 1)
MAP[:, 0], MAP[:, 16:] = 5, 0  # a replica of expert 0 where 16 and 17 are; the place of 0 holds a copy of 5


def dumped(path: Path, store: Store, *records: dict[str, Any]) -> Tape:
    torch.save({"records": list(records), "last_physical_to_logical_map": MAP}, path)
    return store.open(import_sglang([path], config_of(path), store))


def test_a_recorder_s_dump_is_cut_into_requests(store: Store, tmp_path: Path) -> None:
    tape = dumped(
        tmp_path / "expert_distribution_recorder_1_0.pt",
        store,
        record(0, 1, [20, 21, 30], [0, 1, 0], [2, 1]),  # two prompts
        record(1, 1, [40, 41], [64, 65], [2]),  # one whose first 64 tokens a prefix cache held
        record(2, 2, [22, 31, 42, -1], [2, 1, 66, 0], None),  # all three decode; a padded place
        record(3, 2, [23, 43], [3, 67], None),  # the second has ended
        record(4, 1, [], [], []),
    )
    places = [[(20, 0), (21, 1), (22, 2), (23, 3)], [(30, 0), (31, 1)], [(40, 64), (41, 65), (42, 66), (43, 67)]]
    assert [ids_of(tape, request) for request in range(3)] == [[chosen(t, p, {0: 5}) for t, p in of] for of in places]
    tokens, requests = tape.read("tokens"), tape.read("requests")
    assert tokens.filter(request_id=0)["token_id"].to_list() == [20, 21, 22, 23]
    assert tokens.filter(request_id=2)["position"].to_list() == [64, 65, 66, 67]
    assert requests["n_prompt_tokens"].to_list() == [2, 1, 66]
    assert requests["n_output_tokens"].to_list() == [2, 1, 2]
    assert tape.manifest.flags == {"missing_prefill": {"requests": 1, "tokens": 64}, "padded_tokens": 1}


def test_a_turn_whose_history_a_cache_held_is_a_request_of_its_own(store: Store, tmp_path: Path) -> None:
    tape = dumped(
        tmp_path / "d.pt",
        store,
        record(0, 1, [1, 2, 3], [0, 1, 2], [3]),
        record(1, 2, [4], [3], None),
        record(2, 2, [5], [4], None),
        record(3, 1, [6, 7], [5, 6], [2]),  # the cache holds all five
        record(4, 2, [8], [7], None),
    )
    requests = tape.read("requests")
    assert requests["n_prompt_tokens"].to_list() == [3, 7]
    assert requests["n_output_tokens"].to_list() == [2, 1]
    assert tape.manifest.flags == {"missing_prefill": {"requests": 1, "tokens": 5}}


def test_prompts_join_those_that_decode_and_requests_of_the_same_token_are_counted(store: Store, tmp_path: Path) -> None:
    tape = dumped(
        tmp_path / "d.pt",
        store,
        record(0, 1, [1, 2, 3], [0, 1, 2], [3]),
        record(1, 2, [4], [3], None),
        record(2, 1, [11, 12, 13, 14], [0, 1, 2, 3], [4]),  # both go on at position 4
        record(3, 2, [5, 15], [4, 4], None),
    )
    tokens = tape.read("tokens")
    assert [tokens.filter(request_id=i)["token_id"].to_list() for i in (0, 1)] == [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15]]
    tape = dumped(tmp_path / "d.pt", store, record(0, 1, [1, 2], [0, 0], [1, 1]), record(1, 2, [3, 4], [1, 1], None))
    assert tape.read("tokens").filter(request_id=1)["token_id"].to_list() == [2, 4]
    assert tape.manifest.flags["requests_inferred"] == 1

"""A tape's attention as the KV engine reads it, and a replay of it with its rows in the store."""

from __future__ import annotations

import json

from tokentape.policies.kv import KVPolicy
from tokentape.replay.kv.replay import KVReplay, replay_kv
from tokentape.replay.kv.tape import PIECE_BYTES, AttentionTape
from tokentape.warehouse.results import write_together
from tokentape.warehouse.tape import Store


def attention_tape(store: Store, trace: str) -> AttentionTape:
    """The tape by id. Raises BadTape where it holds no attention or no requests."""
    tape = store.open(trace)
    tape.files("attention")
    told = tape.read("requests").select("request_id", "n_prompt_tokens", "n_output_tokens").iter_rows()
    requests = {request_id: (n_prompt, n_prompt + max(0, n_output - 1)) for request_id, n_prompt, n_output in told}
    longest = max((n for _, n in requests.values()), default=1)
    n_rows = max(tape.manifest.attention.get("n_kv_heads", 1), PIECE_BYTES // (4 * longest))
    of, pieces = tape.manifest, lambda: tape.batches("attention", n_rows)
    return AttentionTape(tape.trace_id, of.origin, tape.geometry, of.attention, requests, pieces)


def run(store: Store, trace: str, policy: KVPolicy, renorm: bool, exact: bool) -> KVReplay:
    """Replays the tape and writes tables kv_replays, kv_heads and kv_timeline."""
    found = replay_kv(attention_tape(store, trace), policy, renorm, exact)
    write_together(store, found.tables, "kv_replays", json.dumps(found.replay, sort_keys=True))
    return found

"""KV eviction on made-up attention: (head, step, slot) updates per CPU second against a plain numpy peer that must agree.

AERP as the Kelle study runs it: per head, ten sinks, half of the budget recent, popular tokens tracked. The replay is measured
whole, from record batches to rows of a table.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tokentape.policies.kv.importance import AERP
from tokentape.replay.kv.replay import replay_kv
from tokentape.replay.kv.tape import AttentionTape
from tokentape.warehouse.models import load

N_LAYERS, N_HEADS, N_PROMPT, N_STEPS, N_STEPS_PEER = 4, 8, 512, 512, 64
POLICY = AERP(256)
Floats = NDArray[np.float32]


def made_up_attention(seed: int = 0) -> tuple[Floats, Floats]:
    """(prompt (L, H, c) column sums, rows (T, L, H, c + T)): a taste per head and key, noise, softmax over what was seen."""
    rng = np.random.default_rng(seed)
    n = N_PROMPT + N_STEPS
    taste = 2 * rng.normal(size=(N_LAYERS, N_HEADS, n))
    prompt = np.zeros((N_LAYERS, N_HEADS, N_PROMPT), np.float32)
    rows = np.zeros((N_STEPS, N_LAYERS, N_HEADS, n), np.float32)
    for t in range(n):
        mass = np.exp(taste[:, :, : t + 1] + rng.normal(size=(N_LAYERS, N_HEADS, t + 1)))
        mass /= mass.sum(axis=-1, keepdims=True)
        if t < N_PROMPT:
            prompt[:, :, : t + 1] += mass.astype(np.float32)
        else:
            rows[t - N_PROMPT, :, :, : t + 1] = mass
    return prompt, rows


def _piece(positions: NDArray[np.int64], reduction: str, masses: list[Floats]) -> pl.DataFrame:
    n = len(masses)
    heads = N_LAYERS * N_HEADS
    bounds = np.concatenate(([0], np.cumsum([len(m) for m in masses]))).astype(np.int32)
    columns = {
        "request_id": np.zeros(n, np.uint32),
        "position": positions.astype(np.int32),
        "layer": np.tile(np.repeat(np.arange(N_LAYERS), N_HEADS), n // heads).astype(np.uint16),
        "kv_head": np.tile(np.arange(N_HEADS), n // heads * N_LAYERS).astype(np.uint16),
        "reduction": pa.array([reduction] * n),
        "n_queries": np.ones(n, np.uint32),
        "key_positions": pa.array([None] * n, pa.list_(pa.int32())),
        "mass": pa.ListArray.from_arrays(pa.array(bounds), pa.array(np.concatenate(masses))),
        "rest": np.zeros(n, np.float32),
    }
    return pl.DataFrame(pa.table(columns))


def _tape(prompt: Floats, rows: Floats) -> AttentionTape:
    heads = N_LAYERS * N_HEADS
    pieces = [_piece(np.full(heads, N_PROMPT - 1), "column_sum", list(prompt.reshape(heads, -1)))]
    for first in range(0, N_STEPS, 64):
        steps = np.arange(first, first + 64)
        masses = [rows[t, layer, head, : N_PROMPT + t + 1] for t in steps for layer in range(N_LAYERS) for head in range(N_HEADS)]
        pieces.append(_piece(np.repeat(N_PROMPT + steps, heads), "row", masses))
    shape = {"n_layers": N_LAYERS, "hidden": 1024, "n_heads": N_HEADS, "n_kv_heads": N_HEADS, "head_dim": 128}
    geometry = load("llama-2-7b").geometry.model_copy(update=shape)
    notes = {"keep": "full", "n_kv_heads": N_HEADS, "query_heads_per_kv_head": 1}
    return AttentionTape("bench", "synthetic", geometry, notes, {0: (N_PROMPT, N_PROMPT + N_STEPS)}, lambda: pieces)


def peer(prompt: Floats, rows: Floats, n_steps: int) -> NDArray[np.float64]:
    """Kept mass (n_steps, L, H) of the same policy: numpy over a layer's heads, one step at a time, and what is popular."""
    budget, sink, recent = POLICY.limits
    n, kept_mass = N_PROMPT + N_STEPS, np.zeros((n_steps, N_LAYERS, N_HEADS))
    for layer in range(N_LAYERS):
        score = np.zeros((N_HEADS, n))
        score[:, :N_PROMPT] = prompt[layer]
        held = np.zeros((N_HEADS, n), bool)
        held[:, :sink] = held[:, N_PROMPT - recent : N_PROMPT] = True
        best = np.argsort(-score[:, sink : N_PROMPT - recent], axis=1, kind="stable")[:, : budget - sink - recent] + sink
        np.put_along_axis(held, best, True, axis=1)
        is_x = held.sum(axis=0) > POLICY.theta * N_HEADS
        for t in range(n_steps):
            now = N_PROMPT + t
            held[:, now] = True
            row = rows[t, layer].astype(np.float64) * held
            kept_mass[t, layer] = row.sum(axis=1)
            score += row * (rows[t, layer].astype(np.float64).sum(axis=1) / row.sum(axis=1))[:, None]
            free = held.copy()
            free[:, :sink] = free[:, now - recent + 1 :] = False
            held[np.arange(N_HEADS), np.argmin(np.where(free, score, np.inf), axis=1)] = False
            is_x[now - recent] |= held[:, now - recent].sum() > POLICY.theta * N_HEADS
            is_x &= held.any(axis=0)
    return kept_mass


def bench() -> dict[str, Any]:
    """Updates per CPU second of the replay, and the ratio to the peer."""
    prompt, rows = made_up_attention()
    tape, best = _tape(prompt, rows), float("inf")
    for _ in range(4):  # the first loads the compiled kernels
        started = time.process_time()
        result = replay_kv(tape, POLICY)
        best = min(best, time.process_time() - started)
    rate = result.replay["n_updates"] / best
    short = _tape(prompt, rows)
    first = AttentionTape(
        short.trace_id,
        short.origin,
        short.geometry,
        short.notes,
        short.requests,
        lambda: list(short.pieces())[: 1 + N_STEPS_PEER // 64],
    )
    started = time.process_time()
    theirs = peer(prompt, rows, N_STEPS_PEER)
    peer_s = time.process_time() - started
    ours = replay_kv(first, POLICY).replay
    assert abs(ours["kept_mass_frac"] - theirs.mean()) < 1e-6, "the peer keeps other tokens"
    ratio = rate / (ours["n_updates"] / peer_s)
    print(
        f"KV eviction, AERP of {POLICY.budget}    {rate / 1e6:6.1f} M updates/s, numpy peer {rate / ratio / 1e6:4.1f} M, "
        f"ratio {ratio:5.1f}"
    )
    return {"kv_aerp_updates_per_cpu_s": round(rate), "kv_aerp_ratio_vs_numpy": round(ratio, 1)}


if __name__ == "__main__":
    print(bench())

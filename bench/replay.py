"""Replay throughput against libCacheSim in CPU time; memory of 100 M lookups; the first replay in a new process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.peer import peer_run
from tokentape.policies.cache import EACH, ExpertCache
from tokentape.policies.residency import CACHES
from tokentape.policies.resolve import resolve
from tokentape.replay.curve import stack_distances
from tokentape.replay.exports.oracle import oracle_general
from tokentape.replay.trace import DECODE, Trace
from tokentape.warehouse.geometry import Geometry

N_LAYERS, N_EXPERTS, TOP_K = 48, 128, 8


def decode_keys(n_tokens: int, seed: int = 0) -> NDArray[np.int32]:
    """Lookups of a decode with 48 layers, 128 experts, top-8: Zipf(0.8) per layer, drawn without repeats per token."""
    rng = np.random.default_rng(seed)
    log_weights = -0.8 * np.log(np.arange(1, N_EXPERTS + 1))
    keys = np.empty((n_tokens, N_LAYERS, TOP_K), np.int32)
    for layer in range(N_LAYERS):
        noise = log_weights + rng.gumbel(size=(n_tokens, N_EXPERTS)).astype(np.float32)
        chosen = np.argpartition(-noise, TOP_K, axis=1)[:, :TOP_K]
        keys[:, layer] = rng.permutation(N_EXPERTS)[chosen] + layer * N_EXPERTS
    return keys.ravel()


def timed_replay(keys: NDArray[np.int32], policy: Any, n_keys: int, capacity: int, repeats: int = 3) -> tuple[float, float]:
    """Miss ratio and best CPU seconds of one global, serial cache of unit-sized experts; Belady's next-use pass included."""
    best = float("inf")
    for _ in range(repeats):
        cache = ExpertCache(
            CACHES[policy]() if isinstance(policy, str) else policy, np.ones(n_keys, np.int64), np.zeros(n_keys, np.int32),
            np.array([capacity], np.int64),
        )  # fmt: skip
        started = time.process_time()
        hits = cache.advance(keys)
        best = min(best, time.process_time() - started)
    return 1.0 - float(hits.mean()), best


def against_peer(keys: NDArray[np.int32], n_keys: int, label: str) -> dict[str, Any]:
    """Lookups per CPU second and ratio to libCacheSim per policy, at a quarter of the experts; miss ratios must agree."""
    capacity, report = n_keys // 4, {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.oracleGeneral"
        oracle_general(keys).tofile(path)
        for policy in ("lru", "lfu", "sieve", "slru", "s3-fifo", "arc", "gdsf", "belady"):
            if policy == "s3-fifo" and capacity < 20:
                continue  # the peer's small queue, a tenth, then holds nothing, and all misses
            timed_replay(keys[:1000], policy, n_keys, capacity, 1)  # load the compiled kernels
            ours_miss, ours_s = timed_replay(keys, policy, n_keys, capacity)
            peer = [peer_run(path, policy, capacity) for _ in range(3)]
            peer_miss, peer_s = peer[0][0], min(seconds for _, seconds in peer)
            assert round(ours_miss, 6) == round(peer_miss, 6), (policy, ours_miss, peer_miss)
            report[f"{policy}_lookups_per_cpu_s"] = round(keys.size / ours_s)
            report[f"{policy}_ratio_vs_libcachesim"] = round(peer_s / ours_s, 2)
            print(
                f"{label}: {policy:7s} {keys.size / ours_s / 1e6:7.1f} M lookups/s, libcachesim {keys.size / peer_s / 1e6:6.1f}, "
                f"ratio {peer_s / ours_s:5.2f}, miss ratio {ours_miss:.6f} in both"
            )
    histogram = np.zeros(n_keys + 1, np.int64)
    stack_distances(keys[:1000], EACH, n_keys, histogram)
    seconds = []
    for _ in range(3):
        started = time.process_time()
        stack_distances(keys, EACH, n_keys, histogram)
        seconds.append(time.process_time() - started)
    report["all_capacities_lookups_per_cpu_s"] = round(keys.size / min(seconds))
    print(f"{label}: all {n_keys} LRU capacities at once {keys.size / min(seconds) / 1e6:.1f} M lookups/s")
    return report


_HUNDRED_MILLION = """
import numpy as np
from bench.memory import peak_bytes
from bench.replay import N_LAYERS, decode_trace
from tokentape.hw.spec import load
from tokentape.policies.lru import LRU
from tokentape.replay.experts import replay
from tokentape.replay.semantics import Semantics
trace = decode_trace(100_000_000)
capacity = trace.geometry.n_experts * N_LAYERS // 4 * trace.geometry.expert_bytes("int4")[0]
replay(trace, LRU(), load("phone-lpddr5x-ufs4"), Semantics("global"), capacity, "int4")
print(peak_bytes())
"""


def decode_trace(n_lookups: int) -> Trace:
    """A trace of `n_lookups` decode lookups, one token per pass: 1 M of them, repeated."""
    block = decode_keys(2_605).reshape(-1, TOP_K) % N_EXPERTS
    n_rows = n_lookups // TOP_K
    rows = np.arange(n_rows, dtype=np.int64)
    row_pass = (rows // N_LAYERS).astype(np.int32)
    n_passes = int(row_pass[-1]) + 1
    passes, ones = np.arange(n_passes, dtype=np.int64), np.ones(n_passes, np.int64)
    geometry = Geometry(
        architecture="bench", n_layers=N_LAYERS, hidden=2048, n_heads=32, n_kv_heads=4, head_dim=128, vocab=151_936,
        moe_layers=tuple(range(N_LAYERS)), n_experts=N_EXPERTS, top_k=TOP_K, expert_intermediate=768,
    )  # fmt: skip
    return Trace(
        trace_id="bench", origin="synthetic", geometry=geometry, row_pass=row_pass, row_layer=(rows % N_LAYERS).astype(np.int32),
        row_request=np.zeros(n_rows, np.int32), row_position=row_pass, offsets=np.arange(n_rows + 1, dtype=np.int64) * TOP_K,
        ids=np.resize(block.astype(np.int32).ravel(), n_rows * TOP_K), pass_ids=passes,
        pass_kind=np.full(n_passes, DECODE, np.uint8), pass_tokens=ones,
        member_offsets=np.arange(n_passes + 1, dtype=np.int64), members=np.zeros(n_passes, np.int64),
    )  # fmt: skip


def in_new_process(*command: str) -> tuple[str, float]:
    """Output and wall seconds of `python *command` as a fresh process."""
    started = time.perf_counter()
    output = subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True).stdout
    return output, time.perf_counter() - started


def bench(keys: NDArray[np.int32], n_keys: int, store: str, trace_id: str) -> dict[str, Any]:
    """All figures. keys, n_keys: lookups and number of experts of the captured tape `trace_id` in `store`."""
    report = against_peer(decode_keys(26_041), N_LAYERS * N_EXPERTS, "synthetic")
    own = resolve("residency", str(Path(__file__).parents[1] / "docs/examples/my_cache.py:DecayedLFU"), {})
    drawn = decode_keys(26_041)
    timed_replay(drawn[:1000], own, N_LAYERS * N_EXPERTS, 1000, 1)  # compile its rank
    _, seconds = timed_replay(drawn, own, N_LAYERS * N_EXPERTS, N_LAYERS * N_EXPERTS // 4)
    report["own_ranked_lookups_per_cpu_s"] = round(drawn.size / seconds)
    print(f"a ranked policy of one's own {drawn.size / seconds / 1e6:.1f} M lookups/s")
    of_tape = against_peer(np.tile(keys, max(1, 5_000_000 // keys.size)), n_keys, "captured")
    report |= {f"captured_{name}": value for name, value in of_tape.items()}
    peak, _ = in_new_process("-c", _HUNDRED_MILLION)
    report["peak_rss_bytes_100m_lookups"] = int(peak)
    replay = (
        "-m",
        "tokentape.flows.cli",
        "replay",
        trace_id,
        "--policy",
        "lru",
        "--capacity",
        "50%",
        "--scope",
        "global",
        "--store",
        store,
    )
    in_new_process(*replay)
    report["first_replay_s"] = round(min(in_new_process(*replay)[1] for _ in range(3)), 3)
    report["cli_help_s"] = round(in_new_process("-m", "tokentape.flows.cli", "--help")[1], 3)
    print(
        f"100 M lookups replayed and costed in {int(peak) / 2**30:.2f} GiB; `tokentape replay` in a new process "
        f"{report['first_replay_s']} s, `tokentape --help` {report['cli_help_s']} s"
    )
    return report

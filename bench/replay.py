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

from bench.peer import peer_run, write_trace
from policies import CACHES
from policies.cache import EACH, ExpertCache
from replay.curve import stack_distances

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


def timed_replay(keys: NDArray[np.int32], policy: str, n_keys: int, capacity: int, repeats: int = 3) -> tuple[float, float]:
    """Miss ratio and best CPU seconds of one global, serial cache of unit-sized experts; Belady's next-use pass included."""
    best = float("inf")
    for _ in range(repeats):
        cache = ExpertCache(
            CACHES[policy](), np.ones(n_keys, np.int64), np.zeros(n_keys, np.int32), np.array([capacity], np.int64)
        )
        started = time.process_time()
        hits = cache.advance(keys)
        best = min(best, time.process_time() - started)
    return 1.0 - float(hits.mean()), best


def against_peer(keys: NDArray[np.int32], n_keys: int, label: str) -> dict[str, Any]:
    """Lookups per CPU second and ratio to libCacheSim per policy, at a quarter of the experts; miss ratios must agree."""
    capacity, report = n_keys // 4, {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.oracleGeneral"
        write_trace(keys, path)
        for policy in ("lru", "lfu", "belady"):
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
import resource
import numpy as np
from bench.replay import N_EXPERTS, N_LAYERS, decode_keys, timed_replay
keys = np.tile(decode_keys(2605), 101)[:100_000_000]
timed_replay(keys, "lru", N_LAYERS * N_EXPERTS, N_LAYERS * N_EXPERTS // 4, 1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""

_FIRST_REPLAY = """
from policies import LRU
from policies.cache import ExpertCache
import numpy as np
cache = ExpertCache(LRU(), np.ones(64, np.int64), np.zeros(64, np.int32), np.array([16], np.int64))
cache.advance(np.arange(64, dtype=np.int32))
"""


def in_new_process(code: str) -> tuple[str, float]:
    """Output and wall seconds of `code` in a fresh interpreter."""
    started = time.perf_counter()
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return output, time.perf_counter() - started


def bench(captured: tuple[NDArray[np.int32], int] | None) -> dict[str, Any]:
    """All figures; `captured`: lookups and number of experts of a captured tape, measured beside the synthetic one."""
    report = against_peer(decode_keys(26_041), N_LAYERS * N_EXPERTS, "synthetic")
    if captured is not None:
        keys, n_keys = captured
        of_tape = against_peer(np.tile(keys, max(1, 5_000_000 // keys.size)), n_keys, "captured")
        report |= {f"captured_{name}": value for name, value in of_tape.items()}
    peak, _ = in_new_process(_HUNDRED_MILLION)
    report["peak_rss_bytes_100m_lookups"] = int(peak)
    in_new_process(_FIRST_REPLAY)
    report["first_replay_s"] = round(in_new_process(_FIRST_REPLAY)[1], 3)
    print(f"100 M lookups peak at {int(peak) / 2**30:.2f} GiB; first replay in a new process {report['first_replay_s']} s")
    return report

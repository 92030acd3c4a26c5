"""Experts that are fetched before their layer asks for them (policies/prefetch), in the loop.

At an event the policy foretells a later layer's experts. They are looked up with the event's own, before them: those that are
missing are admitted as the cache's policy says, no member of the event leaves for them, and those that are there count as used.
What is admitted crosses the link beside the layers up to its own, an equal part beside each. A cache per layer is asked twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tokentape.policies.kernels import (
    array,
    dispatcher_of,
    float64,
    function,
    int16,
    int32,
    int64,
    kernel,
    tuple_of,
    uint8,
    uint64,
    zeros_of,
)
from tokentape.policies.prefetch.oracle import Oracle
from tokentape.policies.prefetch.rule import PREDICT_SIGNATURE, Prefetcher
from tokentape.policies.slots import System, slots_of
from tokentape.replay.system.recorded import Recorded

# Entries of `numbers`, empty without a policy: experts of a prediction, layers to its target, 1 if it sees them, the first row
# that foretells anything, and lookups made for predictions, a counter.
N, DISTANCE, SEES, FROM, N_TOLD = range(5)
_I1, _K1, _F1, _F3 = array(int64, 1), array(int32, 1), array(float64, 1), array(float64, 3)
# numbers; gates (rows, MoE layers, k), or empty: every choice weighs 1; tokens, weights, scores (E,): scratch; the policy's
# memory and parameters; moving (MoE layers,): experts on their way beside each; is_unused (K,): fetched ahead, yet to be used.
AHEAD = tuple_of(_I1, _F3, _F1, _F1, _F1, _F3, _F1, _F1, array(uint8, 1))
PREDICT = function(PREDICT_SIGNATURE)


@kernel(uint64(int64, _I1, int64, int64, array(int16, 3), PREDICT, AHEAD, _K1), allocates=False)
def foretell(m, rows, n_rows, n_then, ids, predict, ahead, keys):  # type: ignore[no-untyped-def]
    """Keys of what the policy expects after layer m's event, rows[:n_rows], the best last; returns how many. n_then: rows of the
    target's event."""
    numbers, gates, tokens, weights, scores, memory, params, _, _ = ahead
    n_layers, n_experts, k = ids.shape[1], tokens.shape[0], ids.shape[2]
    target = (m + numbers[DISTANCE]) % n_layers
    tokens[:] = 0.0
    weights[:] = 0.0
    scores[:] = 0.0
    n_active = int64(0)
    for i in range(n_rows):
        if rows[i] < numbers[FROM]:
            continue
        for j in range(k):
            e = ids[rows[i], m, j]
            if e >= 0:
                n_active += tokens[e] == 0.0
                tokens[e] += 1.0
                weights[e] += gates[rows[i], m, j] if gates.shape[0] > 0 else 1.0
    if numbers[SEES]:
        for i in range(n_then):
            for j in range(k):
                e = ids[rows[i], target, j]
                if e >= 0:
                    scores[e] += 1.0
    predict(m, target, tokens, weights, memory, params, scores)
    n_told = int64(0)
    if target <= m:
        return uint64(0)
    most = numbers[N] if numbers[N] > 0 else n_experts if numbers[SEES] else n_active
    while n_told < most:
        best = int64(-1)
        for e in range(n_experts):
            if scores[e] > 0.0 and (best < 0 or scores[e] > scores[best]):
                best = e
        if best < 0:
            break
        scores[best] = 0.0
        keys[n_told] = target * n_experts + best
        n_told += 1
    for i in range(n_told // 2):
        keys[i], keys[n_told - 1 - i] = keys[n_told - 1 - i], keys[i]
    return uint64(n_told)


@kernel(int64(int64, uint64, uint64, _K1, array(uint8, 1), array(uint8, 1), _I1, AHEAD), allocates=False)
def take_stock(m, n_told, end, keys, hits, is_there, sizes, ahead):  # type: ignore[no-untyped-def]
    """Once layer m's event is looked up, behind the n_told foretold keys: marks those that were fetched and forgets its own.
    hits becomes 1 for foretold keys that were fetched, 0 for others. is_there (E,): of the target's experts. Returns how many of
    its own hits are the prefetch's."""
    numbers, _, _, _, _, _, _, moving, is_unused = ahead
    n_experts, n_used = is_there.shape[0], int64(0)
    for i in range(n_told):
        key = keys[i]
        hits[i] = not hits[i] and is_there[key % n_experts]
        if hits[i]:
            is_unused[key] = 1
            for beside in range(m, m + numbers[DISTANCE]):
                moving[beside] += sizes[key] / (sizes[beside * n_experts] * numbers[DISTANCE])
    for i in range(n_told, end):
        n_used += is_unused[keys[i]] and hits[i]
        is_unused[keys[i]] = 0
    return n_used


def ahead_of(policy: Prefetcher | None, recorded: Recorded, has_gates: bool) -> tuple[Any, tuple[Any, ...]]:
    """PREDICT and AHEAD of a run that starts now."""
    if policy is None:
        return Oracle.predict.compiled, zeros_of(AHEAD)
    n_layers, n_experts = recorded.ids.shape[1], recorded.geometry.n_experts
    n_rows = round(policy.profiled_frac * int(recorded.first[-1]))
    numbers = [policy.n, policy.distance, policy.sees, 0 if policy.is_bound else n_rows, 0]
    gates = np.ascontiguousarray(recorded.gates) if has_gates else np.zeros((0, 0, 0))
    memory = np.ascontiguousarray(policy.memory(recorded.ids[:n_rows], n_experts), np.float64)
    scratch = (np.zeros(n_experts) for _ in range(3))
    marks = np.zeros(n_layers), np.zeros(n_layers * n_experts, np.uint8)
    return dispatcher_of(policy.predict, PREDICT_SIGNATURE), (
        np.array(numbers, np.int64), gates, *scratch, memory, np.asarray(policy.params(), float), *marks,
    )  # fmt: skip


def refuse_prefetch(system: System) -> None:
    """Raises ValueError, in one line, where no cache can take what is fetched ahead, and where nothing can be foretold."""
    policy, cache, place = system.prefetch, system.residency, system.place
    if policy is None:
        return
    if system.sliced is not None:
        raise ValueError(f"system {system.name}: SliceMoE admits slices by a miss budget of its own; leave prefetch out")
    if place is not None and "residency" in slots_of("place", place):
        raise ValueError(
            f"system {system.name}: {type(place).__name__} says what lies in the fast tier, and prefetch needs a cache; leave "
            "out one of them"
        )
    if cache is None:
        raise ValueError(
            f"system {system.name}: prefetch fetches into a cache, and there is none; add residency = {{ policy = 'lru' }}"
        )
    if cache.kind == "future":
        raise ValueError(
            f"system {system.name}: a bound needs a fixed schedule of lookups, and prefetch makes its own; leave prefetch out"
        )
    if policy.sees and system.route is not None:
        raise ValueError(
            f"system {system.name}: a router decides by what is resident, so that {type(policy).__name__} cannot see what the "
            "next layer takes; leave route or prefetch out"
        )

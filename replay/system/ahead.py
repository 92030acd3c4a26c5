"""Experts that are fetched before their layer asks for them (policies/prefetch), in the loop.

At an event the policy foretells a later layer's experts. They are looked up with the event's own, before them: those that are
missing are admitted as the cache's policy says, no member of the event leaves for them, and those that are there count as used.
What is admitted crosses the link beside the layers up to its own, an equal part beside each. A cache per layer is asked twice.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tokentape.policies import kernels as kn
from tokentape.policies.cache import needs_of
from tokentape.policies.kernels import dispatcher_of, function, int64, kernel, numbers_of, tuple_of, uint64, void, zeros_of
from tokentape.policies.prefetch.rule import PREDICT_SIGNATURE, Oracle, Prefetcher
from tokentape.policies.protocol import CACHE, LOOK_UP, RANK_SIGNATURE
from tokentape.policies.slots import System, slots_of
from tokentape.replay.system.recorded import Recorded

# Entries of `numbers`, empty without a policy: experts of a prediction, layers to its target, 1 if it sees them, the first row
# that foretells anything; of the last event how many were fetched ahead, and how many of its hits were; lookups for predictions.
N, DISTANCE, SEES, FROM, N_FETCHED, N_USED, N_TOLD = range(7)
# numbers; gates (rows, MoE layers, k), or empty: every choice weighs 1; tokens, weights, scores (E,): scratch; the policy's
# memory and parameters; beside (MoE layers,): experts on their way beside each; is_unused (K,): fetched ahead, yet to be used;
# keys, hits (2 E,), bounds (2,): scratch, what is foretold and then the event's own.
AHEAD = tuple_of(kn.I64, kn.F32_3D, kn.F64, kn.F64, kn.F64, kn.F64_3D, kn.F64, kn.F64, kn.U8, kn.I32, kn.U8, kn.I64)
PREDICT = function(PREDICT_SIGNATURE)


@kernel(uint64(int64, kn.I64, int64, int64, kn.I16_3D, PREDICT, AHEAD), allocates=False)
def _foretell(m, rows, n_rows, n_then, ids, predict, ahead):  # type: ignore[no-untyped-def]
    """Keys of what the policy expects after layer m's event, the best last; returns how many."""
    numbers, gates, tokens, weights, scores, memory, params, _, _, keys, _, _ = ahead
    n_layers, n_experts, k = ids.shape[1], tokens.shape[0], ids.shape[2]
    target = (m + numbers[DISTANCE]) % n_layers
    tokens[:] = 0.0
    weights[:] = 0.0
    scores[:] = 0.0
    n_active = n_told = int64(0)
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
    most = numbers[N] if numbers[N] > 0 else n_experts if numbers[SEES] else n_active
    if m + numbers[DISTANCE] >= n_layers:
        return uint64(0)
    for e in range(n_experts):  # by rising score; of equals the lowest number last
        score = scores[e]
        if score != score:
            raise FloatingPointError("predict scored an expert NaN; a score must be a number")
        if not score > 0.0 or (n_told == most and not (most > 0 and score > scores[keys[0]])):
            continue
        if n_told < most:
            at = n_told
            n_told += 1
            while at > 0 and scores[keys[at - 1]] >= score:
                keys[at] = keys[at - 1]
                at -= 1
        else:
            at = int64(0)
            while at + 1 < n_told and scores[keys[at + 1]] < score:
                keys[at] = keys[at + 1]
                at += 1
        keys[at] = e
    for i in range(n_told):
        keys[i] += target * n_experts
    return uint64(n_told)


_OF_EVENT = (int64, kn.I64, int64, int64, kn.I16_3D, int64, int64, uint64, kn.I32, kn.U8)
_OF_CACHE = (function(LOOK_UP), kn.F32, kn.F32, function(RANK_SIGNATURE), CACHE)


@kernel(void(*_OF_EVENT, *_OF_CACHE, PREDICT, AHEAD), allocates=False)
def look_up_ahead(  # type: ignore[no-untyped-def]
    m, rows, n_rows, n_then, ids, event, n_lookups, n_own, own, own_hits, look_up, gates, scores, rank_of, cache, predict, ahead
):
    """Looks up the n_own keys of layer m's event, rows[:n_rows], behind what it foretells. n_then: rows of the target's event;
    event, n_lookups: those before it; gates, scores: empty."""
    numbers, _, _, _, _, _, _, beside, is_unused, keys, hits, bounds = ahead
    n_told, n_experts = _foretell(m, rows, n_rows, n_then, ids, predict, ahead), keys.shape[0] // 2
    end, n_lookups = n_told + n_own, n_lookups + numbers[N_TOLD]
    for i in range(n_own):
        keys[n_told + i] = own[i]
    first = uint64(0)
    if cache.capacity.shape[0] > 1:  # those of another layer are another cache's
        bounds[1] = n_told
        look_up(event, n_lookups, keys[:n_told], bounds, gates, scores, rank_of, cache, hits[:n_told])
        first = n_told
    bounds[1] = end - first
    look_up(event, n_lookups + int64(first), keys[first:end], bounds, gates, scores, rank_of, cache, hits[first:end])
    numbers[N_TOLD] += n_told
    numbers[N_FETCHED] = numbers[N_USED] = 0
    for i in range(n_told):
        key = keys[i]
        if not hits[i] and cache.resident[key]:
            numbers[N_FETCHED] += 1
            is_unused[key] = 1
            for layer in range(m, m + numbers[DISTANCE]):
                beside[layer] += cache.sizes[key] / (cache.sizes[layer * n_experts] * numbers[DISTANCE])
    for i in range(n_own):
        own_hits[i] = hits[n_told + i]
        numbers[N_USED] += is_unused[own[i]] and own_hits[i]
        is_unused[own[i]] = 0


def ahead_of(policy: Prefetcher | None, recorded: Recorded, has_gates: bool) -> tuple[Any, tuple[Any, ...]]:
    """PREDICT and AHEAD of a run that starts now. Raises ValueError for a distance that no layer has another behind it at."""
    if policy is None:
        return dispatcher_of(Oracle.predict, PREDICT_SIGNATURE), zeros_of(AHEAD)
    n_layers, n_experts = recorded.ids.shape[1], recorded.geometry.n_experts
    if policy.distance >= n_layers:
        raise ValueError(f"prefetch.distance {policy.distance}: nothing lies so far ahead in {n_layers} MoE layers; give less")
    n_rows = round(policy.profile_frac * int(recorded.first[-1]))
    numbers = [policy.n, policy.distance, policy.sees, 0 if policy.is_bound else n_rows, 0, 0, 0]
    gates = np.ascontiguousarray(recorded.gates) if has_gates else np.zeros((0, 0, 0), np.float32)
    memory = np.ascontiguousarray(policy.memory(recorded.ids[:n_rows], n_experts), np.float64)
    if memory.ndim != 3:
        raise ValueError(f"{type(policy).__name__}.memory has shape {memory.shape}; it must be (MoE layers, M, experts)")
    scratch = (np.zeros(n_experts) for _ in range(3))
    marks = np.zeros(n_layers), np.zeros(n_layers * n_experts, np.uint8)
    asked = np.zeros(2 * n_experts, np.int32), np.zeros(2 * n_experts, np.uint8), np.zeros(2, np.int64)
    return dispatcher_of(policy.predict, PREDICT_SIGNATURE), (
        np.array(numbers, np.int64), gates, *scratch, memory, numbers_of(policy), *marks, *asked,
    )  # fmt: skip


def refuse_prefetch(system: System) -> None:
    """Raises ValueError, in one line, where no cache can take what is fetched ahead, and where nothing can be foretold."""
    for said in _objections(system) if system.prefetch is not None else ():
        raise ValueError(f"system {system.name}: {said}")


def _objections(system: System) -> Iterator[str]:
    policy, cache, place = system.prefetch, system.residency, system.place
    if system.sliced is not None:
        yield "SliceMoE admits slices by a miss budget of its own; leave prefetch out"
    if place is not None and "residency" in slots_of("place", place):
        yield f"{type(place).__name__} says what lies in the fast tier, and prefetch needs a cache; leave out one of them"
    if cache is None:
        yield "prefetch fetches into a cache, and there is none; add residency = { policy = 'lru' }"
    if cache.kind == "future":
        yield "a bound needs a fixed schedule of lookups, and prefetch makes its own; leave prefetch out"
    if needs := needs_of(cache):
        what = f"{type(cache).__name__} reads {' and '.join(needs)} of lookups"
        yield f"{what}, and what is fetched ahead has none; leave prefetch out"
    if policy.sees and system.route is not None:
        yield (
            f"a router decides by what is resident, so that {type(policy).__name__} cannot see what the next layer takes; leave "
            "route or prefetch out"
        )

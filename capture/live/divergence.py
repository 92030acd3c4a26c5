"""How far a tape's replay of a KV policy is from the same policy inside the model: which tokens either retains, step by step.

Open loop: the attention that the unmodified model pays, scaled to what the policy retains. Closed loop: the attention of a model
that has lost the rest. Policies that never look at attention agree at every step; what others differ by grows with depth.
"""

from typing import Any

import numpy as np

from tokentape.capture import models
from tokentape.capture.attention import AttentionCapture
from tokentape.capture.evaluate import key_of
from tokentape.capture.live.caches import windows_of
from tokentape.capture.live.loop import Pass, Request, Sampling, decode
from tokentape.capture.live.quality import requests_of, run_in, windows
from tokentape.capture.live.slots import Inside
from tokentape.capture.live.system import SystemTried
from tokentape.policies.kv import KVPolicy
from tokentape.policies.kv.slots import Slots, salts_of

Trail = list[list[np.ndarray]]  # by pass and layer: positions (batch, heads, slots), -1: none


def divergence(loaded: models.Loaded, dataset: str, run: SystemTried, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of table `kv_divergence`, one per layer, over the windows of `run`, at most one batch of them."""
    requests, slot = requests_of(windows(loaded, dataset, run, seed), run), run.kv(loaded, seed, keeps_trail=True)
    assert slot is not None
    with models.suitable_threads(loaded.model):
        opened = open_trail(loaded.model, slot.policy, requests, loaded.pad_id)
        with Inside(loaded.model, slot) as inside:
            run_in(loaded, requests, inside)
    key = key_of(loaded, run.name, run.parameters, dataset, seed)
    return [
        key | {"layer": layer, "n_steps": len(opened), "same_frac": same, "identical_frac": equal}
        for layer, (same, equal) in enumerate(agreement(opened, slot.trail))
    ]


def agreement(opened: Trail, closed: Trail) -> list[tuple[float, float]]:
    """By layer: share of the closed loop's tokens that the open loop retains, and share of (step, head) that are identical."""
    found = []
    for layer in range(len(closed[0])):
        same, equal = [], []
        for ours, theirs in zip(opened, closed, strict=True):
            for a, b in zip(_sets(ours[layer]), _sets(theirs[layer]), strict=True):
                same.append(np.intersect1d(a, b).size / b.size)
                equal.append(np.array_equal(a, b))
        found.append((float(np.mean(same)), float(np.mean(equal))))
    return found


def _sets(positions: np.ndarray) -> list[np.ndarray]:
    return [np.sort(held[held >= 0]) for held in positions.reshape(-1, positions.shape[-1])]


def open_trail(model: Any, policy: KVPolicy, requests: list[Request], pad_id: int) -> Trail:
    """What the policy retains after every pass when it only watches. requests: forced, of equal length: none is padded."""
    trail: Trail = []
    slots: list[Slots] = []
    n_rows = len(requests)
    with AttentionCapture(model) as attention:
        sliding = windows_of(model)
        n_sets = attention.n_kv_heads if policy.is_per_head else 1

        def watch(done: Pass) -> None:
            if done.kind == "prefill":
                slots.extend(Slots(policy, np.tile(salts_of(layer, n_sets), n_rows)) for layer in range(len(sliding)))
            for layer, seen in attention.take().masses.items():
                mass = seen.cpu().numpy().astype(np.float64)
                if done.kind == "prefill":
                    slots[layer].start(_by_set(mass, n_sets), window=sliding[layer])
                else:
                    _step(slots[layer], mass, done.width, n_sets, sliding[layer])
            by_set = [s.positions.reshape(n_rows, n_sets, -1) for s in slots]
            trail.append([np.repeat(of, attention.n_kv_heads // n_sets, axis=1) for of in by_set])

        decode(model, requests, Sampling(), frozenset(), pad_id, on_pass=watch)
    return trail


def _step(slots: Slots, mass: np.ndarray, width: int, n_sets: int, window: int) -> None:
    """mass (batch, heads, keys): the last `keys` positions of `width`."""
    batch, heads, n_keys = mass.shape
    now = np.full(batch * n_sets, width - 1)
    slots.place(now)
    at = np.repeat(slots.positions.reshape(batch, n_sets, -1), heads // n_sets, axis=1) - (width - n_keys)
    kept = np.where(at >= 0, np.take_along_axis(mass, np.maximum(at, 0), axis=2), 0.0)
    kept *= mass.sum(axis=2, keepdims=True) / kept.sum(axis=2, keepdims=True)
    slots.settle(_by_set(kept, n_sets), now, window)


def _by_set(mass: np.ndarray, n_sets: int) -> np.ndarray:
    batch, heads, n = mass.shape
    return np.ascontiguousarray(mass.reshape(batch * n_sets, heads // n_sets, n).sum(axis=1))

"""Sliced serving on made-up logits: (token, layer) events per CPU second against a plain numpy and dictionary peer.

The peer serves the same events with the same rules (stock or Cache-Prior routing, high-bit or critical precision, no budget) and
must agree on every expert and every byte.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.sliced import Controller, SliceMoE
from tokentape.policies.sliced.cache_prior import CachePrior
from tokentape.policies.sliced.precision import Critical, HighBit
from tokentape.policies.sliced.ranking import Stock
from tokentape.replay.system.routes import slices_of
from tokentape.warehouse.models import load

N_TOKENS, N_TOKENS_PEER, CAPACITY_BYTES = 4000, 100, 2_400_000_000
SYSTEMS = {
    "lru_high_bit": SliceMoE(Stock(), precision=HighBit()),
    "cache_prior_high_bit": SliceMoE(CachePrior(0.2), precision=HighBit()),
    "dbsc": SliceMoE(Stock(), precision=Critical(0.35)),
    "cache_prior_dbsc": SliceMoE(CachePrior(0.2), precision=Critical(0.35)),
}
Floats = NDArray[np.float32]


def made_up_logits(n_tokens: int, n_layers: int, n_experts: int, seed: int = 0) -> Floats:
    """(n_tokens x n_layers, E) f32: a fixed taste per layer, a drift from token to token (AR(1), 0.6) and noise."""
    rng = np.random.default_rng(seed)
    taste, drift = 0.5 * rng.standard_t(4, (n_layers, n_experts)), rng.normal(size=(n_layers, n_experts))
    logits = np.empty((n_tokens, n_layers, n_experts), np.float32)
    for token in logits:
        token[:] = 1.5 * (taste + 0.5 * drift + rng.normal(size=taste.shape))
        drift = 0.6 * drift + 0.8 * rng.normal(size=taste.shape)
    return logits.reshape(-1, n_experts)


class Peer:
    """What a person would write: numpy per event, two dictionaries in order of use."""

    def __init__(
        self, strength: float, protect: int, tau: float | None, msb: int, lsb: int, n_layers: int, n_experts: int
    ) -> None:
        self.strength, self.protect, self.tau, self.k = strength, protect, tau, 6
        self.unit, self.lsb_bytes = (msb + lsb, 0) if tau is None else (msb, lsb)
        self.msb: dict[tuple[int, int], None] = {}
        self.lsb: dict[tuple[int, int], None] = {}
        self.resident = np.zeros((n_layers, n_experts), np.float32)
        self.spread = np.zeros((n_layers, 2))

    def _insert(self, slices: dict[tuple[int, int], None], key: tuple[int, int], pinned: set[tuple[int, int]]) -> None:
        size = self.unit if slices is self.msb else self.lsb_bytes
        while len(self.msb) * self.unit + len(self.lsb) * self.lsb_bytes + size > CAPACITY_BYTES:
            victim = next((k for k in self.lsb if k not in pinned), None)
            if victim is not None:
                del self.lsb[victim]
                continue
            victim = next(k for k in self.msb if k not in pinned)
            del self.msb[victim]
            self.resident[victim] = 0
        slices[key] = None
        if slices is self.msb:
            self.resident[key] = 1

    def event(self, layer: int, values: Floats, gates: Floats) -> tuple[list[int], int]:
        """Experts by falling gate, and bytes read from Flash."""
        boosted = values
        if self.strength:
            self.spread[layer] += values.max() - values.min(), 1
            bonus = np.float32(self.strength * self.spread[layer, 0] / self.spread[layer, 1])
            liked = self.resident[layer].copy()
            liked[np.argsort(-values, kind="stable")[: self.protect]] = 1
            boosted = values + bonus * liked
        chosen = np.argsort(-boosted, kind="stable")[: self.k]
        chosen = chosen[np.argsort(-gates[chosen], kind="stable")]
        keys = [(layer, int(e)) for e in chosen]
        pinned, flash, total = set(keys), 0, float(gates[chosen].sum(dtype=np.float64))
        for key in keys:
            if key in self.msb:
                self.msb[key] = self.msb.pop(key)
            else:
                flash += self.unit
                self._insert(self.msb, key, pinned)
            if self.tau is not None and float(gates[key[1]]) > self.tau * total:
                if key in self.lsb:
                    self.lsb[key] = self.lsb.pop(key)
                else:
                    flash += self.lsb_bytes
                    self._insert(self.lsb, key, pinned)
        return [e for _, e in keys], flash


def bench() -> dict[str, Any]:
    """Events per CPU second of four systems on DeepSeek-V2-Lite's geometry at 2.4 GB, and the ratio to the peer."""
    geometry = load("deepseek-v2-lite").geometry
    n_layers, n_experts, report = len(geometry.moe_layers), geometry.n_experts, {}
    values = made_up_logits(N_TOKENS, n_layers, n_experts)
    gates = np.exp(values)
    gates /= gates.sum(axis=1, keepdims=True)
    layer = np.tile(np.arange(n_layers, dtype=np.int32), N_TOKENS)
    n_peer = N_TOKENS_PEER * n_layers
    for name, system in SYSTEMS.items():
        msb, lsb = slices_of(geometry, system.cache)
        best = float("inf")
        for _ in range(4):  # the first loads the compiled kernels
            controller = Controller(system, n_layers, n_experts, geometry.top_k, msb, lsb, CAPACITY_BYTES)
            started = time.process_time()
            events = controller.decode(layer, values, gates)
            best = min(best, time.process_time() - started)
        tau = system.precision.tau if system.precision.is_sliced else None
        peer = Peer(system.router.strength, getattr(system.router, "protect", 0), tau, msb, lsb, n_layers, n_experts)
        started = time.process_time()
        served = [peer.event(int(layer[i]), values[i], gates[i]) for i in range(n_peer)]
        peer_s = time.process_time() - started
        assert [ids for ids, _ in served] == events.ids[:n_peer].tolist(), f"{name}: the peer routes otherwise"
        assert [flash for _, flash in served] == events.flash_bytes[:n_peer].tolist(), f"{name}: the peer reads other bytes"
        rate, ratio = layer.size / best, (layer.size / best) / (n_peer / peer_s)
        report[f"sliced_{name}_events_per_cpu_s"] = round(rate)
        report[f"sliced_{name}_ratio_vs_numpy"] = round(ratio, 1)
        print(
            f"sliced serving, {name:20s} {rate / 1e6:5.2f} M events/s, numpy peer {rate / ratio / 1e3:5.1f} k, ratio {ratio:5.1f}"
        )
    return report

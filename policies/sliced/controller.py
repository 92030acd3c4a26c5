"""Sliced serving, event by event: what its kernels hold, and one sequence's rows through them.

It decides and counts; it moves no weights and knows no time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.sliced import state as at
from tokentape.policies.sliced.event import serve_rows
from tokentape.policies.sliced.ranking import compiled
from tokentape.policies.sliced.warmup import begin_decode, begin_prompt, clear, warm_up

if TYPE_CHECKING:
    from tokentape.policies.sliced import SliceMoE

Floats = NDArray[np.float32]
Flags = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Events:
    """What n (token, layer) events did. ids (n, k) i32: the experts applied, by falling gate.

    (n, k) u8: is_high, computed at high precision; msb_hit, lsb_hit: the slice was resident; lsb_needed: the expert asked for its
    LSB slice; degraded: it asked and went without. (n,) i64: flash_bytes read from Flash, dram_bytes of slices read from DRAM,
    those just fetched among them; n_lookups of experts: of a prompt's layer each once, by the first row that names it.
    """

    ids: NDArray[np.int32]
    is_high: Flags
    msb_hit: Flags
    lsb_hit: Flags
    lsb_needed: Flags
    degraded: Flags
    flash_bytes: NDArray[np.int64]
    dram_bytes: NDArray[np.int64]
    n_lookups: NDArray[np.int64]


class State:
    """What the kernels hold of `system` over a model of n_layers x n_experts, for n_requests that share a cache.

    msb_bytes, lsb_bytes: the two slices of one expert; lsb_bytes 0: equal widths, no LSB slices. capacity_bytes: of the one cache
    of all layers; a slice larger than it is streamed. first: number of the first request, by which a random warm-up draws. Raises
    ValueError on sizes that cannot be and a router that does not fit.
    """

    def __init__(
        self,
        system: SliceMoE,
        n_layers: int,
        n_experts: int,
        top_k: int,
        msb_bytes: int,
        lsb_bytes: int,
        capacity_bytes: int,
        seed: int = 0,
        n_requests: int = 1,
        first: int = 0,
    ) -> None:
        if min(msb_bytes, n_layers) < 1 or min(lsb_bytes, capacity_bytes) < 0 or not 0 < top_k <= n_experts:
            raise ValueError(
                f"sliced cache: {n_layers} layers of {n_experts} experts, top {top_k}, slices of {msb_bytes} and {lsb_bytes} B "
                f"in {capacity_bytes} B cannot be; sizes must be positive and top_k at most the experts"
            )
        self.system, self.n_layers, self.n_experts, self.top_k = system, n_layers, n_experts, top_k
        self.high_bytes = msb_bytes + lsb_bytes
        precision, cache, budget, router, warmup = system.precision, system.cache, system.budget, system.router, system.warmup
        self.choose = compiled(router)
        is_sliced = precision.is_sliced and lsb_bytes > 0
        whole = precision.is_high and not is_sliced
        sizes = (
            capacity_bytes, self.high_bytes if whole else msb_bytes, lsb_bytes if is_sliced else 0, self.high_bytes, is_sliced,
            precision.is_high, cache.lsb_policy == "after_use", cache.skip_lsb_when_over_budget, system.free_steps, budget.kind,
            warmup.kind, router.needs_scores, top_k if router.n_natural is None else min(router.n_natural, top_k),
        )  # fmt: skip
        limits = (
            precision.tau, budget.target_frac, budget.cap_steps, budget.gain, budget.decay, warmup.lsb_share_frac,
            router.strength,
        )  # fmt: skip
        n_keys = n_layers * n_experts
        is_drawn = warmup.kind == at.RANDOM
        draws = [np.random.default_rng([seed, 1 + i]).permutation(n_keys) for i in range(n_requests if is_drawn else 0)]
        params, links = router.params(n_layers, n_experts), 2 * (n_keys + 1)
        self.arrays = (
            np.array(sizes, np.int64), np.array(limits, np.float64), np.zeros(6, np.int64), np.zeros((n_requests, 3), np.int64),
            np.zeros(n_requests), np.zeros(2), params.copy(), params, np.zeros((3, n_keys)),
            np.array(draws, np.int64).reshape(-1, n_keys), np.zeros(links, np.uint32), np.zeros(links, np.uint32),
            np.zeros(n_keys, np.uint8), np.zeros(n_keys, np.uint8), np.full(n_keys, -1, np.int64), np.full(n_keys, -1, np.int64),
            np.full((2, n_experts), -1, np.int64), np.zeros((2, n_experts), np.int64), np.zeros((1, top_k), np.int64),
            np.zeros((1, top_k), np.int64), np.zeros(1, np.uint8), np.zeros((2, n_layers), np.int64),
        )  # fmt: skip
        self._seed, self._clock, self._pulls = seed, self.arrays[2], self.arrays[5]
        self._msb_link, self._lsb_link, self._msb_in, self._lsb_in = self.arrays[10:14]
        self._clock[at.GENERATION] = first
        clear(self.arrays)

    @property
    def used_bytes(self) -> int:
        return int(self._clock[at.USED])

    @property
    def msb_resident(self) -> NDArray[np.bool_]:
        """(L, E) whose MSB slice (or whole expert) is resident."""
        return np.asarray(self._msb_in.reshape(self.n_layers, -1) == 1)

    @property
    def lsb_resident(self) -> NDArray[np.bool_]:
        """(L, E) whose LSB slice is resident."""
        return np.asarray(self._lsb_in.reshape(self.n_layers, -1) == 1)

    @property
    def strength(self) -> float:
        """The router's pull towards the cache now; only a soft budget moves it."""
        return float(self._pulls[at.STRENGTH])

    @property
    def miss_frac(self) -> float:
        """High-bit-normalised miss rate after the free steps so far: Flash bytes / (accesses x high-bit bytes); nan before."""
        n_accesses = int(self._clock[at.COUNTED_EVENTS]) * self.top_k
        return int(self._clock[at.COUNTED_FLASH]) / (n_accesses * self.high_bytes) if n_accesses else float("nan")


class Controller(State):
    """One sequence at a time, with a cache of its own: prefill, end_prefill, decode, and again. What a live model drives."""

    _in_prefill = False

    def prefill(self, layer: NDArray[np.int32], values: Floats, gates: Floats) -> Events:
        """Rows of a prompt, layer by layer in the model's order; several calls make one prompt until `end_prefill`.

        Arguments and errors as `decode`. Every expert a layer's run of rows needs is loaded once, at high precision (low-bit: its
        MSB slice); the first row that needs it carries its bytes.
        """
        if not self._in_prefill:
            self._in_prefill = True
            begin_prompt(self.arrays)
        return self.decode(layer, values, gates)

    def end_prefill(self) -> None:
        """Puts the cache into the warm-up's state and begins a generation: step 0 comes next."""
        self._in_prefill = False
        if self.system.warmup.kind == at.RANDOM:
            rng = np.random.default_rng([self._seed, 1 + int(self._clock[at.GENERATION])])
            self.arrays[9][:] = rng.permutation(self.n_layers * self.n_experts)
        warm_up(self.arrays)
        begin_decode(0, self.arrays)

    def decode(self, layer: NDArray[np.int32], values: Floats, gates: Floats) -> Events:
        """n events in the order executed: token by token, layer by layer; a token begins where `layer` does not increase.

        layer (n,) i32 in 0..n_layers-1; values (n, E) f32: what the model's family ranks experts by, -inf for those it rules out;
        gates (n, E) f32: the weight of every expert before the top k. Raises ValueError on wrong shapes, and on a row with fewer
        than top_k experts to choose from (NaN or -inf), after which the controller's state is not to be used.
        """
        layers = np.ascontiguousarray(layer, np.int64)
        values, gates = np.ascontiguousarray(values, np.float32), np.ascontiguousarray(gates, np.float32)
        wanted = (layers.size, self.n_experts)
        if layers.ndim != 1 or values.shape != wanted or gates.shape != wanted:
            raise ValueError(
                f"sliced cache: layer {layers.shape}, values {values.shape} and gates {gates.shape} do not fit; give (n,) and "
                f"twice (n, {self.n_experts})"
            )
        if layers.size and not 0 <= layers.min() <= layers.max() < self.n_layers:
            raise ValueError(
                f"sliced cache: layers run from {layers.min()} to {layers.max()}; they must lie in 0..{self.n_layers - 1}"
            )
        made = results(layers.size, self.top_k)
        bad = serve_rows(self.choose, self.n_layers, self._in_prefill, layers, values, gates, self.arrays, *made)
        if bad >= 0:
            raise ValueError(
                f"sliced cache: event {bad} (layer {layers[bad]}) has fewer than {self.top_k} experts to choose from; its scores "
                "hold NaN or -inf"
            )
        assert self.used_bytes <= self.arrays[0][at.CAPACITY], "the cache holds more than its capacity"
        return events_of(*made)

    def decode_together(self, layer: NDArray[np.int32], values: Floats, gates: Floats) -> Events:
        """As `decode` of rows of one layer that are one step: tokens of one pass, of which only the first begins a token."""
        if layer.size == 1:
            return self.decode(layer, values, gates)
        found = []
        for i in range(layer.size):
            if i:
                self.arrays[3][0, at.LAST_LAYER] = -1
            found.append(self.decode(layer[i : i + 1], values[i : i + 1], gates[i : i + 1]))
        return Events(*(np.concatenate([getattr(e, name.name) for e in found]) for name in fields(Events)))


Made = tuple[NDArray[np.int32], Flags, NDArray[np.int64]]


def results(n: int, k: int) -> Made:
    """What the kernels fill for n rows: ids (n, k), flags (5, n, k), moved (n, 3)."""
    return np.empty((n, k), np.int32), np.zeros((5, n, k), np.uint8), np.zeros((n, 3), np.int64)


def events_of(ids: NDArray[np.int32], flags: Flags, moved: NDArray[np.int64]) -> Events:
    return Events(ids, *flags, *moved.T)

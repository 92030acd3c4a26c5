"""Sliced serving, event by event: one object for a recorded tape and for a live model.

It decides and counts; it moves no weights and knows no time. One sequence at a time: prefill, end_prefill, decode, and again.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.sliced import state as at
from tokentape.policies.sliced.decode import drop_used_lsb, run_decode
from tokentape.policies.sliced.prefill import load_prompt, route_prompt
from tokentape.policies.sliced.ranking import compiled
from tokentape.policies.sliced.warmup import Prefilled

if TYPE_CHECKING:
    from tokentape.policies.sliced import SliceMoE

Floats = NDArray[np.float32]
Flags = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Events:
    """What n (token, layer) events did. ids (n, k) i32: the experts applied, by falling gate.

    (n, k) u8: is_high, computed at high precision; msb_hit, lsb_hit: the slice was resident; lsb_needed: the expert asked for its
    LSB slice; degraded: it asked and went without. (n,) i64: flash_bytes read from Flash, dram_bytes of slices read from DRAM,
    those just fetched among them.
    """

    ids: NDArray[np.int32]
    is_high: Flags
    msb_hit: Flags
    lsb_hit: Flags
    lsb_needed: Flags
    degraded: Flags
    flash_bytes: NDArray[np.int64]
    dram_bytes: NDArray[np.int64]


class Controller:
    """Runs `system` over a model of n_layers x n_experts.

    msb_bytes, lsb_bytes: the two slices of one expert; lsb_bytes 0: equal widths, no LSB slices. capacity_bytes: of the one cache
    of all layers; a slice larger than it is streamed. Raises ValueError on sizes that cannot be and a router that does not fit.
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
    ) -> None:
        if min(msb_bytes, n_layers) < 1 or min(lsb_bytes, capacity_bytes) < 0 or not 0 < top_k <= n_experts:
            raise ValueError(
                f"sliced cache: {n_layers} layers of {n_experts} experts, top {top_k}, slices of {msb_bytes} and {lsb_bytes} B "
                f"in {capacity_bytes} B cannot be; sizes must be positive and top_k at most the experts"
            )
        self.system, self.n_layers, self.n_experts, self.top_k = system, n_layers, n_experts, top_k
        self.high_bytes, self._seed, self._generation = msb_bytes + lsb_bytes, seed, 0
        precision, cache, budget, router = system.precision, system.cache, system.budget, system.router
        self._select = compiled(router.select)
        self._params, self._table = router.params(), router.table(n_layers, n_experts)
        is_sliced = precision.is_sliced and lsb_bytes > 0
        whole = precision.is_high and not is_sliced
        self._sizes = np.array(
            [
                capacity_bytes, msb_bytes + lsb_bytes if whole else msb_bytes, lsb_bytes if is_sliced else 0, self.high_bytes,
                is_sliced, precision.is_high, cache.lsb_policy == "after_use", cache.skip_lsb_when_over_budget, system.free_steps,
                budget.kind,
            ],
            np.int64,
        )  # fmt: skip
        self._limits = np.array([precision.tau, budget.target_frac, budget.cap_steps, budget.gain, budget.decay], np.float64)
        n_keys = n_layers * n_experts
        self._msb_link, self._lsb_link = np.zeros(2 * (n_keys + 1), np.uint32), np.zeros(2 * (n_keys + 1), np.uint32)
        self._msb_in, self._lsb_in = np.zeros(n_keys, np.uint8), np.zeros(n_keys, np.uint8)
        self._pin, self._lsb_token = np.full(n_keys, -1, np.int64), np.full(n_keys, -1, np.int64)
        self._memory = np.zeros((n_layers, 2), np.float64)
        self._counted = np.zeros((3, n_keys), np.float64)
        self._in_prefill = False
        self._clock, self._pulls = np.zeros(8, np.int64), np.zeros(3)
        self.clear()

    def clear(self) -> None:
        """Empties the cache, forgets what router and soft budget have learnt, and begins a new generation."""
        self._memory[:], self._pulls[:] = 0.0, (0.0, self.system.router.strength, 0.0)
        self._hold(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._begin()

    def prefill(self, layer: NDArray[np.int32], values: Floats, gates: Floats) -> Events:
        """Rows of a prompt, layer by layer in the model's order; several calls make one prompt until `end_prefill`.

        Arguments and errors as `decode`. Every expert a layer's run of rows needs is loaded once, at high precision (low-bit: its
        MSB slice); the first row that needs it carries its bytes.
        """
        layer, values, gates = self._checked(layer, values, gates)
        if not self._in_prefill:
            self._in_prefill = True
            self._counted[:] = 0.0
            if self._sizes[at.AFTER_USE]:
                drop_used_lsb(
                    self._sizes, self._clock, self._msb_link, self._lsb_link, self._msb_in, self._lsb_in, self._lsb_token
                )
        ids, flags, moved = self._results(layer.size)
        self._refuse_row(route_prompt(layer, values, gates, self.n_experts, self._limits, ids, self._counted), layer)
        load_prompt(
            layer, self.n_experts, self.system.warmup.by_counts, self._sizes, self._clock, self._counted, self._msb_link,
            self._lsb_link, self._msb_in, self._lsb_in, self._pin, ids, flags, moved,
        )  # fmt: skip
        return self._events(ids, flags, moved)

    def end_prefill(self) -> None:
        """Puts the cache into the warm-up's state and begins a generation: step 0 comes next."""
        self._generation += 1
        left = Prefilled(
            msb=self._in_order(self._msb_link),
            lsb=self._in_order(self._lsb_link),
            counted=self._counted,
            capacity_bytes=int(self._sizes[at.CAPACITY]),
            msb_bytes=int(self._sizes[at.MSB]),
            lsb_bytes=int(self._sizes[at.LSB]),
            rng=np.random.default_rng([self._seed, self._generation]),
        )
        self._hold(*self.system.warmup.state(left))
        self._begin()

    def decode(self, layer: NDArray[np.int32], values: Floats, gates: Floats) -> Events:
        """n events in the order executed: token by token, layer by layer; a token begins where `layer` does not increase.

        layer (n,) i32 in 0..n_layers-1; values (n, E) f32: what the model's family ranks experts by, -inf for those it rules out;
        gates (n, E) f32: the weight of every expert before the top k. Raises ValueError on wrong shapes, and on a row with fewer
        than top_k experts to choose from (NaN or -inf), after which the controller's state is not to be used.
        """
        layer, values, gates = self._checked(layer, values, gates)
        ids, flags, moved = self._results(layer.size)
        bad = run_decode(
            self._select, self._params, self._table, layer, values, gates, self._sizes, self._limits, self._clock, self._pulls,
            self._memory, self._msb_link, self._lsb_link, self._msb_in, self._lsb_in, self._pin, self._lsb_token, ids, flags,
            moved,
        )  # fmt: skip
        self._refuse_row(bad, layer)
        assert self.used_bytes <= self._sizes[at.CAPACITY], "the cache holds more than its capacity"
        return self._events(ids, flags, moved)

    def decode_together(self, layer: NDArray[np.int32], values: Floats, gates: Floats) -> Events:
        """As `decode` of rows of one layer that are one step: tokens of one pass, of which only the first begins a token."""
        if layer.size == 1:
            return self.decode(layer, values, gates)
        found = []
        for i in range(layer.size):
            if i:
                self._clock[at.LAST_LAYER] = -1
            found.append(self.decode(layer[i : i + 1], values[i : i + 1], gates[i : i + 1]))
        return Events(*(np.concatenate([getattr(e, name.name) for e in found]) for name in fields(Events)))

    @property
    def used_bytes(self) -> int:
        """Bytes of all resident slices."""
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

    def _begin(self) -> None:
        self._in_prefill = False
        self._clock[at.STEP], self._clock[at.LAST_LAYER], self._clock[at.TOKEN_FLASH] = -1, at.BEFORE_FIRST, 0
        self._pulls[at.CREDIT] = 0.0

    def _in_order(self, link: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Members of a list, least recently used first."""
        members, end = [], self._msb_in.size
        node = int(link[2 * end + 1])
        while node != end:
            members.append(node)
            node = int(link[2 * node + 1])
        return np.array(members, np.int64)

    def _hold(self, msb: NDArray[np.int64], lsb: NDArray[np.int64]) -> None:
        """The cache holds exactly these slices, least recently used first."""
        for keys, link, is_in in ((msb, self._msb_link, self._msb_in), (lsb, self._lsb_link, self._lsb_in)):
            ring = np.concatenate(([is_in.size], keys, [is_in.size]))
            link[2 * ring[1:]], link[2 * ring[:-1] + 1] = ring[:-1], ring[1:]
            is_in[:] = 0
            is_in[keys] = 1
        self._clock[at.USED] = msb.size * self._sizes[at.MSB] + lsb.size * self._sizes[at.LSB]
        assert self._clock[at.USED] <= self._sizes[at.CAPACITY], "a warm-up leaves more than fits"
        assert np.all(self._msb_in >= self._lsb_in), "a warm-up leaves an LSB slice without its MSB slice"

    def _checked(self, layer: Any, values: Any, gates: Any) -> tuple[NDArray[np.int32], Floats, Floats]:
        layer = np.ascontiguousarray(layer, np.int32)
        values, gates = np.ascontiguousarray(values, np.float32), np.ascontiguousarray(gates, np.float32)
        wanted = (layer.size, self.n_experts)
        if layer.ndim != 1 or values.shape != wanted or gates.shape != wanted:
            raise ValueError(
                f"sliced cache: layer {layer.shape}, values {values.shape} and gates {gates.shape} do not fit; give (n,) and "
                f"twice (n, {self.n_experts})"
            )
        if layer.size and not 0 <= layer.min() <= layer.max() < self.n_layers:
            raise ValueError(
                f"sliced cache: layers run from {layer.min()} to {layer.max()}; they must lie in 0..{self.n_layers - 1}"
            )
        return layer, values, gates

    def _results(self, n: int) -> tuple[NDArray[np.int32], Flags, NDArray[np.int64]]:
        k = self.top_k
        return np.empty((n, k), np.int32), np.zeros((5, n, k), np.uint8), np.zeros((n, 2), np.int64)

    def _refuse_row(self, bad: int, layer: NDArray[np.int32]) -> None:
        if bad >= 0:
            raise ValueError(
                f"sliced cache: event {bad} (layer {layer[bad]}) has fewer than {self.top_k} experts to choose from; its scores "
                "hold NaN or -inf"
            )

    def _events(self, ids: NDArray[np.int32], flags: Flags, moved: NDArray[np.int64]) -> Events:
        high, msb_hit, lsb_hit, needed, degraded = flags
        return Events(ids, high, msb_hit, lsb_hit, needed, degraded, moved[:, 0], moved[:, 1])

"""Slots of systems that route: SliceMoE's, and what is refused of a tape without scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tokentape.policies.kernels import Kernel
from tokentape.policies.sliced.controller import Events, State, events_of, results
from tokentape.policies.slots import System
from tokentape.replay.serving.kernel import run_sliced
from tokentape.replay.serving.workload import Requests
from tokentape.replay.system import events as ev
from tokentape.replay.system import sliced as at
from tokentape.replay.system.experts import Arguments, ExpertSlots, Ints, refuse_scores
from tokentape.replay.system.recorded import Recorded
from tokentape.warehouse.formats import slice_bytes
from tokentape.warehouse.geometry import Geometry


@dataclass(eq=False)
class SlicedSlots(ExpertSlots):
    """SliceMoE's slots. is_cold: the cache starts empty at a request before which nothing is under way. capacity_bytes: of the
    cache; what the system says where None."""

    is_cold: bool = False
    capacity_bytes: int | None = None

    @classmethod
    def of(
        cls, tape: Recorded, requests: Requests, system: System, of_layer: Ints, capacity_bytes: int, is_cold: bool, seed: int
    ) -> SlicedSlots:
        """What decides alone, on no machine."""
        nowhere: Any = None
        sizes = (sum(slices_of(tape.geometry, system.sliced.cache)),) * len(tape.geometry.moe_layers)
        how = {"seed": seed, "is_cold": is_cold, "capacity_bytes": capacity_bytes}
        return cls(tape, requests, system, nowhere, sizes, 8.0, np.zeros(2), of_layer, **how)  # type: ignore[arg-type]

    @property
    def engine(self) -> Kernel:
        return run_sliced

    def arguments(self, n_iterations: int) -> Arguments:
        """Of a run that starts now: choose, the policy's state, and what it serves."""
        rec, policy = self.recorded, self.system.sliced
        assert rec.scores is not None
        n_layers, geometry, n = rec.ids.shape[1], rec.geometry, len(self.requests)
        slices = slices_of(geometry, policy.cache)
        top_k = rec.ids.shape[2]
        self.state = State(
            policy,
            n_layers,
            geometry.n_experts,
            top_k,
            *slices,
            self.budget_bytes if self.capacity_bytes is None else self.capacity_bytes,
            self.seed,
            n,
        )
        self.made = results(rec.ids.shape[0] * n_layers, top_k)
        self.totals = np.zeros((n_layers, 2 * ev.N_OF_PHASE), np.int64)
        self.fetched_of_layer, self.of_iteration = np.zeros(n_layers), np.zeros((n_iterations, ev.N_OF_ITERATION))
        self.marks = np.array([geometry.n_layers, self.is_cold, 0])
        n_rows = int((self.requests.n_prompt_tokens + self.requests.n_output_tokens).sum())
        served = (
            self.marks, rec.first[:-1][self.requests.tape_request], self.of_layer, rec.ids, rec.scores.values, rec.scores.gates,
            *self.made, np.array([self.unit_bytes, sum(slices)], float), self.totals, self.fetched_of_layer, self.of_iteration,
            *(np.zeros(size, np.int64) for size in (n_rows, n_rows, n_rows * n_layers, n_rows * n_layers, n_layers, n_layers + 1)),
            np.zeros(n_layers + 1, np.int64), np.zeros((n_layers, 5), np.int64),
        )  # fmt: skip
        return (*(None,) * 6, self.state.choose, self.state.arrays, served)

    @property
    def unit_bytes(self) -> float:
        """Of an expert as the iteration's cost counts it."""
        return self.recorded.geometry.expert_params * self.full_bits / 8.0

    @property
    def events(self) -> Events:
        """Of all rows x MoE layers, as they were served last."""
        return events_of(*self.made)

    def refuse_row(self) -> None:
        """Raises ValueError naming the first row with too few experts."""
        if self.marks[at.BAD]:
            row, layer = divmod(int(self.marks[at.BAD]) - 1, self.recorded.ids.shape[1])
            request = int(np.searchsorted(self.recorded.first, row, side="right")) - 1
            raise ValueError(
                f"tape {self.recorded.trace_id}: request {request}, position {row - self.recorded.first[request]}, MoE layer "
                f"{layer} has fewer than {self.recorded.ids.shape[2]} experts to choose from; its scores hold NaN or -inf"
            )

    def _refuse(self) -> None:
        self.recorded.refuse_longer(self.requests)
        if self.system.place is not None:
            raise ValueError(
                f"system {self.system.name}: slicemoe keeps slices, and placements move whole experts; leave place out"
            )
        refuse_scores(self.recorded, self.system)


def slices_of(geometry: Geometry, cache: Any) -> tuple[int, int]:
    """(MSB, LSB) slice bytes of one expert; equal widths leave an LSB slice of 0 bytes."""
    if not geometry.expert_params:
        raise ValueError(f"{geometry.architecture}: this tape records no expert width; slices need the model's config.json")
    msb, lsb = slice_bytes(geometry.expert_params, max(cache.bits_high, cache.bits_low + 1), cache.bits_low)
    return msb, lsb if cache.bits_high > cache.bits_low else 0

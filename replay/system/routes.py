"""SliceMoE's slots of a system: route, precision and residency of the experts' slices as one decision.

Open loop: the tape's scores are taken as they are. Where the policy reroutes, the model would have gone on differently.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokentape.policies.matryoshka import MAT
from tokentape.policies.sliced.controller import Events, State, events_of, results
from tokentape.policies.sliced.strayed import low_error_frac, strayed
from tokentape.replay.result import Metric, ratio
from tokentape.replay.system import sliced as at
from tokentape.replay.system.experts import Arguments, ExpertSlots, refuse_scores
from tokentape.warehouse.formats import bytes_per_value, slice_bytes
from tokentape.warehouse.geometry import Geometry


@dataclass(eq=False)
class SlicedSlots(ExpertSlots):
    """capacity_bytes: of the cache; what the system says where None. One that starts cold is emptied at a request before which
    nothing is under way."""

    capacity_bytes: int | None = None

    @property
    def slices(self) -> tuple[int, int]:
        return slices_of(self.recorded.geometry, self.system.sliced.cache)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple([sum(self.slices)] * self.recorded.ids.shape[1])

    def arguments(self, n_iterations: int, draft_iteration: Any, kv: Arguments) -> Arguments:
        """As of other slots, with the policy's state and what it serves at the end."""
        others = super().arguments(n_iterations, draft_iteration, kv)
        rec, room, (_, _, first, of_layer, *_) = self.recorded, self.capacity_bytes, others[7]
        assert rec.scores is not None
        (n_rows, n_layers, top_k), geometry = rec.ids.shape, rec.geometry
        room = self.budget_bytes if room is None else room
        of_cache = (n_layers, geometry.n_experts, top_k, *self.slices, room, self.seed, len(self.requests))
        self.state, self.made = State(self.system.sliced, *of_cache), results(n_rows * n_layers, top_k)
        self.marks = np.array([geometry.n_layers, self.system.option("residency", "start") == "cold", 0])
        n = int((self.requests.n_prompt_tokens + self.requests.n_output_tokens).sum())
        served = (
            self.marks, first, of_layer, rec.ids, rec.scores.values, rec.scores.gates, *self.made,
            np.array([sum(self.slices), *self._expert_bytes()], float), self.totals, self.fetched_of_layer, self.of_iteration,
            *(np.zeros(size, np.int64) for size in (n, n, n * n_layers, n * n_layers, n_layers, n_layers + 1, n_layers + 1)),
            np.zeros((n_layers, 5), np.int64),
        )  # fmt: skip
        return *others[:-5], self.state.choose, others[-4], at.serve_sliced, self.state.arrays, served

    def _expert_bytes(self) -> Sequence[float]:
        """Of each MoE layer, as the cost reads them."""
        geometry, expert_format = self.recorded.geometry, self.costs.expert_format
        if expert_format == "recorded":
            return geometry.expert_bytes(expert_format)
        return [geometry.expert_params * (bytes_per_value(expert_format) if expert_format else 1.0)] * len(geometry.moe_layers)

    @property
    def events(self) -> Events:
        """Of all rows x MoE layers, as they were served last."""
        return events_of(*self.made)

    def metrics(self) -> dict[str, Metric]:
        """What was missed, computed low and rerouted in decode; misses after the free steps."""
        rec, policy, events = self.recorded, self.system.sliced, self.events
        (of, position), requests = rec.places(), self.requests
        assert rec.scores is not None
        n_taken = np.zeros_like(rec.n_prompt)
        n_taken[requests.tape_request] = requests.n_prompt_tokens + requests.n_output_tokens - 1
        step = np.where(position < n_taken[of], position - rec.n_prompt[of], -1)
        steps = np.where(rec.ids[:, :, 0] >= 0, step[:, None], -1).ravel()
        decode, counted, k = steps >= 0, steps >= policy.free_steps, rec.ids.shape[2]
        own, ids, gates = rec.ids.reshape(-1, k)[decode], events.ids[decode].astype(np.int64), rec.scores.gates[decode]
        row, place = np.nonzero(own >= 0)
        ideal = np.bincount(row, gates[row, own[row, place]])
        natural = np.zeros(gates.shape, np.bool_)
        natural[row, own[row, place]] = True
        low_error = low_error_frac(MAT(policy.cache.bits_high, policy.cache.bits_low), rec.geometry.is_glu)
        error = strayed(gates, natural, events.ids[decode], events.is_high[decode] == 0, low_error)
        kept, n_needed = np.take_along_axis(gates, ids, axis=1), int(events.lsb_needed[decode].sum())
        n_stayed, high_bytes = int(np.take_along_axis(natural, ids, axis=1).sum()), sum(self.slices)
        return {
            "high_bit_miss_frac": ratio(
                events.flash_bytes[counted].sum(), counted.sum() * k * high_bytes, "accesses x high-bit expert bytes"
            ),
            "critical_frac": ratio(n_needed, ids.size, "accesses"),
            "critical_per_layer": ratio(n_needed, decode.sum(), "decoded tokens x layers"),
            "degraded_frac": ratio(events.degraded[decode].sum(), n_needed, "critical accesses"),
            "kept_gate_mass_frac": ratio(kept.sum(dtype=np.float64), ideal.sum(), "gate mass of the natural route"),
            "strayed_frac": ratio(error.sum(), error.size, "decoded tokens x layers, each by its squared output"),
            "rerouted_frac": ratio(ids.size - n_stayed, ids.size, "accesses"),
        }

    def refuse_run(self) -> None:
        if self.marks[at.BAD]:
            row, layer = divmod(int(self.marks[at.BAD]) - 1, self.recorded.ids.shape[1])
            request = int(np.searchsorted(self.recorded.first, row, side="right")) - 1
            raise ValueError(
                f"tape {self.recorded.trace_id}: request {request}, position {row - self.recorded.first[request]}, MoE layer "
                f"{layer} has fewer than {self.recorded.ids.shape[2]} experts to choose from; its scores hold NaN or -inf"
            )

    def _objections(self) -> Iterator[str]:
        self.recorded.refuse_longer(self.requests)
        self.system.refuse_room()
        refuse_scores(self.recorded, self.system)
        return iter(())


def slices_of(geometry: Geometry, cache: Any) -> tuple[int, int]:
    """(MSB, LSB) slice bytes of one expert; equal widths leave an LSB slice of 0 bytes."""
    if not geometry.expert_params:
        raise ValueError(f"{geometry.architecture}: this tape records no expert width; slices need the model's config.json")
    return slice_bytes(geometry.expert_params, cache.bits_high, cache.bits_low)

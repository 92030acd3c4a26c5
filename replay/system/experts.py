"""The experts' slots of a system as the loop's kernel takes them: residency, placement and widths on one tape and machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.work import Floats, Ints
from tokentape.policies.bits import UNIFORM, ByGate
from tokentape.policies.bits.rule import MOST, N_WIDTHS, checked
from tokentape.policies.cache import KERNELS, ExpertCache, needs_of
from tokentape.policies.kernels import dispatcher_of, numbers_of, zeros_of
from tokentape.policies.lfu import LFU
from tokentape.policies.placement import (
    MIGRATE_SIGNATURE,
    WHERE_SIGNATURE,
    EventPlacement,
    FixedPlacement,
    ReactivePlacement,
)
from tokentape.policies.placement.fixed import Oracle, PrefillGuided, RandomPlacement, ShuffledPrompts, StaticGlobal
from tokentape.policies.placement.missed import FirstLayersNear, NearIfRare
from tokentape.policies.placement.reactive import Never
from tokentape.policies.protocol import CACHE
from tokentape.policies.sliced.ranking import Stock, compiled
from tokentape.policies.slots import System
from tokentape.replay.capacity import bytes_of
from tokentape.replay.passes import fits_of
from tokentape.replay.result import Metric
from tokentape.replay.serving.coverage import FixedCoverage
from tokentape.replay.serving.iteration import IterationCosts, host_of, iteration_costs, near_bound
from tokentape.replay.serving.workload import Requests
from tokentape.replay.system import events as ev
from tokentape.replay.system.ahead import ahead_of
from tokentape.replay.system.drafts import DRAFT_S, NO_DRAFTS, Rounds, refuse_drafts
from tokentape.replay.system.recorded import Recorded
from tokentape.replay.system.sliced import SERVED, SLICED, serve_none
from tokentape.warehouse.formats import bytes_per_value

Arguments = tuple[Any, ...]


@dataclass(eq=False)
class ExpertSlots:
    """What a system's experts do on a tape, for `requests` of it, at costs of events. end: of the machine's ranges. losses (MoE
    layers, E, 4): of precision rules. logs: lookups that are kept. told: keys and hits of a run before, profile: event and
    counts, for what sees the future or a share of the tape."""

    recorded: Recorded
    requests: Requests
    system: System
    costs: IterationCosts
    end: str = "value"
    seed: int = 0
    losses: Floats | None = None
    logs: int = 0
    told: tuple[Ints, NDArray[np.uint8]] | None = None
    profile: tuple[int, Floats] | None = None

    def __post_init__(self) -> None:
        for said in self._objections():
            raise ValueError(f"system {self.system.name}: {said}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of an expert in every MoE layer, bytes."""
        return self.recorded.geometry.expert_bytes(self.costs.expert_format)

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes) * self.recorded.geometry.n_experts

    @property
    def mean_bits(self) -> float:
        """Of the experts that a placement leaves where they lie."""
        return self.system.number("precision", "mean_bits")

    @property
    def by_gate(self) -> ByGate | None:
        """The rule by which gates say how wide a missed expert is fetched."""
        return self.system.precision if isinstance(self.system.precision, ByGate) else None

    @property
    def _full_bits(self) -> float:
        return 8.0 * bytes_per_value(self.recorded.geometry.value_format(self.costs.expert_format))

    @property
    def budget_bytes(self) -> int:
        """Of the cache or the hot set; all where nothing says."""
        text = self.system.option(slot := self.system.room or "place", "budget")
        n_experts = self.recorded.geometry.n_experts * len(self.sizes)
        of = f"system {self.system.name}: {slot}.budget"
        return bytes_of(text, self.total_bytes, n_experts, of) if text else self.total_bytes

    @property
    def away(self) -> int:
        """Where experts compute that a placement keeps out of the cache; a machine that cannot has them read or fetched."""
        roles = self.costs.machine.roles
        if roles.near_compute:
            return ev.IS_NEAR
        return ev.IS_READ if roles.expert_cache and roles.expert_home in roles.reads else ev.IS_STREAMED

    @cached_property
    def place(self) -> Any:
        """As it decides on this machine."""
        place = self.system.place
        if not isinstance(place, EventPlacement | ReactivePlacement):
            return place
        held = np.cumsum(self.sizes[::-1]) * self.recorded.geometry.n_experts <= self.budget_bytes
        return place.on(host_of(self.costs, int(held.size - held.sum()), self.end))

    @property
    def is_placed(self) -> bool:
        """The placement says what the fast tier holds."""
        return isinstance(self.system.place, FixedPlacement | ReactivePlacement)

    @property
    def n_hot(self) -> int:
        """Experts of a layer that such a placement has room for, of all layers where they share it."""
        sizes = self.sizes[:1] if self.system.flag("place", "across_layers") else self.sizes
        return self.budget_bytes // sum(sizes)

    @property
    def rounds(self) -> Rounds | None:
        """Of the tape, where the system drafts."""
        return self.recorded.rounds if self.system.draft is not None else None

    @property
    def n_nodes(self) -> int:
        """The most that a round has verified beside its root."""
        return int(np.diff(self.rounds.verify).max(initial=1)) - 1 if self.rounds else 0

    @property
    def draft_s(self) -> float:
        """Seconds of draft passes."""
        return float(self.drafted[-1][DRAFT_S])

    def drafts(self) -> tuple[Arguments, Any]:
        """DRAFTS of a run that starts now, and what a draft pass costs."""
        rounds, costs = self.rounds, self.costs
        if rounds is None:
            return NO_DRAFTS, costs.iteration
        dense = rounds.dense_format or costs.expert_format
        of = (costs.geometry, costs.machine, FixedCoverage(), costs.profile, costs.expert_format, fits_of(costs.machine, dense))
        costs = iteration_costs(*of, events=True, end=self.end, dense_format=dense)
        first_row = self.recorded.first[:-1][self.requests.tape_request]
        self.drafted = rounds.arrays(first_row, costs)
        return self.drafted, costs.iteration

    def arguments(self, n_iterations: int, draft_iteration: Any, kv: Arguments) -> Arguments:
        """Of a run that starts now: the cache's kernels, where, split, cache, told, slots, placed, drafts' cost, kv, choose,
        routed, and no slices. n_iterations: that are recorded."""
        rec, system = self.recorded, self.system
        n_layers, n_experts = rec.ids.shape[1], rec.geometry.n_experts
        policy, place = system.residency, self.place
        cache = None if policy is None or policy.kind == "future" else self.cache_of(policy)
        of_cache: Arguments = cache.kernels() if cache else (*KERNELS["queue"], LFU.rank)
        state = cache.state if cache else zeros_of(CACHE)._replace(resident=np.ones(n_layers * n_experts, np.uint8))
        by_event = place if isinstance(place, EventPlacement) else NearIfRare()
        where, where_params = dispatcher_of(by_event.where, WHERE_SIGNATURE), numbers_of(by_event)
        kind = ev.CACHED if cache else ev.HELD if policy is None else ev.GIVEN
        mover = place if isinstance(place, ReactivePlacement) else Never()
        placement = ev.MOVING if mover is place else ev.FIXED if self.is_placed else ev.BY_FUNCTION if place else ev.NOWHERE
        at = self.profile[0] if self.profile else -1
        self.how = np.array([kind, placement, self.away, at, 0, 0], np.int64)
        self.totals = np.zeros((n_layers, 2 * ev.N_OF_PHASE), np.int64)
        self.log_keys, self.log_hits = self.told or (np.zeros(self.logs, np.int64), np.zeros(self.logs, np.uint8))
        self.log_starts = np.zeros(self.logs, np.int64)
        self.fetched_of_layer = np.stack((np.zeros(n_layers), np.zeros(n_layers), np.array(self.sizes, float)))
        self.of_iteration = np.zeros((n_iterations, ev.N_OF_ITERATION))
        hot = np.zeros((n_layers, n_experts), np.uint8)
        widths = np.ones((n_layers, n_experts))
        costs, n_nodes = self.costs, max(self.n_nodes, int(np.diff(self.rounds.bounds).max(initial=0))) if self.rounds else 0
        of_table = [int(np.flatnonzero(costs.moe_of == m)[0]) for m in range(n_layers)]
        of_layer = np.array([costs.geometry.moe_layers, of_table], np.int64)
        n_rows = int((self.requests.n_prompt_tokens + self.requests.n_output_tokens + n_nodes).sum())
        routed, n_most = self._routed(n_rows), n_layers * min(n_experts, n_rows * rec.ids.shape[2])
        slots = (
            self.how, self.ids, rec.first[:-1][self.requests.tape_request], of_layer, near_bound(costs, self.end), hot, widths,
            np.zeros(n_layers), self.totals, self.log_keys, self.log_hits, self.log_starts,
            self.fetched_of_layer, self.profile[1] if self.profile else np.zeros(0),
            self.of_iteration, np.zeros(n_rows, np.int64), where_params,
            zeros_of(ev.SCRATCH, *(n_most,) * 5, n_experts, *(n_layers + 1,) * 3),
        )  # fmt: skip
        split: Any = system.precision.split if system.precision and not self.by_gate else UNIFORM.split
        self.cache = cache
        memory = np.zeros((n_layers, n_experts)), np.zeros(n_experts, np.int64)
        moves = (*memory, numbers_of(mover), np.array([self.n_hot], np.int64))
        migrate = dispatcher_of(mover.migrate, MIGRATE_SIGNATURE)
        router = system.route if system.route is not None and system.sliced is None else Stock()
        has_gates = system.route is None and self.rounds is None  # those of the choices that the loop sees
        of_place = (self._placed(), migrate, moves, *ahead_of(system.prefetch, rec, has_gates))
        of_slices = serve_none, zeros_of(SLICED), zeros_of(SERVED)
        of_cache = (*of_cache, where, split, state, self._told(n_most))
        return *of_cache, slots, *of_place, draft_iteration, kv, compiled(router), routed, *of_slices

    def _told(self, n_most: int) -> Arguments:
        """Gate weights and scores of the tape as far as the cache's policy needs them, and scratch."""
        rec, made = self.recorded, list(zeros_of(ev.TOLD))
        needs = ("gate", *needs_of(self.system.residency)) if self.by_gate else needs_of(self.system.residency)
        if self.by_gate:
            made[6], made[7] = self.by_gate.params(self._full_bits), np.zeros((rec.ids.shape[1], rec.geometry.n_experts))
        for i, (name, of) in enumerate((("gate", rec.gates), ("score", rec.scores and rec.scores.values))):
            if name in needs:
                made[i], made[2 + i], made[4 + i] = of, np.zeros(n_most, np.float32), np.zeros(n_most, np.float32)
        return tuple(made)

    def metrics(self) -> dict[str, Metric]:
        """What it measures beside lookups, of the last run."""
        return {}

    def refuse_run(self) -> None:
        """Raises ValueError after a run in which a row of the tape could not be served, or an expert not ranked."""
        if self.cache:
            self.cache.refuse_nan()

    def _routed(self, n_rows: int) -> Arguments:
        """What a router chooses by; it writes its choice into ids of this run's own. Nothing where there is none."""
        rec, router, self.ids = self.recorded, self.system.route, self.recorded.ids
        if router is None or self.system.sliced is not None or rec.scores is None:
            return tuple(zeros_of(ev.ROUTED))
        self.ids, n_experts, (_, n_layers, k) = rec.ids.copy(), rec.geometry.n_experts, rec.ids.shape
        values, gates, params = rec.scores.values, rec.scores.gates, router.params(n_layers, n_experts)
        scratch = (np.zeros((n_rows, width), kind) for width, kind in ((n_experts, np.float32),) * 2 + ((k, np.int64),) * 2)
        work = np.zeros(n_rows, np.uint8), np.zeros(n_rows, np.int64), np.zeros((2, n_experts), np.int64)
        return rec.ids, values, gates, params, *scratch, *work

    @property
    def fetched(self) -> float:
        """Experts of 16 bits that were fetched."""
        return float(self.fetched_of_layer[:2].sum())

    @property
    def fetched_by_phase(self) -> Floats:
        """(2,) bytes in events of decodes alone, and in those with prompts."""
        return self.fetched_of_layer[:2] @ self.fetched_of_layer[2]  # type: ignore[no-any-return]

    def log_events(self, n_events: int) -> Ints:
        """(n_events + 1,) bounds of the events in the log: keys of a layer stand together, and layers follow one another."""
        return np.append(self.log_starts[:n_events], self.log_keys.size)

    def cache_of(self, policy: Any) -> ExpertCache:
        n_experts, per_layer = self.recorded.geometry.n_experts, self.system.option("residency", "scope") != "global"
        return ExpertCache.of_layers(policy, self.sizes, n_experts, self.budget_bytes, per_layer=per_layer, seed=self.seed)

    def _placed(self) -> Arguments:
        if not self.is_placed:
            return tuple(zeros_of(ev.PLACED))
        counts, weights = self.recorded.used_by_prompts()
        place, of, alpha, n_placed = self.system.place, self.requests.tape_request, 1.0, self.n_hot
        if isinstance(place, PrefillGuided):
            alpha = place.alpha
        elif isinstance(place, Oracle):
            counts = self.recorded.used_by_decodes(self.requests)
        elif isinstance(place, StaticGlobal):
            counts = np.repeat((counts + self.recorded.used_by_decodes()).sum(axis=0, keepdims=True), len(counts), axis=0)
        elif isinstance(place, RandomPlacement):
            counts = np.random.default_rng(place.seed).random(counts.shape)
        elif not isinstance(place, ReactivePlacement):
            raise ValueError(f"{type(place).__name__}: of placements that stand a system knows those shipped; see `decide place`")
        else:  # one that moves experts
            alpha, n_placed = 0.5, n_placed if place.starts_placed else 0
        if isinstance(place, ShuffledPrompts):
            of = np.roll(of, self.system.max_seqs)
        across = self.system.flag("place", "across_layers")
        has_bits, shape = self.system.precision is not None, (*counts.shape[1:], N_WIDTHS)
        losses = checked(self.losses) if has_bits and self.losses is not None else np.zeros(shape if has_bits else (0, 0, 0))
        numbers = np.array([alpha, n_placed, across, self.mean_bits, self._full_bits])
        return np.ascontiguousarray(counts), np.ascontiguousarray(weights), np.ascontiguousarray(of, np.int64), numbers, losses

    def _objections(self) -> Iterator[str]:
        """What the loop does not run, before anything is computed; the first of them is raised."""
        system, rec = self.system, self.recorded
        rec.refuse_longer(self.requests)
        place, residency = system.place, system.residency
        if place is not None and not isinstance(place, FixedPlacement) and system.flag("place", "across_layers"):
            yield f"{type(place).__name__} decides layer by layer; leave place.across_layers out"
        if system.flag("place", "across_layers") and len(set(self.sizes)) > 1:
            yield "place.across_layers counts experts, and this tape's differ in size by layer; leave it out"
        if residency is None and isinstance(place, FirstLayersNear) and place.layers is not None:
            kept_bytes = sum(self.sizes[place.layers :]) * rec.geometry.n_experts
            if kept_bytes > self.budget_bytes:
                yield (
                    f"place.layers {place.layers} leaves {kept_bytes} B of experts to the fast tier, and place.budget has room "
                    f"for {self.budget_bytes} B; raise either, or leave place.layers out"
                )
        if isinstance(place, ShuffledPrompts) and len(self.requests) <= system.max_seqs:
            yield (
                f"shuffled_prompts goes by the prompts of the batch before, and one of {system.max_seqs} takes all "
                f"{len(self.requests)} requests; lower schedule.max_seqs"
            )
        if system.draft is not None:
            if system.route is not None:
                yield (
                    "what is accepted holds for the experts that were recorded, and a router changes them; leave route or draft "
                    "out, or measure both in the model"
                )
            refuse_drafts(system.draft, rec.rounds, f"system {system.name}", rec.trace_id)
        if system.route is not None:
            refuse_scores(rec, system)
        if self.by_gate:
            yield from self._objections_by_gate()
        elif system.precision is not None:
            if not isinstance(place, FixedPlacement):
                yield (
                    "precision gives widths to experts that a placement leaves where they lie; add place = prefill_guided, or "
                    "choose the width of all experts with --expert-format"
                )
            if not 1.0 <= self.mean_bits <= (most := 16 if system.precision is UNIFORM else MOST):
                yield f"precision.mean_bits {self.mean_bits:g} must lie in 1..{most}; give it"
            if system.precision is not UNIFORM and self.losses is None:
                yield "this precision rule goes by losses, and the run has none; take policy uniform"
        if residency is not None:
            yield from self._untold()
        system.refuse_room(self.budget_bytes, rec.geometry.top_k, self.sizes)

    def _objections_by_gate(self) -> Iterator[str]:
        """Where nothing is fetched into a cache by gates that the tape has."""
        system, rec = self.system, self.recorded
        if system.residency is None or system.residency.kind == "future":
            yield "by_gate says how wide a cache's misses are fetched; add residency = { policy = 'lru' }"
        if system.route is not None or system.draft is not None or system.prefetch is not None:
            yield "by_gate goes by the gates of the choices recorded; leave route, draft and prefetch out"
        if system.options.get("precision", {}).get("mean_bits"):
            yield "by_gate has no mean width; give precision.low_bits in place of mean_bits"
        if not rec.is_weighted:
            yield f"by_gate reads gate weights, and tape {rec.trace_id} holds none"

    def _untold(self) -> Iterator[str]:
        """Where a cache's policy needs what its lookups cannot be told."""
        system, rec, needs = self.system, self.recorded, needs_of(self.system.residency)
        who = f"{type(system.residency).__name__} reads {' and '.join(needs)} of lookups"
        if needs and (system.route is not None or system.draft is not None):
            yield f"{who}, which are of the experts and tokens recorded; leave route and draft out"
        lacks = [name for name, there in (("gate", rec.is_weighted), ("score", rec.scores and rec.scores.is_full)) if not there]
        if lacking := sorted({*needs}.intersection(lacks)):
            yield f"{who}, and tape {rec.trace_id} holds no {' and '.join(lacking)}s; record it with --tables routing,scores"


def held(recorded: Recorded, requests: Requests, costs: IterationCosts) -> ExpertSlots:
    """All experts in the fast tier: requests that chose what a tape recorded. Raises ValueError for a tape of another model."""
    shapes = [(len(of.moe_layers), of.n_experts, of.top_k) for of in (recorded.geometry, costs.geometry)]
    if shapes[0] != shapes[1]:
        told = ["{} MoE layers, {} experts, top {}".format(*shape) for shape in shapes]
        raise ValueError(f"recorded coverage: the tape has {told[0]}; the model has {told[1]}")
    return ExpertSlots(recorded, requests, System("held"), costs)


def refuse_scores(tape: Recorded, system: System) -> None:
    """Raises ValueError for a tape that does not hold what a router chooses by."""
    if tape.scores is None:
        raise ValueError(f"tape {tape.trace_id} holds neither scores nor gate weights; capture it with --tables routing,scores")
    if system.route.needs_scores and not tape.scores.is_full:
        raise ValueError(
            f"tape {tape.trace_id} holds the chosen experts only; system {system.name} may route to any expert: record the tape "
            "with scores (--tables scores), or take slicemoe with router=lru and no budget"
        )

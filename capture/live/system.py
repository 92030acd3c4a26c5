"""A system inside a live model: its decisions as slots, by the policies that replay takes, and what they do to quality."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.capture import measure, models
from tokentape.capture.applied import AppliedTape
from tokentape.capture.cxl_ndp.replicas import ReplicaExperts
from tokentape.capture.evaluate import Report, answered, items_of
from tokentape.capture.live.attention import KV
from tokentape.capture.live.quality import Tried, evaluate_inside, on_text, windows
from tokentape.capture.live.routers import UNKNOWN_SIZE, Placed, Resident, Sliced, slices_of
from tokentape.capture.live.slots import Inside, Slot
from tokentape.capture.live.storage import Plain, storage_of
from tokentape.capture.speculation.drafters import drafter_of
from tokentape.capture.speculation.settings import DraftSettings
from tokentape.policies import registry
from tokentape.policies.bits.rule import N_WIDTHS
from tokentape.policies.cache import ExpertCache, needs_of
from tokentape.policies.kv import KELLE
from tokentape.policies.kv.refresh import BitRates, Intervals
from tokentape.policies.kv.streaming import Full
from tokentape.policies.mixed import MixedPrecision
from tokentape.policies.placement import FIXED, EventPlacement, FixedPlacement
from tokentape.policies.resolve import convert
from tokentape.policies.slots import OPTIONS, System, of_table
from tokentape.policies.speculation import POOLS
from tokentape.warehouse.geometry import Geometry

OF_STORAGE = ("storage", "rate", "intervals", "resample", "bits")  # of keys and values, beside a KV policy's parameters
Z_95 = 1.959964  # of a normal distribution, two-sided 95 %


@dataclass(frozen=True)
class SystemTried(Tried):
    """A system and how it is tried. room: bytes from text such as 25%, given what all experts take and how many there are.

    drafting: of a draft slot, beside its pool: depth, width, bits. scheme: of a sliced policy's low-bit weights, None: as loaded.
    replicas, losses (L, E, 4): of a precision slot (capture/cxl_ndp/replicas.py).
    """

    system: System
    name: str
    parameters: dict[str, Any]
    room: Callable[[str, int, int], int]
    drafting: DraftSettings = field(default_factory=DraftSettings)
    scheme: str | None = "amat"
    replicas: Callable[[models.Loaded], ReplicaExperts] | None = None
    losses: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._storage(0)

    def inside(self, loaded: models.Loaded, seed: int = 0) -> Inside:
        """Raises ValueError, in one line, for what cannot run inside this model."""
        system, drafter = self.system, None
        for slot, name in (("residency", "share_kv"), ("place", "across_layers")):
            if system.flag(slot, name):
                raise self._refused(slot, f"{name} is heeded over a tape only; leave it out")
        if system.prefetch is not None:
            raise self._refused(
                "prefetch", "it moves experts in time, of which a live model keeps none: it runs over a tape only"
            )
        kv = self.kv(loaded, seed)
        slots: list[Slot] = [*self._experts(loaded, seed), *([] if kv is None else [kv])]
        if system.draft is not None:
            pool = registry.name_of("draft", system.draft)
            if pool not in POOLS:
                raise self._refused("draft", f"{pool} names the drafts of a tape: give a pool, {', '.join(POOLS)}")
            drafter = drafter_of(loaded, replace(self.drafting, draft="elastic", pool=pool), seed=seed)
        schedule, counts_events = system.schedule, any(isinstance(slot, Resident) for slot in slots)
        if schedule is not None and not hasattr(schedule, "rule"):
            raise self._refused("schedule", f"{type(schedule).__name__} is two engines in series, not one loop")
        n_layers = loaded.model.config.get_text_config().num_hidden_layers
        if schedule is not None and not counts_events and not schedule.rule(n_layers).may_split:
            schedule = None  # whole prompts with caches of their own: in lockstep they do the same
        return Inside(loaded.model, *slots, drafter=drafter, schedule=schedule, max_seqs=system.max_seqs)

    def _refused(self, slot: str, why: str) -> ValueError:
        return ValueError(f"system {self.system.name}, slot {slot}: {why}")

    def _bytes(self, slot: str, total: int, n_experts: int) -> int:
        text = self.system.option(slot, "budget")
        return self.room(text, total, n_experts) if text else total

    def _experts(self, loaded: models.Loaded, seed: int) -> list[Slot]:
        system, model = self.system, loaded.model
        route, place, cache = system.route, system.place, system.residency
        if route is not None:
            if not hasattr(route, "cache"):
                raise self._refused("route", f"{type(route).__name__} alone has no cache to read; take policy slicemoe")
            system.refuse_room()
            slices, n_experts = slices_of(model, route.cache)
            n = n_experts * len(measure.geometry(model).moe_layers)
            return [Sliced(model, route, self._bytes("residency", sum(slices) * n, n), self.scheme, seed)]
        if isinstance(place, FixedPlacement):
            return [self._placed(loaded, place)]
        if system.precision is not None:
            raise self._refused("precision", "it gives widths to what a placement leaves away; add place = prefill_guided")
        if place is not None and not isinstance(place, EventPlacement):
            raise self._refused("place", f"{type(place).__name__} moves experts in every layer-step: it runs over a tape only")
        return [] if place is None and cache is None else [Resident(model, self._cache(loaded, cache, seed), place)]

    def _cache(self, loaded: models.Loaded, policy: Any, seed: int) -> ExpertCache | None:
        if policy is None:
            self.system.refuse_room()
            return None
        if policy.kind == "future" or getattr(policy, "profile_frac", 0.0):
            raise self._refused(
                "residency", f"{type(policy).__name__} needs to see lookups before they come: it runs over a tape"
            )
        if needs := needs_of(policy):
            told = " and ".join(needs)
            raise self._refused("residency", f"{type(policy).__name__} reads {told} of lookups: it runs over a tape")
        geometry, sizes = self._sized(loaded)
        n_experts = geometry.n_experts
        room = self._bytes("residency", sum(sizes) * n_experts, len(sizes) * n_experts)
        self.system.refuse_room(room, geometry.top_k, sizes)
        per_layer = self.system.option("residency", "scope") != "global"
        return ExpertCache.of_layers(policy, sizes, n_experts, room, per_layer=per_layer, seed=seed)

    def _sized(self, loaded: models.Loaded) -> tuple[Geometry, tuple[int, ...]]:
        """The model's geometry, and bytes of an expert in each MoE layer. Raises ValueError where they are not known."""
        geometry = measure.geometry(loaded.model)
        if not geometry.recorded_expert_bytes:
            raise ValueError(f"{type(loaded.model).__name__} {UNKNOWN_SIZE}")
        return geometry, geometry.expert_bytes("recorded")

    def _placed(self, loaded: models.Loaded, place: FixedPlacement) -> Placed:
        system, name, (geometry, sizes) = self.system, registry.name_of("place", place), self._sized(loaded)
        n_layers, n_experts = len(geometry.moe_layers), geometry.n_experts
        if name not in FIXED:
            raise self._refused("place", f"{name} is not one that ships; a live model takes {', '.join(FIXED)}")
        hot = min(n_experts, self._bytes("place", sum(sizes) * n_experts, n_layers * n_experts) // sum(sizes))
        given = {key: getattr(place, key) for key in ("alpha", "seed") if hasattr(place, key)}
        if system.precision is None:  # who is hot is counted, and nothing is computed otherwise
            policy, none = MixedPrecision(hot, 1.0, "uniform", placement=name, **given), np.zeros((n_layers, n_experts, N_WIDTHS))
            return Placed(loaded.model, None, policy, none)
        if self.replicas is None or self.losses is None:
            raise self._refused("precision", "widths go by losses and run on replicas; give --param losses=TRACE")
        bits, rule = system.number("precision", "mean_bits"), registry.name_of("precision", system.precision)
        policy = MixedPrecision(hot, bits, rule, placement=name, **given)
        return Placed(loaded.model, self.replicas(loaded), policy, self.losses)

    def kv(self, loaded: models.Loaded, seed: int, **options: bool) -> KV | None:
        """What is kept of keys and values; all if only refresh is told. seed: of lost bits and policies that draw."""
        system = self.system
        if system.kv is None and system.refresh is None:
            return None
        policy = system.kv or Full()
        if hasattr(policy, "seed"):
            policy = replace(policy, seed=policy.seed + seed)
        return KV(loaded.model, policy, self._storage(seed), **options)

    @property
    def rates(self) -> BitRates:
        """Of bits that are lost: as told, else between refreshes."""
        refresh, rate = self.system.refresh, self.system.option("kv", "rate")
        if refresh is not None and rate:
            raise self._refused("refresh", "kv.rate says already how many bits are lost; leave one out")
        if refresh is None:
            return BitRates.parse(rate) if rate else BitRates()
        return BitRates.of(refresh if isinstance(refresh, Intervals) else Intervals.uniform(refresh.harmonic_mean_us))

    def _storage(self, seed: int) -> Plain:
        """Keys and values in memory that is refreshed are 16-bit words."""
        told, named = self.system.option, self.system.option("kv", "storage")
        words = "int16" if named == "plain" and self.system.refresh is not None else named
        if words != "quarot" and told("kv", "bits") != OPTIONS["kv"]["bits"]:
            raise self._refused("kv", f"bits has no effect on storage {words}; leave it out, or give storage quarot")
        return storage_of(words, self.rates, self.system.flag("kv", "resample"), convert("bits", told("kv", "bits"), int), seed)


def kv_alone(name: str, params: Mapping[str, Any]) -> tuple[System, dict[str, str]]:
    """A KV policy alone, by its parameters and those of OF_STORAGE, and what is said of the latter. kelle is stored in int16 that
    leaks between the refreshes of 2DRP, unless told otherwise."""
    kelle = {"storage": "int16"} | ({} if "rate" in params else {"intervals": "2drp"}) if name == KELLE else {}
    given = {**kelle, **params}
    stored = {k: str(v) for k, v in given.items() if k in OF_STORAGE}
    refresh = {"refresh": Intervals.parse(stored["intervals"])} if given.pop("intervals", None) is not None else {}
    system = of_table(name, {"kv": {"policy": name, **given}})
    told = {"storage": "int16" if refresh else "plain"} | stored
    return replace(system, policies={**system.policies, **refresh}), told


@dataclass(frozen=True)
class Against:
    """Accuracy of a system less that of the plain model on the same items, with a 95 % interval of paired differences."""

    plain: float
    difference: float
    low: float
    high: float


def evaluate_system(
    loaded: models.Loaded,
    dataset: str,
    run: Tried,
    seed: int = 0,
    progress: Report = lambda done, total, name: None,
    tape: AppliedTape | None = None,
) -> tuple[dict[str, Any], Against | None]:
    """A row of table `quality` (capture/live/quality.py); of items with answers also against the plain model."""
    ours = list[bool]()
    row = evaluate_inside(loaded, dataset, run, seed, progress, tape, right=ours)
    if not ours:
        return row, None
    with models.suitable_threads(loaded.model):
        plain, _ = answered(loaded, items_of(dataset, run.n_items, seed), dataset, progress)
    paired = np.array(ours, float) - np.array(plain, float)
    mean, half = float(paired.mean()), Z_95 * float(paired.std()) / math.sqrt(paired.size)
    return row, Against(sum(plain) / paired.size, mean, mean - half, mean + half)


def both_loops(
    loaded: models.Loaded, dataset: str, run: SystemTried, seed: int = 0, progress: Report = lambda done, total, name: None
) -> tuple[dict[str, float], dict[str, float], int]:
    """What open-loop replay of a sliced policy counts, what the closed loop counts, and the high-precision bytes of one expert.

    Open loop, the scores are those the unmodified model had: a rerouted token does not change what comes after. Closed loop, it
    does. Both run the same kernels on the same windows, each with a cache of its own. Raises ValueError for a data set too short
    for a window.
    """
    inside = run.inside(loaded, seed)
    (slot,) = inside.slots
    assert isinstance(slot, Sliced)
    watching = Sliced(loaded.model, slot.system, slot.capacity_bytes, run.scheme, seed, watches=True)
    chosen = windows(loaded, dataset, run, seed)
    with models.suitable_threads(loaded.model):
        on_text(loaded, chosen, run, Inside(loaded.model, watching), lambda n, of: progress(n, 2 * of, dataset))
        on_text(loaded, chosen, run, inside, lambda n, of: progress(of + n, 2 * of, dataset))
    return watching.totals, slot.totals, sum(slot.slices)

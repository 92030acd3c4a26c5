"""Slots that choose experts: a drafter's pool, sliced serving, bit widths by placement, and what a cache and a placement count.

They see what every router chose (capture/live/slots.py) and decide by the functions that replay uses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tokentape.capture.live.copies import SlicedExperts, experts_of, n_experts_of
from tokentape.capture.live.slots import Choice, Pass, Request, Rerouting, RouterSlot, Step
from tokentape.capture.measure import geometry
from tokentape.policies.bits import table_loss
from tokentape.policies.cache import ExpertCache
from tokentape.policies.kernels import dispatcher_of
from tokentape.policies.matryoshka import MAT
from tokentape.policies.mixed import MixedPrecision
from tokentape.policies.placement import WHERE_SIGNATURE, EventPlacement, Seen
from tokentape.policies.scoring import by_weight, gates, ranking
from tokentape.policies.sliced import Controller, Events, SlicedCache, SliceMoE
from tokentape.policies.sliced.strayed import low_error_frac, strayed
from tokentape.policies.speculation.pools import restricted_topk, selections
from tokentape.warehouse.formats import slice_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tokentape.capture.cxl_ndp.replicas import ReplicaExperts

UNKNOWN_SIZE = "keeps its experts in a way that is not known: how many bytes they are cannot be told; run over its tape"
OUTSIDE_GROUPS = 1e6  # below every score: experts of groups that do not compete fill a pool that has too few others
# Counted over decoded tokens after the free steps.
FIELDS = (
    "tokens", "flash_bytes", "dram_bytes", "accesses", "misses", "degraded", "high", "rerouted", "ideal_mass", "kept_mass",
    "strayed",
)  # fmt: skip
_EVENTS = tuple(field.name for field in dataclasses.fields(Events))


class Pool(Rerouting):
    """Counts what routers chose, and in draft passes confines the choice to `members` (L, c); None: to nothing.

    Scores are the router's own; the weights of the chosen are made by the family's rule. A pool smaller than top-k is used whole:
    the places left over get weight zero. overlap, mass: of restricted tokens, the share of the original top-k that was kept and
    the router probability inside the pool, summed over `n_restricted` (token, layer) pairs.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, True, "use --draft quant, model:ID or ngram")
        self.members: np.ndarray | None = None
        self.n_experts = 0  # known from the first pass on
        self.overlap = self.mass = 0.0
        self.n_restricted = 0
        self._counts: dict[str, dict[int, np.ndarray]] = {}

    def begin(self, requests: Sequence[Request]) -> None:
        self._counts, self.members = {}, None

    def take(self, kind: str) -> np.ndarray:
        """(L, E) original selections in passes of that kind since the last call."""
        counts, nothing = self._counts.pop(kind, {}), np.zeros(self.n_experts, np.int64)
        return np.stack([counts.get(index, nothing) for index in range(len(self.blocks))])

    def route(self, index: int, choice: Choice) -> None:
        if choice.coming is None:
            return
        self.n_experts = choice.logits.shape[1]
        counts = self._counts.setdefault(choice.coming.kind, {})
        counts[index] = counts.get(index, 0) + selections(choice.natural, self.n_experts)
        if choice.coming.kind == "draft" and self.members is not None and self.members.shape[1] < self.n_experts:
            chosen = self._restricted(choice, self.members[index])
            is_other = (np.sort(chosen, axis=1) != np.sort(choice.natural, axis=1)).any(axis=1)
            choice.put(self, chosen, np.flatnonzero(is_other))

    def _restricted(self, choice: Choice, members: np.ndarray) -> np.ndarray:
        """(n, k) ids; where the pool has fewer, its first expert repeats."""
        scores, natural = choice.scores.astype(np.float64), choice.natural
        values = ranking(scores, self.rule, self.params, choice.layer)
        chosen = restricted_topk(np.where(np.isneginf(values), scores - OUTSIDE_GROUPS, values), members, self.top_k)
        kept = (chosen[:, :, None] == natural[:, None, :]).any(axis=2).sum(axis=1) / natural.shape[1]
        self.overlap += float(kept.sum())
        dense = gates(scores, self.rule)
        self.mass += float((dense[:, members].sum(axis=1) / dense.sum(axis=1)).sum())
        self.n_restricted += len(scores)
        missing = self.top_k - chosen.shape[1]
        return np.concatenate([chosen, np.repeat(chosen[:, :1], missing, axis=1)], axis=1)


class Sliced(Rerouting):
    """Sliced serving: route, precision and residency of one policy. capacity_bytes: of each request's cache.

    Prompts are prefilled layer by layer, the warm-up sets the cache's first state, and every token advances it by the kernels of
    replay (policies/sliced). Selections that the policy leaves alone keep the router's own weights bit for bit. scheme: how
    low-bit weights follow from high-bit ones (docs/quantise.md); None: experts stay as loaded, only bytes are those of slices.
    watches: the model goes on as it is, and what is counted is what a replay of it counts.
    """

    def __init__(
        self,
        model: nn.Module,
        system: SliceMoE,
        capacity_bytes: int,
        scheme: str | None = "amat",
        seed: int = 0,
        watches: bool = False,
    ) -> None:
        super().__init__(model, system.needs_scores, "use router lru without a budget")
        self.system, self.capacity_bytes, self.seed, self.watches = system, capacity_bytes, seed, watches
        self.slices, self.n_experts = slices_of(model, system.cache)
        pair = MAT(system.cache.bits_high, system.cache.bits_low)
        self.experts = SlicedExperts(model, pair, scheme) if scheme and not watches else None
        self.low_error = low_error_frac(pair, geometry(cast("PreTrainedModel", model)).is_glu, scheme) if scheme else 0.0
        self.totals: dict[str, float] = dict.fromkeys(FIELDS, 0)
        self.of: dict[int, Controller] = {}  # by request
        self._n_steps: dict[int, int] = {}
        self._counted: dict[str, np.ndarray] = {}  # of the pass under way, by its members
        self._place: dict[int, int] = {}

    def _enter(self, stack: ExitStack) -> None:
        stack.callback(self.of.clear)
        if self.experts is not None:
            stack.enter_context(self.experts)

    @property
    def miss_frac(self) -> float:
        """High-bit-normalised miss rate after the free steps: Flash bytes over accesses x high-bit bytes."""
        return self.totals["flash_bytes"] / max(1, self.totals["accesses"] * sum(self.slices))

    @property
    def measured(self) -> dict[str, float]:
        n = max(1, self.totals["tokens"])
        of_token = {f"{name}_per_token": self.totals[name] / n for name in ("flash_bytes", "dram_bytes")}
        return {"miss_frac": self.miss_frac} | of_token | seen_by_replay(self.totals)

    def begin(self, requests: Sequence[Request]) -> None:
        size = (len(self.blocks), self.n_experts, self.top_k, *self.slices, self.capacity_bytes)
        self.of = {r.request_id: Controller(self.system, *size, seed=self.seed, first=r.request_id) for r in requests}
        self._n_steps = dict.fromkeys(self.of, 0)

    def route(self, index: int, choice: Choice) -> None:
        """Padding and rows that are done stay as they are; a draft's own passes go by its pool."""
        coming, natural = choice.coming, choice.natural
        if coming is None or not self.of or coming.kind in ("draft", "rehearsal"):
            return
        values, dense = choice.values(self)
        places = coming.places(len(natural))
        layers = [np.full(rows.size, index, np.int32) for rows in places]
        served = []
        for name, rows, layer in zip(coming.request_ids, places, layers, strict=True):
            of = self.of[name]
            run = of.prefill if coming.kind == "prefill" else of.decode_together
            served.append(run(layer, values[rows], dense[rows]))
        rows, events = places[0], served[0]
        if len(served) > 1:
            rows = np.concatenate(places)
            events = Events(*(np.concatenate([getattr(e, name) for e in served]) for name in _EVENTS))
        if coming.kind != "prefill":
            starts = np.cumsum([0, *(part.size for part in places[:-1])])
            for what, n in counted(events, natural[rows], dense[rows], self.low_error).items():
                self._counted[what] = self._counted.get(what, 0) + np.add.reduceat(n, starts)
        if self.watches:
            return
        chosen, is_low = natural.copy(), np.zeros(natural.shape, np.bool_)
        chosen[rows], is_low[rows] = _aligned(natural[rows], values[rows], events)
        if self.experts is not None and is_low.any():
            self.experts.copy_of[choice.layer] = torch.from_numpy(is_low).to(choice.ids.device)
        choice.put(self, chosen, np.flatnonzero((chosen != natural).any(axis=1)))

    def before(self, coming: Pass) -> None:
        self._counted, self._place = {}, {name: i for i, name in enumerate(coming.request_ids)}

    def after(self, done: Pass) -> None:
        """Ends prompts that are whole."""
        if done.kind == "prefill" and done.is_last:
            for name in done.request_ids:
                self.of[name].end_prefill()

    def commit(self, request_id: int, kept: list[int]) -> None:
        """Counts what the pass did, for the tokens that it leaves."""
        self._n_steps[request_id] += 1
        if self._n_steps[request_id] > self.system.free_steps:
            self.totals["tokens"] += len(kept)
            for name, counts in self._counted.items():
                self.totals[name] += counts[self._place[request_id]].item()


def seen_by_replay(totals: Mapping[str, float]) -> dict[str, float]:
    """What stands for quality in a replay, of what was counted: gate mass kept, and how far a layer's output strays."""
    kept = totals["kept_mass"] / (totals["ideal_mass"] or 1.0)
    rows = totals["accesses"] or 1.0
    return {"kept_gate_mass_frac": kept, "strayed_frac": totals["strayed"] / rows}


def counted(events: Events, natural: np.ndarray, dense: np.ndarray, low_error: float) -> dict[str, np.ndarray]:
    """FIELDS but tokens, (n,) each: what each event did; natural (n, k): what the router itself chose; dense (n, E): gates."""
    k = natural.shape[1]
    is_natural = np.zeros(dense.shape, np.bool_)
    np.put_along_axis(is_natural, natural.astype(np.int64), True, axis=1)
    return {
        "flash_bytes": events.flash_bytes,
        "dram_bytes": events.dram_bytes,
        "accesses": np.full(len(natural), k),
        "misses": (events.msb_hit == 0).sum(axis=1),
        "degraded": (events.degraded == 1).sum(axis=1),
        "high": (events.is_high == 1).sum(axis=1),
        "rerouted": (events.ids[:, :, None] != natural[:, None, :]).all(axis=2).sum(axis=1),
        "ideal_mass": (dense * is_natural).sum(axis=1, dtype=np.float64),
        "kept_mass": np.take_along_axis(dense, events.ids.astype(np.int64), axis=1).sum(axis=1, dtype=np.float64),
        "strayed": k * strayed(dense, is_natural, events.ids, events.is_high == 0, low_error),
    }


def slices_of(model: nn.Module, cache: SlicedCache) -> tuple[tuple[int, int], int]:
    """(MSB, LSB) slice bytes of one routed expert of a live model, and how many a layer has. Raises ValueError for experts of
    unknown size."""
    experts = next(iter(experts_of(model).values()))
    n_weights = sum(p.numel() // p.shape[0] for p in experts.parameters(recurse=False) if p.ndim == 3)
    if not n_weights:
        raise ValueError(f"{type(model).__name__} {UNKNOWN_SIZE}")
    return slice_bytes(n_weights, cache.bits_high, cache.bits_low), n_experts_of(experts)


def capacity_of(model: nn.Module, cache: SlicedCache, share: float) -> int:
    """Bytes of a cache that holds `share` of all experts at the high width."""
    slices, n_experts = slices_of(model, cache)
    return round(share * sum(slices) * n_experts * len(experts_of(model)))


def _aligned(natural: np.ndarray, values: np.ndarray, events: Events) -> tuple[np.ndarray, np.ndarray]:
    """The applied ids and low-precision flags, (n, k) each.

    Where the policy took the best values there are, the router's own choice stands, in its order: it may have broken a tie
    another way. A row that was rerouted takes the policy's order, by falling gate.
    """
    best = np.argsort(-values, axis=1, kind="stable")[:, : natural.shape[1]]
    is_same = (np.sort(best, axis=1) == np.sort(events.ids, axis=1)).all(axis=1)
    chosen = np.where(is_same[:, None], natural, events.ids)
    place = (chosen[:, :, None] == events.ids[:, None, :]).argmax(axis=2)
    return chosen, np.take_along_axis(events.is_high, place, axis=1) == 0


class Placed(RouterSlot):
    """Placement and bit widths: a prompt runs at full precision, its routing decides, and what follows runs on that.

    Routing stays the model's own; a selection of an expert that is not hot is computed by its replica; experts None: by itself.
    losses (L, E, 4): at 1 to 4 bits, of the model (warehouse/losses.py). Where prompts were counted before, windows run in one
    pass, outside the loop:

        placed.place(seen)
        placed.hold(rows, n_prompt)
        model(windows[rows])
    """

    def __init__(
        self, model: nn.Module, experts: ReplicaExperts | None, policy: MixedPrecision, losses: NDArray[np.float64]
    ) -> None:
        super().__init__(model)
        self.experts, self.policy, self.losses = experts, policy, losses
        self.totals = {"selected": 0, "hot": 0, "cold": 0, "table_loss": 0.0}
        self.decided = np.zeros((0, *losses.shape[:2]), np.int8)  # (sequences, L, E) bits, 0: full precision
        self._at: dict[int, int] = {}  # where a request's stand
        self._counts: dict[int, NDArray[np.float64]] = {}  # (2, L, E) selections and weights of its prompt
        self._held: tuple[slice, int] | None = None

    def _enter(self, stack: ExitStack) -> None:
        stack.callback(self.begin, ())
        if self.experts is not None:
            stack.enter_context(self.experts)

    @property
    def measured(self) -> dict[str, float]:
        t = self.totals
        return {"hot_frac": t["hot"] / max(1, t["selected"]), "table_loss": t["table_loss"] / max(1, t["cold"])}

    def begin(self, requests: Sequence[Request]) -> None:
        """Raises ValueError for a placement that goes by more than a request's own prompt."""
        if requests and self.policy.needs_decode:
            raise ValueError(f"placement {self.policy.placement} sees more than a request's prompt: it runs on text only")
        self._counts, self._at, self._held = {r.request_id: np.zeros((2, *self.losses.shape[:2])) for r in requests}, {}, None

    def after(self, done: Pass) -> None:
        """Prompts that are whole decide."""
        if done.kind == "prefill" and done.is_last and self._counts:
            of = np.stack([self._counts[name] for name in done.request_ids], axis=1)
            p, before = of[0].astype(np.int64), self.decided if self._at else self.decided[:0]
            self.place(Seen(p, of[1], np.zeros_like(p), p.sum(axis=0)))
            self._at |= {name: len(before) + i for i, name in enumerate(done.request_ids)}
            self.decided = np.concatenate([before, self.decided])

    def place(self, seen: Seen) -> None:
        """Decides for every sequence of `seen`, once."""
        self.decided = self.policy.widths(seen, self.losses)
        self.totals["cold"] += int((self.decided > 0).sum())
        self.totals["table_loss"] += table_loss(np.broadcast_to(self.losses, (*self.decided.shape, 4)), self.decided)

    def hold(self, rows: slice, first: int = 0) -> None:
        """The next pass is of these sequences of what was decided; replicas compute from column `first` of it on."""
        self._held = rows, first

    def route(self, index: int, choice: Choice) -> None:
        coming, ids = choice.coming, choice.ids
        if coming is None and self._held is not None:
            held, first = self._held
            of_layer = self.decided[held, index]
            chosen = ids.cpu().numpy().reshape(len(of_layer), -1, ids.shape[1])
            copy = of_layer[np.arange(len(of_layer))[:, None, None], chosen]
            self._serve(copy[:, first:])
            copy[:, :first] = 0
            self._send(choice, copy.reshape(len(ids), -1))
        elif coming is not None and coming.kind == "prefill":
            weights, applied = choice.weights.float().cpu().numpy(), ids.cpu().numpy()
            for name, rows in zip(coming.request_ids, coming.places(len(ids)), strict=True):
                counts = self._counts[name][:, index]
                np.add.at(counts[0], applied[rows].ravel(), 1)
                np.add.at(counts[1], applied[rows].ravel(), weights[rows].ravel())
        elif coming is not None and coming.kind in ("decode", "verify"):
            copies, applied = np.zeros(tuple(ids.shape), np.int8), ids.cpu().numpy()
            for name, rows in zip(coming.request_ids, coming.places(len(ids)), strict=True):
                copies[rows] = self.decided[self._at[name], index][applied[rows]]
                self._serve(copies[rows])
            self._send(choice, copies)

    def _send(self, choice: Choice, copy: np.ndarray) -> None:
        if self.experts is not None:
            self.experts.copy_of[choice.layer] = torch.from_numpy(copy).to(choice.ids.device)

    def _serve(self, copy: np.ndarray) -> None:
        self.totals["hot"] += int((copy == 0).sum())
        self.totals["selected"] += copy.size


class Resident(RouterSlot):
    """Which experts lie in the fast tier, and which compute where they lie: what replay counts, counted live.

    One cache of all requests under way. An iteration has an event per MoE layer: decodes in order of joining, then the prompts'
    slices if the layer is of their group; distinct experts in order of last mention; placement, then the look-up of what is left.
    cache: None holds all. log: (layer, experts, near, hits of the others) of every event.
    """

    def __init__(self, model: nn.Module, cache: ExpertCache | None, place: EventPlacement | None = None) -> None:
        super().__init__(model)
        self.cache, self.place = cache, place
        self.n_experts = n_experts_of(next(iter(experts_of(model).values())))
        self.totals = {"n_lookups": 0, "n_hits": 0, "n_away": 0}
        self.log: list[tuple[int, NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]] = []
        self._ids: dict[int, list[np.ndarray]] = {}  # of a request: its rows by MoE layer, those of its prompt until they count
        self._prompts: dict[int, list[np.ndarray]] = {}

    def begin(self, requests: Sequence[Request]) -> None:
        self._ids, self._prompts = {}, {}

    @property
    def measured(self) -> dict[str, float]:
        """Share of look-ups that hit."""
        return {"miss_frac": (self.totals["n_lookups"] - self.totals["n_hits"]) / max(1, self.totals["n_lookups"])}

    def route(self, index: int, choice: Choice) -> None:
        coming = choice.coming
        if coming is None or coming.kind in ("draft", "rehearsal"):
            return
        applied, _ = by_weight(choice.ids.cpu().numpy(), choice.weights.float().cpu().numpy())  # as a tape lists them
        kept = self._prompts if coming.kind == "prefill" else self._ids
        for name, rows in zip(coming.request_ids, coming.places(len(applied)), strict=True):
            kept.setdefault(name, [np.zeros((0, self.top_k), np.int64)] * len(self.blocks))
            before = kept[name][index] if coming.kind == "prefill" else applied[:0]
            kept[name][index] = np.concatenate([before, applied[rows]])

    def end(self, step: Step) -> None:
        for index, layer in enumerate(self.blocks):
            rows = [self._ids[name][index] for name in step.decoded]
            if step.first_layer <= layer < step.last_layer:
                rows += [self._prompts[name][index][start : start + take] for name, start, take in step.prompts]
            if rows:
                self._event(index, np.concatenate(rows))

    def _event(self, index: int, ids: np.ndarray) -> None:
        mentioned = ids.ravel()
        first, counts = np.unique(mentioned[::-1], return_index=True)[1], np.bincount(mentioned, minlength=self.n_experts)
        keys = np.ascontiguousarray(mentioned[::-1][np.sort(first)][::-1], np.int64)
        near, base = np.zeros(keys.size, np.uint8), index * self.n_experts
        if self.place is not None:
            held = np.ones(self.n_experts, np.uint8)
            if self.cache is not None:
                held = np.ascontiguousarray(self.cache.resident[base : base + self.n_experts], np.uint8)
            where = dispatcher_of(self.place.where, WHERE_SIGNATURE)
            where(index, keys, counts[keys].astype(np.int64), held, near, np.asarray(self.place.params(), np.float64))
        looked_up = keys[near == 0]
        hits = np.ones(looked_up.size, np.bool_)
        if self.cache is not None:  # an event in which all are near is one
            bounds = np.array([0, looked_up.size], np.int64)
            hits = self.cache.advance((base + looked_up).astype(np.int32), bounds).astype(np.bool_)
        self.log.append((index, keys, near.astype(np.bool_), hits))
        told = {"n_lookups": looked_up.size, "n_hits": int(hits.sum()), "n_away": int(near.sum())}
        self.totals = {name: total + told[name] for name, total in self.totals.items()}

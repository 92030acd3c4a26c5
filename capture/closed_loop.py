"""A sliced-serving policy inside a live model: it reroutes tokens and lowers precision, and the model computes with that.

    with ClosedLoop(loaded.model, system, capacity_bytes) as loop:
        decode(model, requests, ..., on_pass=loop.record, before_prefill=loop.begin)

Every request has a cache of its own: its prompt is prefilled layer by layer, the warm-up sets the cache's first state, and each
decoded token advances it by the kernels that the replay uses (policies/sliced). A hook on every router hands the policy the raw
logits and puts its choice in place of the router's; selections it leaves alone keep the router's own weights bit for bit.
"""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import nn

from tokentape.capture.blocks import find_routers
from tokentape.capture.decode import Pass
from tokentape.capture.families import refuse_rerouting, score_rule
from tokentape.capture.hooks import Hooked
from tokentape.capture.sliced_experts import SlicedExperts
from tokentape.capture.stacked_experts import experts_of, n_experts_of
from tokentape.policies.matryoshka import MAT
from tokentape.policies.scoring import UNKNOWN, gates, ranking, weights_of
from tokentape.policies.sliced import Controller, Events, SlicedCache, SliceMoE
from tokentape.warehouse.formats import slice_bytes

# Counted over decoded tokens after the free steps.
FIELDS = ("tokens", "flash_bytes", "dram_bytes", "accesses", "misses", "degraded", "high", "rerouted")
SPARSEMIXER = "sparsemixer"
_EVENTS = tuple(field.name for field in dataclasses.fields(Events))


class ClosedLoop(Hooked):
    """Context manager around a model with routers. capacity_bytes: of each request's cache.

    scheme: how low-bit weights follow from high-bit ones (docs/quantise.md), at the widths of system.cache; None: experts stay
    as loaded, and only their bytes are those of the slices, so that routing alone can be studied. Raises ValueError for a family
    whose score rule is not known, or gives a rerouted token no weights.
    """

    def __init__(
        self, model: nn.Module, system: SliceMoE, capacity_bytes: int, scheme: str | None = "amat", seed: int = 0
    ) -> None:
        self.model, self.system, self.capacity_bytes, self.seed = model, system, capacity_bytes, seed
        self.routers = find_routers(model)
        if not self.routers:
            raise ValueError(f"{type(model).__name__} is a dense model without expert routers: there is nothing to reroute")
        refuse_rerouting(model)
        top_k = int(next(iter(self.routers.values())).top_k)  # type: ignore[arg-type]
        self.rule, self.params = score_rule(model, top_k)
        if self.rule == UNKNOWN:
            raise ValueError(
                f"{type(model).__name__}: its score rule is not known (capture/families.py), so it cannot be rerouted"
            )
        if self.rule == SPARSEMIXER and system.needs_scores:
            raise ValueError(
                f"{type(model).__name__}: score rule {self.rule} weighs only the experts that the model itself would choose; use "
                "router lru without a budget"
            )
        self.slices, self.n_experts = slices_of(model, system.cache)
        self.top_k = top_k
        self.experts = SlicedExperts(model, MAT(system.cache.bits_high, system.cache.bits_low), scheme) if scheme else None
        self.totals = dict.fromkeys(FIELDS, 0)
        self._controllers: list[Controller] = []
        self._mask: torch.Tensor | None = None
        self._in_prefill, self._n_steps = False, 0
        self._counted: dict[str, np.ndarray] = {}  # of the pass under way, by request

    def _enter(self, stack: ExitStack) -> None:
        stack.callback(self._forget)
        if self.experts is not None:
            stack.enter_context(self.experts)
        for index, (layer, router) in enumerate(self.routers.items()):
            stack.enter_context(router.register_forward_hook(self._hook(index, layer)))

    def _forget(self) -> None:
        self._controllers = []

    @property
    def miss_frac(self) -> float:
        """High-bit-normalised miss rate after the free steps: Flash bytes over accesses x high-bit bytes."""
        return self.totals["flash_bytes"] / max(1, self.totals["accesses"] * sum(self.slices))

    def begin(self, mask: torch.Tensor | None, n_rows: int = 1) -> None:
        """A new batch comes: empty caches. mask (batch, columns) bool of real tokens; None: no padding, `n_rows` requests."""
        n_rows = n_rows if mask is None else len(mask)
        size = (len(self.routers), self.n_experts, self.top_k, *self.slices, self.capacity_bytes)
        self._controllers = [Controller(self.system, *size, seed=self.seed + row) for row in range(n_rows)]
        self._mask, self._in_prefill, self._n_steps = None if mask is None else mask.cpu(), True, 0
        self._reset_counts()

    def record(self, done: Pass) -> None:
        """A pass has run: ends the prefill, or counts what the pass's members did."""
        if done.kind == "prefill":
            for controller in self._controllers:
                controller.end_prefill()
            self._in_prefill = False
        else:
            self._n_steps += 1
            if self._n_steps > self.system.free_steps:
                self.totals["tokens"] += len(done.rows)
                for name, counts in self._counted.items():
                    self.totals[name] += int(counts[done.rows].sum())
        self._reset_counts()

    def _reset_counts(self) -> None:
        self._counted = {name: np.zeros(len(self._controllers), np.int64) for name in FIELDS[1:]}

    def _hook(self, index: int, layer: int) -> Any:
        def apply(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if not self._controllers:
                return None
            logits, weights, ids = output
            scores, natural = logits.detach().float().cpu().numpy(), ids.cpu().numpy()
            values = ranking(scores, self.rule, self.params, layer).astype(np.float32)
            rows, events = self._serve(index, values, gates(scores, self.rule).astype(np.float32))
            chosen, is_low = natural.copy(), np.zeros(natural.shape, np.bool_)
            chosen[rows], is_low[rows] = _aligned(natural[rows], values[rows], events)
            if not self._in_prefill:
                for name, counts in counted(events, natural).items():
                    self._counted[name] += counts
            if self.experts is not None and is_low.any():
                self.experts.copy_of[layer] = torch.from_numpy(is_low).to(ids.device)
            changed = np.flatnonzero((chosen != natural).any(axis=1))
            if not changed.size:
                return None
            where = torch.from_numpy(changed).to(ids.device)
            made = weights_of(scores[changed].astype(np.float64), chosen[changed], self.rule, self.params)
            weights, ids = weights.clone(), ids.clone()
            weights[where] = torch.from_numpy(made).to(weights)
            ids[where] = torch.from_numpy(chosen[changed]).to(ids)
            return logits, weights, ids

        return apply

    def _serve(self, index: int, values: np.ndarray, dense: np.ndarray) -> tuple[np.ndarray, Events]:
        """What the requests' controllers do with a layer's rows, and which rows those are: all but padding."""
        by_request = np.arange(len(values)).reshape(len(self._controllers), -1)
        rows = list(by_request)
        if self._in_prefill and self._mask is not None:
            rows = [columns[real] for columns, real in zip(by_request, self._mask.numpy(), strict=True)]
        served = []
        for controller, mine in zip(self._controllers, rows, strict=True):
            run = controller.prefill if self._in_prefill else controller.decode
            served.append(run(np.full(mine.size, index, np.int32), values[mine], dense[mine]))
        if len(served) == 1:
            return rows[0], served[0]
        return np.concatenate(rows), Events(*(np.concatenate([getattr(e, name) for e in served]) for name in _EVENTS))


def counted(events: Events, natural: np.ndarray) -> dict[str, np.ndarray]:
    """FIELDS but tokens, (n,) each: what each event did; natural (n, k): what the router itself chose."""
    return {
        "flash_bytes": events.flash_bytes,
        "dram_bytes": events.dram_bytes,
        "accesses": np.full(len(natural), natural.shape[1]),
        "misses": (events.msb_hit == 0).sum(axis=1),
        "degraded": (events.degraded == 1).sum(axis=1),
        "high": (events.is_high == 1).sum(axis=1),
        "rerouted": (events.ids[:, :, None] != natural[:, None, :]).all(axis=2).sum(axis=1),
    }


def slices_of(model: nn.Module, cache: SlicedCache) -> tuple[tuple[int, int], int]:
    """(MSB, LSB) slice bytes of one routed expert of a live model, and how many a layer has."""
    experts = next(iter(experts_of(model).values()))
    n_weights = sum(p.numel() // p.shape[0] for p in experts.parameters(recurse=False) if p.ndim == 3)
    msb, lsb = slice_bytes(n_weights, max(cache.bits_high, cache.bits_low + 1), cache.bits_low)
    return (msb, lsb if cache.bits_high > cache.bits_low else 0), n_experts_of(experts)


def capacity_of(model: nn.Module, cache: SlicedCache, share: float) -> int:
    """Bytes of a cache that holds `share` of all experts at the high width."""
    slices, n_experts = slices_of(model, cache)
    return round(share * sum(slices) * n_experts * len(find_routers(model)))


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

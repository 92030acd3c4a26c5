"""What tokens look like when they reach an expert: a seeded reservoir of hidden vectors per (layer, expert).

    with Reservoirs(model, layers, seed) as reservoirs:
        decode(model, requests, ..., before_pass=reservoirs.before)
    rows = reservoirs.rows(layer, expert)

A reservoir is a uniform sample of at most ROWS of the vectors routed to the expert, the same for every choice of layers. An
expert that saw fewer than LEAST is topped up with other tokens of its layer. CXL-NDP, section 4.4 of its specification.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from tokentape.capture.hooks import Hooked
from tokentape.capture.live.copies import experts_of, n_experts_of
from tokentape.capture.live.slots import Pass

ROWS, LEAST = 4096, 64
HELD_OUT_FRAC = 0.2
POOL = -1  # in place of an expert: any tokens of the layer


@dataclass(frozen=True)
class Rows:
    """Hidden vectors of one expert, (n, H) f32 on the host. topped_up: others of the layer are among them."""

    calibration: torch.Tensor
    held_out: torch.Tensor
    topped_up: bool


class _Reservoir:
    """Algorithm R (Vitter 1985) over rows of several tensors that come in batches."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.size, self.rng, self.seen = size, rng, 0
        self._kept: list[torch.Tensor] = []

    def add(self, *columns: torch.Tensor) -> None:
        """(n, ...) each; what is kept is copied to the host."""
        n = len(columns[0])
        arrived = self.seen + np.arange(n)
        drawn = (self.rng.random(n) * (arrived + 1)).astype(np.int64)
        slots = np.where(arrived < self.size, arrived, drawn)
        slots, newest = np.unique(slots[::-1], return_index=True)  # of several that take one slot the last stays
        taken = slots < self.size
        where, which = torch.from_numpy(slots[taken]), torch.from_numpy(n - 1 - newest[taken])
        if not self._kept:
            self._kept = [torch.zeros((self.size, *c.shape[1:]), dtype=c.dtype) for c in columns]
        for kept, column in zip(self._kept, columns, strict=True):
            kept[where] = column[which.to(column.device)].cpu()
        self.seen += n

    @property
    def columns(self) -> list[torch.Tensor]:
        return [kept[: min(self.seen, self.size)] for kept in self._kept]


class Reservoirs(Hooked):
    """Context manager around a model: watches the experts of `layers`, changes nothing."""

    def __init__(self, model: nn.Module, layers: Iterable[int], seed: int, size: int = ROWS) -> None:
        everything = experts_of(model)
        self.seed, self._modules = seed, {layer: everything[layer] for layer in layers}
        self._mask: torch.Tensor | None = None
        self._of: dict[tuple[int, int], _Reservoir] = {}
        for layer, experts in self._modules.items():
            self._of[layer, POOL] = _Reservoir(LEAST, self._rng(layer, POOL))
            for expert in range(n_experts_of(experts)):
                self._of[layer, expert] = _Reservoir(size, self._rng(layer, expert))

    def _rng(self, layer: int, expert: int, use: int = 0) -> np.random.Generator:
        return np.random.default_rng((self.seed, layer, expert - POOL, use))

    def _enter(self, stack: ExitStack) -> None:
        for layer, experts in self._modules.items():
            stack.enter_context(experts.register_forward_pre_hook(partial(self._keep, layer), with_kwargs=True))

    def before(self, coming: Pass) -> None:
        """A pass of a prompt comes, whose padding does not count."""
        self._mask = coming.keep

    def _keep(self, layer: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states, ids = args[0], kwargs["top_k_index"] if "top_k_index" in kwargs else args[1]
        if self._mask is not None:
            real = self._mask.to(states.device)
            states, ids = states[real], ids[real]
        self._of[layer, POOL].add(states, ids)
        for expert in ids.unique().tolist():
            self._of[layer, expert].add(states[(ids == expert).any(dim=1)])

    def rows(self, layer: int, expert: int) -> Rows:
        """The expert's sample, a fifth of it held out. Raises ValueError for too little text, and where numbers overflow."""
        pool = self._of[layer, POOL]
        if pool.seen < LEAST:
            raise ValueError(f"the calibration text has {pool.seen} tokens; an expert needs at least {LEAST}: give more text")
        others, ids = pool.columns
        own = self._of[layer, expert].columns
        rows, rng = own[0] if own else others[:0], self._rng(layer, expert, use=1)
        n_missing = max(0, LEAST - len(rows))
        if n_missing:
            others = others[(ids != expert).all(dim=1)]
            rows = torch.cat([rows, others[rng.permutation(len(others))[:n_missing]]])
        rows = rows[rng.permutation(len(rows))].float()
        if not bool(torch.isfinite(rows).all()):
            raise ValueError(f"layer {layer}, expert {expert}: hidden vectors overflow; use --dtype bfloat16 or float32")
        n_held_out = round(HELD_OUT_FRAC * len(rows))
        return Rows(rows[n_held_out:], rows[:n_held_out], n_missing > 0)

"""Placement and mixed precision inside a live model: the prompt runs at full precision, its routing decides, decode runs on that.

    with CXLNDPLoop(experts, policy, losses) as loop:
        in_loop(loop)(model, requests, ...)       # as capture.decode.decode: each request places by its own prompt
        loop.place(seen)                          # or windows of text whose prompts were counted before,
        loop.hold(rows, n_prompt)
        model(windows[rows])                      # prompt and teacher-forced decode in one pass
        loop.scored()

Routing stays the model's own; a selection of an expert that is not hot is computed by its replica.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tokentape.capture.blocks import MoeBlock, find_blocks
from tokentape.capture.cxl_ndp.replicas import ReplicaExperts
from tokentape.capture.decode import Pass
from tokentape.capture.families import read_choice
from tokentape.capture.hooks import Hooked
from tokentape.policies.bits import table_loss
from tokentape.policies.mixed import MixedPrecision
from tokentape.policies.placement import Seen

Ints = NDArray[np.int64]


class Counts:
    """selections, weights: (rows, L, E), how often each row's counted tokens chose an expert and the gate weights of that."""

    def __init__(self, n_rows: int, n_layers: int, n_experts: int) -> None:
        self.selections = np.zeros((n_rows, n_layers, n_experts), np.int64)
        self.weights = np.zeros((n_rows, n_layers, n_experts))

    def add(self, layer: int, ids: torch.Tensor, weights: torch.Tensor, counted: NDArray[np.bool_]) -> None:
        """ids, weights: (rows x columns, k) of a router; counted: (rows, columns). layer: its place among the MoE layers."""
        row, experts = np.nonzero(counted)[0].repeat(ids.shape[1]), ids.cpu().numpy()[counted.ravel()].ravel()
        np.add.at(self.selections[:, layer], (row, experts), 1)
        np.add.at(self.weights[:, layer], (row, experts), weights.float().cpu().numpy()[counted.ravel()].ravel())


class CXLNDPLoop(Hooked):
    """Context manager. losses: (L, E, 4) at 1 to 4 bits, of the model (warehouse/losses.py)."""

    def __init__(self, experts: ReplicaExperts, policy: MixedPrecision, losses: NDArray[np.float64]) -> None:
        self.experts, self.policy, self.losses = experts, policy, losses
        self.totals = {"selected": 0, "hot": 0, "cold": 0, "table_loss": 0.0}
        self._counts: Counts | None = None
        self._mask: NDArray[np.bool_] | None = None  # (rows, columns) of the prompt that is counted; None: no padding
        self._decided: NDArray[np.int8] = np.zeros((0, *losses.shape[:2]), np.int8)  # (rows, L, E), 0: full precision
        self._widths: NDArray[np.int8] | None = None  # of the rows of the next passes; None: a prompt
        self._first = 0  # column from which on they hold
        self._served: Ints = np.zeros((0, 2), np.int64)  # (rows, hot and all selections) of the pass

    def _enter(self, stack: ExitStack) -> None:
        stack.callback(self._forget)
        stack.enter_context(self.experts)
        for index, (layer, block) in enumerate(find_blocks(self.experts.model).items()):
            stack.enter_context(block.router.register_forward_hook(self._hook(index, layer, block)))

    def _forget(self) -> None:
        self._counts = self._widths = None

    @property
    def measured(self) -> dict[str, float]:
        """What the loop counts, as columns of table `quality`."""
        t = self.totals
        return {"hot_frac": t["hot"] / max(1, t["selected"]), "table_loss": t["table_loss"] / max(1, t["cold"])}

    def begin(self, mask: torch.Tensor | None, n_rows: int = 1) -> None:
        """A new batch comes. mask (batch, columns) bool of real tokens; None: no padding, `n_rows` requests.

        Raises ValueError for a placement that goes by more than a request's own prompt.
        """
        if self.policy.needs_decode:
            raise ValueError(f"placement {self.policy.placement} sees more than a request's prompt: it runs on text only")
        self._mask = None if mask is None else mask.cpu().numpy()
        self._counts = Counts(n_rows if mask is None else len(mask), *self.losses.shape[:2])
        self._widths = None

    def record(self, done: Pass) -> None:
        """A pass of capture.decode has run: the prompt decides, or what its members selected counts."""
        if done.kind == "decode":
            self._count(done.rows)
            return
        assert self._counts is not None
        p, w = self._counts.selections, self._counts.weights
        self.place(Seen(p, w, np.zeros_like(p), p.sum(axis=0)))
        self.hold(slice(None))

    def place(self, seen: Seen) -> None:
        """Decides for every row of `seen`, once."""
        self._decided = self.policy.widths(seen, self.losses)
        self.totals["cold"] += int((self._decided > 0).sum())
        self.totals["table_loss"] += table_loss(np.broadcast_to(self.losses, (*self._decided.shape, 4)), self._decided)

    def hold(self, rows: slice, first: int = 0) -> None:
        """The next passes are of these rows of what was decided; replicas compute from column `first` of a pass on."""
        self._widths, self._first = self._decided[rows], first
        self._served = np.zeros((len(self._widths), 2), np.int64)

    def scored(self) -> None:
        """The pass over the rows held has run."""
        self._count(list(range(len(self._served))))

    def _count(self, rows: list[int]) -> None:
        self.totals["hot"] += int(self._served[rows, 0].sum())
        self.totals["selected"] += int(self._served[rows, 1].sum())
        self._served[:] = 0

    def _hook(self, index: int, layer: int, block: MoeBlock) -> Any:
        def watch(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            _, weights, ids = read_choice(block, output)
            if self._widths is not None:
                self._send(index, layer, ids)
            elif self._counts is not None:
                n_rows = len(self._counts.selections)
                counted = np.ones((n_rows, len(ids) // n_rows), np.bool_) if self._mask is None else self._mask
                self._counts.add(index, ids, weights, counted)

        return watch

    def _send(self, index: int, layer: int, ids: torch.Tensor) -> None:
        assert self._widths is not None
        of_layer = self._widths[:, index]  # (rows, E)
        chosen = ids.cpu().numpy().reshape(len(of_layer), -1, ids.shape[1])
        copy = of_layer[np.arange(len(of_layer))[:, None, None], chosen]
        decoded = copy[:, self._first :]
        self._served += np.stack([(decoded == 0).sum(axis=(1, 2)), np.full(len(copy), decoded[0].size)], axis=1)
        copy[:, : self._first] = 0
        self.experts.copy_of[layer] = torch.from_numpy(copy.reshape(len(ids), -1)).to(ids.device)

"""Hooks on a model's routers: they count what the router chose, and confine the choice to a pool of experts while one is set.

Scores are the router's own; only the choice is restricted, and the weights of the chosen are made by the family's rule (which
renormalises where the model does). A pool smaller than top-k is used whole: the places left over get weight zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from tokentape.capture.blocks import find_routers
from tokentape.capture.families import refuse_rerouting, score_rule
from tokentape.capture.hooks import Hooked
from tokentape.policies.scoring import UNKNOWN, gates, ranking, weights_of
from tokentape.policies.speculation.pool import restricted_topk, selections

SPARSEMIXER = "sparsemixer"
OUTSIDE_GROUPS = 1e6  # below every score: experts of groups that do not compete fill a pool that has too few others


class Throttle(Hooked):
    """Context manager around a model with routers. Raises ValueError for one whose choice cannot be restricted.

    counts (L, E): original selections since `take`. overlap, mass: of restricted tokens, the share of the original top-k that
    was kept and the router probability inside the pool, summed over `n_restricted` (token, layer) pairs.
    """

    def __init__(self, model: nn.Module) -> None:
        self.routers = find_routers(model)
        name = type(model).__name__
        if not self.routers:
            raise ValueError(f"{name} is a dense model without expert routers: it has no experts to draft with")
        refuse_rerouting(model)
        self.top_k = int(next(iter(self.routers.values())).top_k)  # type: ignore[arg-type]
        self.rule, self.params = score_rule(model, self.top_k)
        if self.rule in (UNKNOWN, SPARSEMIXER):
            raise ValueError(
                f"{name}: score rule {self.rule} cannot be restricted to a pool; use --draft quant, model:ID or ngram"
            )
        self.n_experts = 0  # known from the first pass on
        self.overlap = self.mass = 0.0
        self.n_restricted = 0
        self._counts: dict[int, np.ndarray] = {}
        self._members: np.ndarray | None = None

    def _enter(self, stack: ExitStack) -> None:
        for index, (layer, router) in enumerate(self.routers.items()):
            stack.enter_context(router.register_forward_hook(self._hook(index, layer)))

    def take(self) -> np.ndarray:
        """(L, E) original selections since the last call."""
        counts, self._counts = self._counts, {}
        nothing = np.zeros(self.n_experts, np.int64)
        return np.stack([counts.get(index, nothing) for index in range(len(self.routers))])

    @contextmanager
    def confined(self, members: np.ndarray) -> Iterator[None]:
        """Inside the block the routers choose among members (L, c) only."""
        self._members = members if members.shape[1] < self.n_experts else None
        try:
            yield
        finally:
            self._members = None

    def _hook(self, index: int, layer: int) -> Any:
        def apply(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            logits, weights, ids = output
            self.n_experts = logits.shape[1]
            natural = ids.cpu().numpy()
            self._counts[index] = self._counts.get(index, 0) + selections(natural, self.n_experts)
            if self._members is None:
                return None
            scores = logits.detach().double().cpu().numpy()
            chosen, made = self._restricted(scores, self._members[index], natural, layer)
            ids, weights = ids.clone(), weights.clone()
            if (changed := np.flatnonzero((np.sort(chosen, axis=1) != np.sort(natural, axis=1)).any(axis=1))).size:
                where = torch.from_numpy(changed).to(ids.device)
                ids[where] = torch.from_numpy(chosen[changed]).to(ids)
                weights[where] = torch.from_numpy(made[changed]).to(weights)
            return logits, weights, ids

        return apply

    def _restricted(
        self, scores: np.ndarray, members: np.ndarray, natural: np.ndarray, layer: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(n, k) ids and weights; where the pool has fewer, its first expert repeats with weight zero."""
        chosen = restricted_topk(rankable(scores, self.rule, self.params, layer), members, self.top_k)
        made = weights_of(scores, chosen, self.rule, self.params)
        kept = (chosen[:, :, None] == natural[:, None, :]).any(axis=2).sum(axis=1) / natural.shape[1]
        dense = gates(scores, self.rule)
        self.overlap += float(kept.sum())
        self.mass += float((dense[:, members].sum(axis=1) / dense.sum(axis=1)).sum())
        self.n_restricted += len(scores)
        missing = self.top_k - chosen.shape[1]
        if missing:
            chosen = np.concatenate([chosen, np.repeat(chosen[:, :1], missing, axis=1)], axis=1)
            made = np.pad(made, ((0, 0), (0, missing)))
        return chosen, made


def rankable(scores: np.ndarray, rule: str, params: Any, layer: int) -> np.ndarray:
    """(n, E) finite values that rank as the family's rule does; experts of other groups come after, by their scores."""
    values = ranking(scores, rule, params, layer)
    return np.where(np.isneginf(values), scores - OUTSIDE_GROUPS, values)

"""What decides inside a model: slots that are entered together and told of every pass before and after it.

    with Inside(model, Sliced(...), KV(...), drafter=...) as inside:
        decode(model, requests, ..., inside)

One hook on every router asks, in order, the slots that choose experts: pool or route, precision, place, residency.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from tokentape.capture.blocks import MoeBlock, find_blocks
from tokentape.capture.families import read_choice, refuse_rerouting, score_rule
from tokentape.capture.hooks import Hooked
from tokentape.policies.scoring import UNKNOWN, gates, ranking, weights_of

if TYPE_CHECKING:
    from tokentape.capture.live.texts import Text
    from tokentape.capture.speculation.drafters import Drafter

SPARSEMIXER = "sparsemixer"


@dataclass(frozen=True)
class Request:
    """A prompt and how far to go on: `forced` ids are fed in place of chosen ones where given."""

    request_id: int
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    forced: tuple[int, ...] | None = None
    seed: int = 0

    @property
    def budget(self) -> int:
        return self.max_new_tokens if self.forced is None else min(self.max_new_tokens, len(self.forced))


@dataclass(frozen=True)
class Pass:
    """A forward pass that comes or has run. Lists run over its members, the requests that still need it.

    kind: prefill, decode, or of speculation rehearsal, draft, verify: these have one member, and `nodes` of its draft's tree as
    inputs. is_last: of a prompt's passes. is_target: run by the target, whose routers see it.
    """

    kind: str
    request_ids: list[int]
    rows: list[int]  # row of each member in the batch
    starts: list[int]  # first position processed
    counts: list[int]  # positions processed
    pads: list[int]  # padded columns before the member's first token
    width: int  # columns of the batch so far, padding included
    keep: torch.Tensor | None = None  # (batch * columns of this pass,) bool: what is not padding; None: all
    n_rows: int = 1  # of the batch
    is_last: bool = True
    round: int = 0
    nodes: list[int] = field(default_factory=list)
    is_target: bool = True
    text: Text | None = field(default=None, repr=False, compare=False)

    @property
    def request_id(self) -> int:
        """The first member's, as the others below."""
        return self.request_ids[0]

    @property
    def start(self) -> int:
        return self.starts[0]

    @property
    def n_tokens(self) -> int:
        return self.counts[0]

    def places(self, n: int) -> list[np.ndarray]:
        """Of each member, which of the pass's n rows, columns of one request after the other, are its tokens."""
        columns = np.arange(n).reshape(self.n_rows, -1)
        pads = self.pads if self.kind == "prefill" else [0] * len(self.rows)
        return [columns[row, pad:] for row, pad in zip(self.rows, pads, strict=True)]


@dataclass(frozen=True)
class Step:
    """An iteration that is done: requests that decoded, in order of joining, and slices of prompts (request, first position,
    tokens) in the layers first_layer .. last_layer - 1."""

    decoded: list[int]
    prompts: list[tuple[int, int, int]]
    first_layer: int
    last_layer: int


class Slot(Hooked):
    """A decision inside a model; what it is told does nothing unless it says so."""

    @property
    def measured(self) -> dict[str, float]:
        """What it counted, as columns of table `quality`."""
        return {}

    def begin(self, requests: Sequence[Request]) -> None:
        """A new group of requests comes; their ids differ."""

    def new_cache(self, pads: list[int], takes_back: bool) -> Any:
        """An empty cache for a batch with so many padded columns before each request; None: it asks for none of its own."""

    def before(self, coming: Pass) -> None:
        """A pass comes."""

    def after(self, done: Pass) -> None:
        """A pass has run."""

    def commit(self, request_id: int, kept: list[int]) -> None:
        """A request's decode or verify pass is decided: which of its tokens stay."""

    def end(self, step: Step) -> None:
        """An iteration is done."""


class RouterSlot(Slot):
    """A slot that chooses experts, or watches who is chosen. Raises ValueError for a model without routers."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.blocks = model, find_blocks(model)
        if not self.blocks:
            raise ValueError(f"{type(model).__name__} is a dense model without expert routers: it has no experts to choose from")
        self.top_k = next(iter(self.blocks.values())).top_k

    def route(self, index: int, choice: Choice) -> None:
        """The router of MoE layer number `index` has chosen; `choice.put` puts something else in its place."""


class Rerouting(RouterSlot):
    """A slot that puts other experts in place of the routers' own. needs_weights: also where the family's rule weighs none but
    its own choice. Raises ValueError for families that cannot be rerouted."""

    def __init__(self, model: nn.Module, needs_weights: bool, remedy: str) -> None:
        super().__init__(model)
        refuse_rerouting(model)
        self.rule, self.params = score_rule(model, self.top_k)
        name = type(model).__name__
        if self.rule == UNKNOWN:
            raise ValueError(f"{name}: its score rule is not known (capture/families.toml), so it cannot be rerouted; {remedy}")
        if self.rule == SPARSEMIXER and needs_weights:
            raise ValueError(
                f"{name}: score rule {self.rule} weighs only the experts that the model itself would choose; {remedy}"
            )


class Choice:
    """What a layer's router said of a pass's rows, and what is made of it: logits (n, E), weights and ids (n, k)."""

    def __init__(self, layer: int, block: MoeBlock, output: Any, coming: Pass | None) -> None:
        self.layer, self.coming = layer, coming
        self.logits, self.weights, self.ids = read_choice(block, output)
        self.is_changed = False

    @cached_property
    def natural(self) -> np.ndarray:
        """(n, k): the router's own."""
        return np.asarray(self.ids.cpu().numpy())

    @cached_property
    def scores(self) -> np.ndarray:
        """(n, E) f32."""
        return np.asarray(self.logits.detach().float().cpu().numpy())

    def values(self, of: Rerouting) -> tuple[np.ndarray, np.ndarray]:
        """(n, E) f32 each: what the family ranks experts by, and the weight of every one before the top k."""
        values = ranking(self.scores, of.rule, of.params, self.layer).astype(np.float32)
        return values, gates(self.scores, of.rule).astype(np.float32)

    def put(self, of: Rerouting, chosen: np.ndarray, changed: np.ndarray) -> None:
        """Rows `changed` of chosen (n, k) in place of the router's, with the weights that the family's rule gives them; an id
        that repeats in a row weighs nothing."""
        if not changed.size:
            return
        scores, ids = self.scores[changed].astype(np.float64), chosen[changed]
        is_again = np.tril(ids[:, :, None] == ids[:, None, :], -1).any(axis=2)
        n_again = int(is_again[0].sum())  # of a pool of fewer than k: the same in every row
        made = weights_of(scores, ids[:, : ids.shape[1] - n_again], of.rule, of.params)
        made = np.pad(made, ((0, 0), (0, n_again)))
        where = torch.from_numpy(changed).to(self.ids.device)
        self.weights, self.ids = self.weights.clone(), self.ids.clone()
        self.weights[where] = torch.from_numpy(made).to(self.weights)
        self.ids[where] = torch.from_numpy(ids).to(self.ids)
        self.is_changed = True


class Inside(Hooked):
    """Slots in one model, with a drafter or without, whose pool is asked before all others.

    schedule, max_seqs: which prompts go on when (policies/serving), and requests under way; None: all, in lockstep.
    """

    def __init__(
        self, model: nn.Module, *slots: Slot, drafter: Drafter | None = None, schedule: Any = None, max_seqs: int = 1
    ) -> None:
        self.model, self.drafter, self.schedule, self.max_seqs = model, drafter, schedule, max_seqs
        pool = () if drafter is None or drafter.pool is None else (drafter.pool,)
        self.slots: tuple[Slot, ...] = (*pool, *slots)
        self.coming: Pass | None = None

    def _enter(self, stack: ExitStack) -> None:
        for slot in self.slots:
            stack.enter_context(slot)
        if self.drafter is not None:
            stack.enter_context(self.drafter)
        routed = [slot for slot in self.slots if isinstance(slot, RouterSlot)]
        for index, (layer, block) in enumerate(find_blocks(self.model).items() if routed else ()):
            stack.enter_context(block.router.register_forward_hook(partial(self._ask, routed, index, layer, block)))

    def _ask(self, routed: list[RouterSlot], index: int, layer: int, block: MoeBlock, module: Any, args: Any, output: Any) -> Any:
        choice = Choice(layer, block, output, self.coming)
        for slot in routed:
            slot.route(index, choice)
        return (choice.logits, choice.weights, choice.ids) if choice.is_changed else None

    @property
    def measured(self) -> dict[str, float]:
        return {name: value for slot in self.slots for name, value in slot.measured.items()}

    def new_cache(self, pads: list[int], takes_back: bool) -> Any:
        """An empty cache for a batch with so many padded columns before each request; None: the model makes its own."""
        made = (slot.new_cache(pads, takes_back) for slot in self.slots)
        return next((cache for cache in made if cache is not None), None)

    def begin(self, requests: Sequence[Request]) -> None:
        for slot in self.slots:
            slot.begin(requests)

    def before(self, coming: Pass) -> None:
        self.coming = coming if coming.is_target else None
        if coming.is_target:
            for slot in self.slots:
                slot.before(coming)

    def after(self, done: Pass) -> None:
        self.coming = None
        if done.is_target:
            for slot in self.slots:
                slot.after(done)
            if self.drafter is not None:
                self.drafter.after(done)

    def commit(self, request_id: int, kept: list[int]) -> None:
        for slot in self.slots:
            slot.commit(request_id, kept)

    def end(self, step: Step) -> None:
        for slot in self.slots:
            slot.end(step)

"""Who proposes tokens: the model itself at low precision and among few experts, a copy of it, a small model, or the text so far.

A drafter is a context manager around the target model; `draft` grows a tree level by level. One more is one class with these
methods and one line in `drafter_of`.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from tokentape.capture.hooks import Hooked
from tokentape.capture.live.copies import LowWeights
from tokentape.capture.live.routers import Pool
from tokentape.capture.live.sampling import Sampling, distribution
from tokentape.capture.live.slots import Pass
from tokentape.capture.live.texts import Text, refuse_unless_croppable
from tokentape.capture.models import Loaded
from tokentape.capture.speculation.settings import DraftSettings
from tokentape.policies.resolve import resolve
from tokentape.policies.speculation.ngram import lookup
from tokentape.policies.speculation.pools import Pools, pool_size
from tokentape.policies.speculation.tree import Draft, Shape, ancestors

Coming = Callable[[list[int], int], Pass]  # the pass of these nodes as inputs, and so many tokens in all


class Drafter(Hooked):
    """pool, pools: of drafters that are confined to a pool of experts, a slot of the model that they draft for; runs_target: its
    passes are passes of the target."""

    pool: Pool | None = None
    pools: Pools | None = None
    runs_target = False
    shape = Shape()  # of its drafts

    def begin(self, number: int, prompt: np.ndarray | None) -> None:
        """A new group of requests comes, `number` the first of them; prompt: (L, E) selections in their prompts, for a pool."""

    def after(self, done: Pass) -> None:
        """A pass of the target has run."""

    def commit(self, text: Text, kept: list[int]) -> None:
        """Of the nodes of the verify pass that ran last, those at these places are decided. text: the target's."""

    @abstractmethod
    def draft(self, request_id: int, ids: list[int], text: Text, draft: Draft, sampling: Sampling, coming: Coming) -> None:
        """Grows `draft` behind `ids`, whose last is its root. text: the target's, which holds the others; left as found."""


class SelfDrafter(Drafter):
    """The target itself: weights at fewer bits (elastic: slices, quant: a copy of their own), experts confined to a pool.

    It reads the target's own key-value cache; what it adds to it is taken back before verification.
    """

    runs_target = True

    def __init__(self, model: PreTrainedModel, settings: DraftSettings, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self.shape = settings.shape
        self.pool = Pool(model) if settings.draft == "elastic" else None
        self.weights = LowWeights(model, settings.pair, settings.scheme or "", settings.static == "slices")

    def begin(self, number: int, prompt: np.ndarray | None) -> None:
        if self.pool is not None:
            assert prompt is not None
            n = pool_size(prompt.shape[1], self.settings.pool_frac)
            self.pools = Pools(resolve("draft", self.settings.pool), prompt, n, np.random.default_rng([self.seed, number]))

    def draft(self, request_id: int, ids: list[int], text: Text, draft: Draft, sampling: Sampling, coming: Coming) -> None:
        if self.pool is not None and self.pools is not None:
            self.pool.members = self.pools.members
        with self.weights.in_place():
            grow_with(text, draft, sampling, coming)


class ModelDrafter(Drafter):
    """A small model with the target's vocabulary and a cache of its own; it first reads what was decided since its last draft."""

    def __init__(self, loaded: Loaded, n_vocabulary: int, shape: Shape) -> None:
        self.model, self.n_vocabulary, self.shape = loaded.model, n_vocabulary, shape
        self._texts: dict[int, Text] = {}

    def _enter(self, stack: ExitStack) -> None:
        stack.callback(self._texts.clear)

    def begin(self, number: int, prompt: np.ndarray | None) -> None:
        self._texts.clear()

    def draft(self, request_id: int, ids: list[int], text: Text, draft: Draft, sampling: Sampling, coming: Coming) -> None:
        own = self._texts.setdefault(request_id, Text(self.model, text.watch, DynamicCache()))
        grow_with(own, draft, sampling, coming, ids[own.length : -1], self.n_vocabulary)


class NgramDrafter(Drafter):
    """What followed the last tokens when they stood in the text before (policies/speculation/ngram.py); certain of each token."""

    def __init__(self, n_vocabulary: int, shape: Shape) -> None:
        self.n_vocabulary, self.shape = n_vocabulary, shape

    def draft(self, request_id: int, ids: list[int], text: Text, draft: Draft, sampling: Sampling, coming: Coming) -> None:
        for token in lookup(ids, draft.shape.depth):
            certain = np.zeros((1, self.n_vocabulary))
            certain[0, token] = 1.0
            draft.grow(certain)


def grow_with(
    text: Text,
    draft: Draft,
    sampling: Sampling,
    coming: Coming,
    unread: Sequence[int] = (),
    n_vocabulary: int | None = None,
) -> None:
    """Grows the draft to its depth with a model, one pass per level; the cache is left without the nodes.

    unread: tokens that the cache lacks before the root; they stay in it. n_vocabulary: logits are cut or filled to it.
    """
    start = text.length + len(unread)
    for depth in range(draft.shape.depth):
        nodes = draft.level
        tokens = [draft.tokens[n] for n in nodes]
        if depth == 0:
            logits = text.feed([*unread, *tokens], coming(nodes, len(nodes) + len(unread)), last_only=True)
        elif draft.parents == list(range(-1, draft.n)):  # a chain
            logits = text.feed(tokens, coming(nodes, len(nodes)))
        else:
            logits = text.feed_tree(tokens, coming(nodes, len(nodes)), draft.depths, ancestors(draft.parents)[nodes])
        draft.grow(distribution(_fitted(logits, n_vocabulary), sampling))
    text.crop(start)


def _fitted(logits: torch.Tensor, n_vocabulary: int | None) -> torch.Tensor:
    """Heads are padded beyond the vocabulary to sizes that differ between models of a family."""
    if n_vocabulary is None or logits.shape[1] == n_vocabulary:
        return logits
    missing = max(0, n_vocabulary - logits.shape[1])
    return torch.nn.functional.pad(logits[:, :n_vocabulary], (0, missing), value=-torch.inf)


def drafter_of(target: Loaded, settings: DraftSettings, small: Loaded | None = None, seed: int = 0) -> Drafter:
    """The drafter that `settings` name. small: the model of `model:ID`, loaded. seed: of random pools.

    Raises ValueError where the model cannot be drafted for, or the small model has another vocabulary.
    """
    refuse_unless_croppable(target.model, settings.width > 1)
    n_vocabulary = int(target.model.config.get_text_config().vocab_size)
    if settings.draft == "ngram":
        return NgramDrafter(n_vocabulary, settings.shape)
    if settings.draft == "eagle":
        from tokentape.capture.speculation.eagle import EagleDrafter  # a Drafter, so it comes after this module

        return EagleDrafter(target, settings.shape)
    if not settings.model_id:
        return SelfDrafter(target.model, settings, seed)
    assert small is not None
    refuse_unless_croppable(small.model, settings.width > 1)
    if small.tokenizer.get_vocab() != target.tokenizer.get_vocab():
        raise ValueError(
            f"drafter {settings.model_id} has another vocabulary ({len(small.tokenizer)} tokens) than {target.source.model_id} "
            f"({len(target.tokenizer)}): give a model of the same family"
        )
    return ModelDrafter(small, n_vocabulary, settings.shape)

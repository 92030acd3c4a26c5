"""What the steps of a transformer carry, and the blocks of layers that they carry it through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from tokentape.hw.work import Floats, Ints, Values
from tokentape.warehouse.geometry import Geometry


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """What S steps carry, each broadcast to (S,). decodes: requests that decode one token each, attending to `context` tokens,
    itself included (their mean); nodes: tokens of each that are computed at once, as drafts are verified. prompt: tokens of
    prompts' slices in all, shared evenly by `prompts`, each after `before` of its tokens that are in the cache. turns: how often
    the step runs, one token of it after the other. budget: tokens that the cache keeps of a request. kv_frac: bytes of its keys
    and values over those of their format. recomputed: share of the kept tokens of which it holds the layer's input instead, to be
    multiplied anew."""

    decodes: Values = 0.0
    context: Values = 0.0
    prompt: Values = 0.0
    prompts: Values = 1.0
    before: Values = 0.0
    turns: Values = 1.0
    budget: Values = np.inf
    kv_frac: Values = 1.0
    recomputed: Values = 0.0
    nodes: Values = 1.0

    def sums(self, windows: Ints) -> Sums:
        """The same for layers of these windows."""
        parts = [np.atleast_1d(np.asarray(of, np.float64))[:, None] for of in vars(self).values()]
        decodes, context, prompt, prompts, before, turns, budget, kv_frac, recomputed, nodes = parts
        width = np.where(windows > 0, windows, np.inf)
        most = np.minimum(budget, width)
        n, keys, cached = prompt / prompts, decodes * np.minimum(context, most), _pairs(before, width)
        pairs = _pairs(before + n, width) - cached
        return Sums(
            tokens=np.broadcast_to(decodes * nodes + prompt, (max(map(len, parts)), 1)),
            decodes=decodes,
            context=context,
            keys=keys,
            scores=keys * nodes,
            prompt=prompt,
            prompts=prompts,
            pairs=prompts * pairs,
            length=_length(pairs + cached, width) - before,
            before=np.minimum(before, width),
            seen=prompts * (n + np.minimum(before, width)),
            held=keys + prompts * np.minimum(before + n, most) * (prompt > 0),
            kept=decodes * nodes + np.minimum(prompt, prompts * budget),
            kv_frac=kv_frac,
            recomputed=recomputed,
            logits=decodes * nodes + np.where(prompt > 0, prompts, 0.0),
            carries_prompt=np.where(prompt > 0, 1.0, 0.0),
            turns=1.0 if np.all(turns == 1.0) else turns,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Sums:
    """What the rows of S steps are linear in, each broadcast to (S, layers).

    tokens: that pass a layer. decodes: requests that decode, each attending to `context` tokens on the mean, all together to
    `keys` keys and values (windows cut them), in `scores` query-key pairs; longest: of their contexts, 0 where all are alike.
    prompt: tokens of `prompts` slices, with `pairs` query-key pairs and `seen` keys and values; length: of alike slices with as
    many pairs, each behind `before` tokens of the cache that it sees. held: keys and values in the cache; near_frac: share of
    them in the KV cache tier, by its capacity where absent. kept: tokens of which keys and values are written, all where absent.
    logits: rows of the output head; carries_prompt: 1 where the step has prompt tokens in any layer. turns, kv_frac, recomputed:
    as Tokens. busiest, crowd, busy_pairs, busy_seen: prompt tokens, slices of prompts, pairs and seen of the replica that has the
    most, for which the others wait; all of them where absent.
    """

    tokens: Floats
    decodes: Floats
    context: Floats
    keys: Floats
    scores: Floats
    prompt: Floats
    prompts: Floats
    pairs: Floats
    length: Floats
    before: Floats
    seen: Floats
    held: Floats
    logits: Floats
    carries_prompt: Floats
    near_frac: Floats | float | None = None
    kept: Floats | None = None
    kv_frac: Values = 1.0
    recomputed: Values = 0.0
    turns: Values = 1.0
    longest: Floats | float = 0.0
    busiest: Floats | None = None
    crowd: Floats | None = None
    busy_pairs: Floats | None = None
    busy_seen: Floats | None = None

    def of_blocks(self, blocks: Ints, n: int) -> Sums:
        """The same for some of n blocks."""
        by_block = {name: of for name, of in vars(self).items() if isinstance(of, np.ndarray) and of.shape[1:] == (n,)}
        told: dict[str, Any] = {name: of[:, blocks] for name, of in by_block.items()}
        return replace(self, **told) if blocks.size < n and n > 1 else self


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of a model's steps: its layers, or one per kind of layer, and the output head last.

    moe: blocks with routed experts; windows: (blocks - 1,) tokens that each attends to, 0 for all; times: (1, blocks). of: the
    block of each layer and, last, of the head, where they are those of a geometry. attending, with_state, dense, apart: blocks
    with keys and values, with a state, with a dense FFN, and with the heads of layers with a window.
    """

    moe: Ints
    windows: Ints
    times: Floats
    of: Ints | None
    attending: Ints
    with_state: Ints
    dense: Ints
    apart: Ints

    @classmethod
    def of_layers(cls, geometry: Geometry, layers: Sequence[int], times: Floats, of: Ints | None = None) -> Blocks:
        """Blocks that are like these layers."""
        g, windows = geometry, geometry.windows_by_layer
        has_state = [layer in g.state_layers for layer in layers]
        attends = [layer not in g.without_mixing and (g.tokens_beside > 0 or layer not in g.state_layers) for layer in layers]
        is_dense = [layer not in g.moe_layers + g.without_ffn for layer in layers]
        moe, attending, with_state, dense, apart = map(
            np.flatnonzero,
            ([layer in g.moe_layers for layer in layers], attends, has_state, is_dense, [*map(g.is_apart, layers)]),
        )
        return cls(moe, np.array([windows[layer] for layer in layers], np.int64), times, of, attending, with_state, dense, apart)

    @property
    def n(self) -> int:
        return self.windows.size + 1

    @cached_property
    def mixing(self) -> Ints:
        """Blocks that attend or keep a state."""
        return np.union1d(self.attending, self.with_state)


@lru_cache
def blocks_of(geometry: Geometry, by_layer: bool = False) -> Blocks:
    """Its kinds of layers, or, by_layer, every layer."""
    keys = [(layer if by_layer else -1, geometry.kind_of(layer)) for layer in range(geometry.n_layers)]
    kinds = list(dict.fromkeys(keys))
    times = np.array([[*(keys.count(kind) for kind in kinds), 1]], np.float64)
    return Blocks.of_layers(geometry, [*map(keys.index, kinds)], times, np.array([*map(kinds.index, keys), len(kinds)]))


def _pairs(n: Floats, windows: Floats) -> Floats:
    """Query-key pairs of a prompt's first n tokens, each attending to at most a window."""
    full = np.minimum(n, windows)
    return np.asarray(full * (full + 1) / 2 + (n - full) * np.where(np.isinf(windows), 0.0, windows))


def _length(pairs: Floats, windows: Floats) -> Floats:
    """Tokens of a prompt that has so many pairs: the way back from `_pairs`."""
    full = np.minimum(pairs, np.where(np.isinf(windows), np.inf, windows * (windows + 1) / 2))
    return np.asarray((np.sqrt(8 * full + 1) - 1) / 2 + (pairs - full) / windows)

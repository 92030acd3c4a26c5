"""A transformers cache whose layers evict: per head, per KV head under GQA, per token where MLA shares one latent.

A prompt sees all of itself; then each head keeps what the policy chooses and every decoded token enters the slot that the last
eviction left. Keys stay rotated at their original positions; the logical length goes on counting, so the model's positions are
right. What a mask function would make of such a cache is wrong, so masks come from here (capture/live/attention.py).

Where AERP stores layer inputs, keys and values of those tokens are computed anew from what is stored whenever they are read.

Where tokens can be taken back, those of a pass stand behind the slots until they are decided: then the accepted ones enter, score
and evict one by one, by the attention that the pass paid, and the others are gone.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from tokentape.capture.live.inputs import Inputs
from tokentape.capture.live.storage import Plain, Planes
from tokentape.policies.kv import KVPolicy
from tokentape.policies.kv.slots import Slots, salts_of

ONE_BY_ONE = "an evicting cache decodes one token at a time: its kept positions have gaps"
NO_TOKENS = np.zeros(0, np.int64)


class KVLayer(CacheLayerMixin):
    """One layer: planes of keys and values (batch, heads, slots, width) and the slots that say which token lies where.

    window: tokens a sliding layer attends to, 0: all. pads: (batch,) padded columns before each request's first token.
    takes_back: of one request, whose tokens stay tentative until `commit`. inputs: where the policy stores layer inputs.
    """

    is_croppable = False

    def __init__(
        self,
        index: int,
        policy: KVPolicy,
        storage: Plain,
        window: int,
        n_heads: int,
        pads: np.ndarray,
        takes_back: bool = False,
        inputs: Inputs | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # transformers leaves it without annotations
        self.index, self.policy, self.storage, self.window, self.pads = index, policy, storage, window, pads
        self.takes_back, self.inputs = takes_back, inputs
        self.keys = self.values = torch.zeros(0)  # as transformers asks for them; what is held lies in planes
        self.is_sliding = window > 0
        self.n_heads, self.n_sets = n_heads, n_heads if policy.is_per_head else 1
        self.slots = Slots(policy, np.tile(salts_of(index, self.n_sets), len(pads)))
        self.seen = 0  # columns, padding included
        self.width = 0  # slots in use
        self.planes: dict[str, list[torch.Tensor]] = {}
        self.is_x = np.zeros((len(pads), 0), np.bool_)  # (batch, tokens) what AERP stores as layer inputs
        self.x_planes: list[torch.Tensor] = []  # (batch, 1, columns, C) those inputs, stored
        self.n_recomputed = np.zeros(len(pads), np.int64)  # (batch,) tokens whose keys and values the last step computed anew
        self._prompt: dict[str, torch.Tensor] = {}
        self._behind: dict[str, list[torch.Tensor]] = {}
        self.mass: np.ndarray | None = None  # attention that the prompt's queries have paid so far
        self.tentative = self.coming = NO_TOKENS  # positions: behind the slots, and of the pass under way
        self._paid = np.zeros((0, 0, 0))  # (tentative tokens, sets, slots and tentative tokens) attention they paid

    # --------------------------------------------------------------------------------------------- as transformers calls it

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """What attention runs over: a prompt itself, or all slots in use with the new token among them."""
        given, n = {"keys": key_states, "values": value_states}, key_states.shape[-2]
        if not self.planes:  # a prompt, or a slice of it
            self.is_initialized = True
            self.seen += n
            if self._prompt:
                given = {name: torch.cat([self._prompt[name], x], dim=-2) for name, x in given.items()}
            self._prompt = given
            return given["keys"], given["values"]
        self.n_recomputed = self.is_x.sum(axis=1)  # the new tokens' own come from the pass itself
        if self.takes_back:
            n_held = self.n_tentative
            self.tentative = np.concatenate([self.tentative, self.coming[-n:]])
            for name, x in given.items():  # behind the slots, after the n_held that are there
                written = self.storage.write(x, (self.index, name), is_prompt=False)
                held = self._behind.get(name) if n_held else None
                self._behind[name] = list(written) if held is None else [torch.cat(p, 2) for p in zip(held, written, strict=True)]
            return self._read(key_states.device, len(self.tentative))
        if n != 1:
            raise ValueError(f"{ONE_BY_ONE} (a pass of {n} came)")
        self.seen += 1
        slots = self.slots.place(self._now())
        self.width = max(self.width, int(slots.max()) + 1)
        for name, x in given.items():
            self._insert(name, self.storage.write(x, (self.index, name), is_prompt=False), slots)
        self._store_input()
        return self._read(key_states.device, 0)

    def _read(self, device: torch.device, n_behind: int) -> Any:
        """Keys and values of the slots in use, and of so many tentative tokens behind them."""
        is_hst = self._groups(device, n_behind) if self.storage.needs_groups else None
        held = {name: [p[:, :, : self.width] for p in planes] for name, planes in self.planes.items()}
        if n_behind:
            held = {
                name: [torch.cat([p, b], dim=2) for p, b in zip(planes, self._behind[name], strict=True)]
                for name, planes in held.items()
            }
        read = tuple(self.storage.read(tuple(planes), is_hst, (self.index, name)) for name, planes in held.items())
        return self._with_recomputed(read) if self.is_x.any() else read

    def _store_input(self) -> None:
        """The newest token's, which every head retains: it is stored as its layer input."""
        if self.inputs is None:
            return
        x = self.inputs.rows[0][:, self.seen - 1 : self.seen, :][:, None]
        written = self.storage.write(x, (self.index, "inputs"), is_prompt=False)
        self.x_planes = [torch.cat(pair, dim=2) for pair in zip(self.x_planes, written, strict=True)]
        now = self.seen - 1 - self.pads
        self.is_x = np.pad(self.is_x, ((0, 0), (0, max(0, int(now.max()) + 1 - self.is_x.shape[1]))))
        self.is_x[np.arange(len(now)), now] = self.policy.theta < 1.0  # type: ignore[attr-defined]  # AERP's

    def _anew(self, tokens: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (batch, heads, m, width) of tokens (batch, m), from what is stored of their layer inputs."""
        assert self.inputs is not None
        device = self.x_planes[0].device
        last = self.x_planes[0].shape[2] - 1  # of a shorter row, whose further ones nobody reads
        at = torch.from_numpy(np.minimum(tokens + self.pads[:, None], last)).to(device)
        planes = tuple(plane.take_along_dim(at[:, None, :, None], dim=2) for plane in self.x_planes)
        is_hst = torch.from_numpy(self._important(tokens))[:, None].to(device) if self.storage.needs_groups else None
        stored = self.storage.read(planes, is_hst, (self.index, "inputs"))[:, 0]
        return self.inputs.keys_values(at, stored)

    def _important(self, tokens: np.ndarray) -> np.ndarray:
        """(batch, m) bool: HST among the tokens that are stored as inputs, by the mean score over the heads that retain them."""
        positions = self.positions()
        rank = np.repeat(self.slots.rank.reshape(len(self.pads), self.n_sets, -1), self.n_heads // self.n_sets, axis=1)
        sums, held = np.zeros((2, *self.is_x.shape))
        for row, (of, ranks) in enumerate(zip(positions, rank, strict=True)):
            np.add.at(sums[row], of[of >= 0], ranks[of >= 0])
            np.add.at(held[row], of[of >= 0], 1.0)
        mean = np.where(self.is_x & (held > 0), sums / np.maximum(held, 1.0), np.nan)
        median = np.array([np.nanmedian(of) if (of == of).any() else np.inf for of in mean])
        return np.asarray(np.take_along_axis(np.nan_to_num(mean, nan=-np.inf), tokens, 1) >= median[:, None])

    def _with_recomputed(self, read: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """What is read, with keys and values computed anew where a slot's token is stored as its layer input."""
        order = np.argsort(~self.is_x, axis=1, kind="stable")[:, : int(self.is_x.sum(axis=1).max())]  # those tokens first
        place = np.zeros(self.is_x.shape, np.int64)
        np.put_along_axis(place, order, np.arange(order.shape[1])[None, :], axis=1)
        positions = self.positions()[:, :, : self.width]
        rows, at = np.arange(len(positions))[:, None, None], np.maximum(positions, 0)
        is_its = torch.from_numpy((positions >= 0) & self.is_x[rows, at])[..., None].to(read[0].device)
        index = torch.from_numpy(place[rows, at])[..., None].to(read[0].device)
        made = []
        for was, anew in zip(read, self._anew(order), strict=True):
            now = anew.take_along_dim(index, dim=2).to(was.dtype)
            made.append(torch.cat([torch.where(is_its, now, was[:, :, : self.width]), was[:, :, self.width :]], dim=2))
        return tuple(made)

    @property
    def n_tentative(self) -> int:
        return len(self.tentative)

    def get_seq_length(self) -> int:
        return self.seen + self.n_tentative

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back the last -tokens_to_remove tentative tokens."""
        n = self.n_tentative + tokens_to_remove
        if n < 0 or not self.takes_back:
            raise ValueError("an evicting cache cannot take tokens back; use it without assisted decoding")
        if self.inputs is not None:
            self.inputs.keep(self.seen + n)
        self.tentative = self.tentative[:n]
        self._behind = {name: [plane[:, :, :n] for plane in planes] for name, planes in self._behind.items()}

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        raise ValueError("an evicting cache cannot change its batch; use it without beam search")

    def reset(self) -> None:
        raise ValueError("an evicting cache is for one batch; begin the next one")

    # --------------------------------------------------------------------------------------------------- as its loop calls it

    def pay(self, weights: np.ndarray) -> None:
        """The attention that the pass under way paid: (1, sets, queries, slots in use and tentative tokens)."""
        self._paid = weights[0].transpose(1, 0, 2)

    def commit(self, offsets: list[int]) -> None:
        """Of the tentative tokens, those at the offsets enter the slots in their order; the others are gone."""
        before, n_slots, taken = self.slots.positions[:, : self.width].copy(), self.width, list[tuple[int, np.ndarray]]()
        if self.inputs is not None:
            self.inputs.keep(self.seen, offsets)
        for offset in offsets:
            now = np.full(self.n_sets, self.tentative[offset])
            assert int(now[0]) == self.seen
            self.seen += 1
            slots = self.slots.place(now)
            taken.append((offset, slots))
            self.width = max(self.width, int(slots.max()) + 1)
            for name, planes in self._behind.items():
                self._insert(name, tuple(plane[:, :, offset : offset + 1] for plane in planes), slots)
            self._store_input()
            mass = np.zeros((self.n_sets, self.width))
            held, paid = self.slots.positions[:, :n_slots], self._paid[offset]
            mass[:, :n_slots] = np.where((held == before) & (held >= 0), paid[:, :n_slots], 0.0)
            for earlier, at in taken:
                for g in np.flatnonzero(self.slots.positions[np.arange(self.n_sets), at] == self.tentative[earlier]):
                    mass[g, at[g]] = paid[g, n_slots + earlier]
            self.end_step(mass)
        self.tentative, self._behind = NO_TOKENS, {}

    def end_prompt(self, mass: np.ndarray) -> None:
        """Evicts after a prompt. mass (batch, heads, columns) f64: the attention its queries paid, padding included."""
        c = self.seen
        for row, pad in enumerate(self.pads):
            mine = mass[row, :, pad:].reshape(self.n_sets, -1, c - pad).sum(axis=1)
            self.slots.start(np.ascontiguousarray(mine), row * self.n_sets, self.window)
        positions = self.slots.positions
        self.width = int((positions >= 0).sum(axis=1).max())
        columns = np.maximum(positions[:, : self.width], 0) + np.repeat(self.pads, self.n_sets)[:, None]
        at = self._by_head(torch.from_numpy(columns.astype(np.int64)))
        for name, x in self._prompt.items():
            place = at.to(x.device)[..., None]
            kept = x.gather(2, place.expand(-1, -1, -1, x.shape[-1]))
            planes = self.storage.write(kept, (self.index, name), is_prompt=True)
            self.planes[name] = [self._roomy(plane) for plane in planes]
        self._prompt, self.mass = {}, None
        if self.inputs is not None:
            is_pad = torch.from_numpy(np.arange(c) < self.pads[:, None])[:, None, :, None]  # what is padded sets no scale
            x = self.inputs.rows[0][:, None].masked_fill(is_pad.to(self.inputs.rows[0].device), 0.0)
            self.x_planes = list(self.storage.write(x, (self.index, "inputs"), is_prompt=True))
            self.is_x = self._held() > self.policy.theta * self.n_heads  # type: ignore[attr-defined]  # AERP's

    def end_step(self, mass: np.ndarray) -> None:
        """Moves the scores on and evicts. mass (batch, sets, slots in use) f64."""
        full = np.zeros(self.slots.positions.shape)
        full[:, : self.width] = mass.reshape(len(full), -1)
        now = self._now()
        self.slots.settle(full, now, self.window)
        if self.inputs is not None:
            self._judge(self.seen - 1 - self.pads - self.policy.limits[2])

    def free(self) -> np.ndarray | None:
        """(batch, sets, slots in use) bool where a slot holds nothing; None where all hold a token."""
        empty = self.slots.positions[:, : self.width] < 0
        return empty.reshape(len(self.pads), self.n_sets, -1) if empty.any() else None

    def positions(self) -> np.ndarray:
        """(batch, heads, slots) i32: the token in each slot, counted from its request's first; -1: none."""
        by_set = self.slots.positions.reshape(len(self.pads), self.n_sets, -1)
        return np.repeat(by_set, self.n_heads // self.n_sets, axis=1)

    def stored_bytes(self) -> np.ndarray:
        """(batch,) bytes of keys and values, or of layer inputs where AERP stores them, after the last step."""
        positions = self.positions()
        widths = [planes[0].shape[-1] for planes in self.planes.values()]
        pair = sum(width * self.storage.bits_of(width) for width in widths) / 8
        if self.inputs is None:
            return np.asarray((positions >= 0).sum(axis=(1, 2)) * pair)
        held = self._held()
        x_bytes = self.inputs.rows[0].shape[-1] * 2.0
        return np.asarray((held * ~self.is_x).sum(axis=1) * pair + self.is_x.sum(axis=1) * x_bytes)

    def _judge(self, leaving: np.ndarray) -> None:
        """leaving (batch,): the token that leaves the recent window of a request; below 0: none. An unpopular one is stored as
        keys and values from now on, computed from what was stored of its input; what all heads have dropped is not stored."""
        held = self._held()
        self.is_x &= held > 0
        rows = np.arange(len(leaving))
        token = np.maximum(leaving, 0)
        popular = held[rows, token] > self.policy.theta * self.n_heads  # type: ignore[attr-defined]  # AERP's
        turned = (leaving >= 0) & self.is_x[rows, token] & ~popular
        if not turned.any():
            return
        positions = self.positions()[:, :, : self.width]
        is_its = torch.from_numpy((positions == token[:, None, None]) & turned[:, None, None])[..., None]
        for name, x in zip(("keys", "values"), self._anew(token[:, None]), strict=True):
            written = self.storage.write(x, (self.index, name), is_prompt=False)
            for plane, new in zip(self.planes[name], written, strict=True):
                now = plane[:, :, : self.width]
                plane[:, :, : self.width] = torch.where(is_its.to(plane.device), new.to(plane.dtype), now)
        self.is_x[rows[turned], token[turned]] = False

    def _held(self) -> np.ndarray:
        """(batch, tokens) heads that retain each token."""
        n = self.seen - int(self.pads.min())
        held = np.zeros((len(self.pads), n + 1), np.int64)
        for row, positions in enumerate(self.positions()):
            np.add.at(held[row], positions.ravel(), 1)  # -1 falls on the last, which is cut off
        return held[:, :n]

    def _now(self) -> np.ndarray:
        return np.repeat(self.seen - 1 - self.pads, self.n_sets).astype(np.int64)

    def _by_head(self, of_set: torch.Tensor) -> torch.Tensor:
        """(batch * sets, n) -> (batch, heads, n)."""
        return of_set.view(len(self.pads), self.n_sets, -1).repeat_interleave(self.n_heads // self.n_sets, dim=1)

    def _roomy(self, plane: torch.Tensor) -> torch.Tensor:
        n = self.slots.positions.shape[1]
        room = plane.new_zeros((*plane.shape[:2], n, plane.shape[-1]))
        room[:, :, : plane.shape[2]] = plane
        return room

    def _insert(self, name: str, written: Planes, slots: np.ndarray) -> None:
        planes = self.planes[name]
        if planes[0].shape[2] < self.slots.positions.shape[1]:
            planes[:] = [self._roomy(plane) for plane in planes]
        if (slots == slots[0]).all():
            for plane, new in zip(planes, written, strict=True):
                plane[:, :, int(slots[0])] = new[:, :, 0]
            return
        at = self._by_head(torch.from_numpy(slots)[:, None]).to(planes[0].device)[..., None]
        for plane, new in zip(planes, written, strict=True):
            plane.scatter_(2, at.expand(-1, -1, -1, plane.shape[-1]), new)

    def _groups(self, device: torch.device, n_behind: int = 0) -> torch.Tensor:
        """(batch, heads, slots in use) bool: tokens whose score is at least their head's median (HST, ties too); n_behind
        tentative tokens follow, which have no score yet."""
        held = self.slots.positions[:, : self.width] >= 0
        rank = np.where(held, self.slots.rank[:, : self.width], np.inf)
        ranks, middle = np.sort(rank, axis=1), held.sum(axis=1)[:, None]
        median = 0.5 * (np.take_along_axis(ranks, (middle - 1) // 2, 1) + np.take_along_axis(ranks, middle // 2, 1))
        is_hst = np.pad(held & (rank >= median), ((0, 0), (0, n_behind)))
        return self._by_head(torch.from_numpy(is_hst)).to(device)


def windows_of(model: PreTrainedModel) -> list[int]:
    """Sliding window of every layer, 0: none. Raises ValueError for layers that hold anything but keys and values."""
    layers = DynamicCache(config=model.config).layers
    odd = [type(layer).__name__ for layer in layers if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer)]
    if odd:
        raise ValueError(f"{type(model).__name__}: its cache has layers of kind {odd[0]}; nothing is evicted from those")
    return [getattr(layer, "sliding_window", 0) or 0 for layer in layers]


class KVCache(Cache):
    """Layers that evict, for one batch of requests."""

    layers: list[KVLayer]  # type: ignore[assignment]  # transformers types a list of all its kinds, and reads it only

    def __init__(self, layers: list[KVLayer]) -> None:
        super().__init__(layers=layers)  # type: ignore[arg-type]  # as above
        self.visible = np.zeros((0, 0), np.bool_)  # (n, m) which of the tentative tokens those of the pass under way see

    @property
    def n_tentative(self) -> int:
        return self.layers[0].n_tentative

    def expect(self, positions: Iterable[int], visible: np.ndarray) -> None:
        """A pass of tokens at these positions comes, which see so of the tentative tokens, themselves the last of them."""
        self.visible = visible
        for layer in self.layers:
            layer.coming = np.fromiter(positions, np.int64)

    def crop(self, tokens_to_remove: int) -> None:
        for layer in self.layers:
            layer.crop(tokens_to_remove)

    def commit(self, offsets: list[int]) -> None:
        for layer in self.layers:
            layer.commit(offsets)

    def stored_bytes(self) -> np.ndarray:
        """(batch,) over all layers."""
        return np.asarray(sum(layer.stored_bytes() for layer in self.layers))

    def n_recomputed(self) -> np.ndarray:
        """(batch,) tokens whose keys and values the last step computed anew, over all layers."""
        return np.asarray(sum(layer.n_recomputed for layer in self.layers))

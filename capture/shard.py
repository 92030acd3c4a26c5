"""Rows of one shard: collects what each forward pass gave and turns it into the tape's tables once, at the end.

Routing and scores are ordered by pass, layer, then token as the pass held them; attention by pass, request, layer, kv head;
tokens by request and position. Per pass only tensors and short lists are kept: Arrow lists are made from flat arrays and offsets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch

from tokentape.capture.attention import AttentionCapture
from tokentape.capture.live.loop import Outcome, Pass, Request
from tokentape.capture.live.sampling import OVERFLOW
from tokentape.capture.routing import RoutingCapture, RoutingStep
from tokentape.capture.rows import lists, ranges, request_table, rows_of
from tokentape.policies.scoring import by_weight

KEEPS = ("full", "top", "block")
PROMPT_ROW, HEAD_SUM = "prompt_row", "head_sum"  # reductions: one query of a prompt, all of its queries of one query head
VECTORS, EXTREMES = ("query", "key_min", "key_max"), (np.minimum, np.maximum)


@dataclass(frozen=True)
class AttentionKeep:
    """What is kept of an attention row: all of it, its `size` largest masses and the rest, or sums over blocks of `size` keys."""

    kind: str = "full"
    size: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `full`, `top:64` or `block:32`."""
        kind, _, size = text.partition(":")
        if kind == "full" and not size:
            return cls()
        if kind in KEEPS[1:] and size.isdigit() and int(size) > 0:
            return cls(kind, int(size))
        raise ValueError(f"attention {text!r}: give full, top:N (the N largest masses and the rest), or block:N (sums of N keys)")

    def values_per_row(self, n_keys: int) -> int:
        """Masses stored of a row over `n_keys` positions."""
        return {"full": n_keys, "top": min(self.size, n_keys), "block": -(-n_keys // max(1, self.size))}[self.kind]


@dataclass(frozen=True)
class Masses:
    """Attention of one query, or of all of one request's in a pass (position: the last), in layers that see the same keys."""

    pass_index: int
    request_id: int
    position: int
    n_queries: int
    reduction: str
    layers: np.ndarray  # (L,) absolute
    positions: np.ndarray | None  # (rows, n) i32; None: 0, 1, 2, ...
    mass: np.ndarray  # (rows, n) f32; row = layer * heads + head
    rest: np.ndarray  # (rows,) f32
    node: int | None = None  # of a draft's tree
    by_query_head: bool = False  # rows are query heads
    # By layer, (heads, values): queries of the group, minima and maxima of the new keys by page.
    vectors: Mapping[str, Sequence[np.ndarray]] = field(default_factory=dict)


@dataclass(frozen=True)
class Routed:
    """Rows of routing by pass, layer, then token as the pass held them; experts by falling weight. keys: (rows,) each."""

    keys: dict[str, np.ndarray]
    ids: np.ndarray  # (rows, k) u16
    weights: np.ndarray
    natural: np.ndarray | None
    scores: np.ndarray | None  # (rows, E)

    def table(self, keys: Sequence[str], columns: dict[str, pa.Array]) -> pa.Table:
        return pa.table({name: self.keys[name] for name in keys} | columns)

    def scored(self, keys: Sequence[str]) -> pa.Table:
        assert self.scores is not None
        return self.table(keys, {"scores": rows_of(self.scores)})


@dataclass(eq=False)
class ShardRecorder:
    """Fed by `decode`'s on_pass; `tables` gives the Arrow tables and `n_passes` how many pass ids were used.

    natural: what the routers chose before a policy changed it, as column natural_ids; policy_state: the policy, for every pass;
    n_last: of so many of a prompt's last queries, attention row by row; page: positions whose keys are bounded together, 0: none.
    """

    routing: RoutingCapture | None
    attention: AttentionCapture | None
    keep: AttentionKeep
    first_pass_id: int
    natural: RoutingCapture | None = None
    policy_state: str | None = None
    n_last: int = 0
    page: int = 0
    ROUTED, SCORED = ("request_id", "position", "layer", "pass_id"), ("request_id", "position", "layer")
    PHASE = "decode"  # of tokens behind the prompt

    def __post_init__(self) -> None:
        self._passes: list[Pass] = []
        self._steps: list[RoutingStep] = []
        self._natural: list[RoutingStep] = []
        self._masses: list[Masses] = []

    @property
    def n_passes(self) -> int:
        return len(self._passes)

    def before(self, coming: Pass) -> None:
        """Padded queries of a prompt are left out of its attention."""
        if self.attention is None:
            return
        self.attention.n_rows = self._n_rows(coming)
        if coming.kind == "prefill" and coming.keep is not None:
            self.attention.query_mask = coming.keep.view(coming.n_rows, -1)

    def _n_rows(self, coming: Pass) -> int:
        """Last queries of a pass whose own rows are kept."""
        return self.n_last if coming.kind == "prefill" else 0

    def record(self, done: Pass) -> None:
        if self.routing is not None:
            self._steps.append(self.routing.take(done.keep))
        if self.natural is not None:
            self._natural.append(self.natural.take(done.keep))
        if self.attention is not None:
            self.attention.query_mask = None
            self._record_attention(done)
        self._passes.append(done)

    def _record_attention(self, done: Pass) -> None:
        """A prompt's single rows stand before their sum: a replay starts from them."""
        assert self.attention is not None
        seen = self.attention.take()
        if not seen.masses:
            name = type(self.attention.model).__name__
            raise ValueError(f"{name}: its attention calls no function that can be watched; leave attention out of --tables")
        for layers, rows in runs_of_equal_keys(seen.rows):
            for member, row in enumerate(done.rows):
                for back in range(min(rows.shape[3], done.counts[member]) - 1, -1, -1):
                    self._add(done, member, layers, rows[:, row, :, -1 - back], back)
        for layers, masses in runs_of_equal_keys(seen.heads):
            for member, row in enumerate(done.rows):
                self._add(done, member, layers, masses[:, row], by_query_head=True)
        found = {layer: tuple(x.float().cpu().numpy() for x in pair) for layer, pair in seen.vectors.items()}
        for layers, masses in runs_of_equal_keys(seen.masses):
            for member, row in enumerate(done.rows):
                vectors = _vectors([found[x] for x in layers], row, done, member, self.page) if found else {}
                self._add(done, member, layers, masses[:, row], vectors=vectors)

    def _add(self, done: Pass, member: int, layers: np.ndarray, mass: torch.Tensor, back: int | None = None, **more: Any) -> None:
        """(L, heads, keys) of a member: of its query `back` before the last, which sees no later keys, or of all queries."""
        position = done.starts[member] + done.counts[member] - 1
        if back is None:
            of_group = "block_sum" if self.keep.kind == "block" else "row" if done.kind == "decode" else "column_sum"
            told = (position, done.counts[member], HEAD_SUM if more.get("by_query_head") else of_group)
        else:
            mass, told = mass[..., : mass.shape[-1] - back], (position - back, 1, PROMPT_ROW)
        dropped = done.width - (back or 0) - mass.shape[-1]  # columns a sliding cache no longer holds
        skip = max(0, done.pads[member] - dropped)
        kept = mass[:, :, skip:].flatten(0, 1).numpy()
        listed = reduced(kept, dropped + skip - done.pads[member], self.keep)
        self._masses.append(Masses(len(self._passes), done.request_ids[member], *told, layers, *listed, **more))

    # ------------------------------------------------------------------------------------------------------------ tables

    def tables(
        self, requests: Sequence[Request], outcomes: Sequence[Outcome], dataset: str, wanted: Sequence[str]
    ) -> dict[str, pa.Table]:
        """The wanted tables of this shard. Raises ValueError where what the model computed holds NaN."""
        made = {"requests": request_rows(requests, outcomes, dataset), "passes": self._pass_rows(), **self._more_rows()}
        if self.routing is not None:
            made |= self._routing_rows(wanted)
        if "tokens" in wanted:
            made["tokens"] = self._token_rows(requests, outcomes)
        if self.attention is not None:
            made |= self._attention_rows()
        return {name: made[name] for name in wanted}

    def _more_rows(self) -> dict[str, pa.Table]:
        return {}

    def _kept(self, done: Pass) -> list[int]:
        """Of a pass's members, how many of their tokens stay."""
        return done.counts

    def _state(self, done: Pass) -> str | None:
        return self.policy_state

    def _pass_ids(self) -> np.ndarray:
        return np.arange(self.first_pass_id, self.first_pass_id + self.n_passes, dtype=np.uint32)

    def _pass_rows(self) -> pa.Table:
        n_tokens = np.array([sum(p.counts) for p in self._passes], dtype=np.uint32)
        members = np.concatenate([p.request_ids for p in self._passes]).astype(np.uint32)
        lengths = [len(p.request_ids) for p in self._passes]
        return pa.table(
            {
                "pass_id": self._pass_ids(),
                "kind": pa.array([p.kind for p in self._passes]),
                "n_tokens": n_tokens,
                "request_ids": lists(members, lengths),
                "policy_state": pa.array([self._state(p) for p in self._passes], pa.string()),
            }
        )

    def _token_rows(self, requests: Sequence[Request], outcomes: Sequence[Outcome]) -> pa.Table:
        of_request: dict[int, list[int]] = {r.request_id: [] for r in requests}
        for pass_id, done in zip(self._pass_ids().tolist(), self._passes, strict=True):
            for request_id, count in zip(done.request_ids, self._kept(done), strict=True):
                of_request[request_id] += [pass_id] * count
        inputs = [np.array([*r.prompt_ids, *o.output_ids[:-1]], dtype=np.int32) for r, o in zip(requests, outcomes, strict=True)]
        lengths = np.array([len(ids) for ids in inputs])
        nll, is_prompt = [], []
        for request, outcome, ids in zip(requests, outcomes, inputs, strict=True):
            assert outcome.nll is not None
            assert len(of_request[request.request_id]) == len(ids)
            nll.append(np.concatenate([[np.nan], outcome.nll.numpy()[: len(ids) - 1]]).astype(np.float32))
            is_prompt.append(np.arange(len(ids)) < len(request.prompt_ids))
        position, of = ranges(lengths), np.repeat(np.array([r.request_id for r in requests], dtype=np.uint32), lengths)
        told = np.concatenate(nll)
        refuse_nan(np.where(position == 0, 0.0, told)[:, None], "nll", {"request_id": of, "position": position})
        return pa.table(
            {
                "request_id": of,
                "position": position.astype(np.int32),
                "token_id": np.concatenate(inputs),
                "phase": pa.array(np.where(np.concatenate(is_prompt), "prefill", self.PHASE)),
                "pass_id": np.concatenate([of_request[r.request_id] for r in requests]).astype(np.uint32),
                "nll": pa.array(told, mask=position == 0),
            }
        )

    def _routing_rows(self, wanted: Sequence[str]) -> dict[str, pa.Table]:
        counts = np.concatenate([p.counts for p in self._passes])
        starts = np.repeat(np.concatenate([p.starts for p in self._passes]), counts)
        tokens = {
            "request_id": np.repeat(np.concatenate([p.request_ids for p in self._passes]), counts).astype(np.uint32),
            "position": (starts + ranges(counts)).astype(np.int32),
            "pass_id": np.repeat(self._pass_ids(), [sum(p.counts) for p in self._passes]),
        }
        found = self._routed(tokens, wanted)
        own = {} if found.natural is None else {"natural_ids": rows_of(found.natural)}
        made = {
            "routing": found.table(self.ROUTED, {"expert_ids": rows_of(found.ids), "gate_weights": rows_of(found.weights), **own})
        }
        return made | ({"scores": found.scored(self.SCORED)} if "scores" in wanted else {})

    def _routed(self, tokens: dict[str, np.ndarray], wanted: Sequence[str], kept: np.ndarray | None = None) -> Routed:
        """Rows of the recorded routing. tokens: (tokens,) columns, pass by pass; kept: which of them, None: all.

        Raises ValueError where the model's router logits or weights hold NaN.
        """
        assert self.routing is not None
        layers, steps = np.array([*self.routing.blocks], np.uint16), self._steps
        per_pass = np.array([step.ids.shape[1] for step in steps])
        rows = np.repeat(per_pass, len(layers))  # of each (pass, layer)
        token = np.repeat(np.repeat(np.cumsum(per_pass) - per_pass, len(layers)), rows) + ranges(rows)
        chosen: Any = slice(None) if kept is None else np.flatnonzero(kept[token])  # all: nothing is copied
        keys = {name: of[token[chosen]] for name, of in tokens.items()}
        keys["layer"] = np.repeat(np.tile(layers, len(steps)), rows)[chosen]
        weights, scores = flat([s.weights for s in steps])[chosen], None
        refuse_nan(weights, "gate_weights", keys)
        if "scores" in wanted:
            scores = flat([s.scores for s in steps if s.scores is not None])[chosen]
            refuse_nan(scores, "scores", keys)
        ids, weights = by_weight(flat([s.ids for s in steps])[chosen], weights)
        natural = None
        if self.natural is not None:
            own = self._natural
            natural = by_weight(flat([s.ids for s in own])[chosen], flat([s.weights for s in own])[chosen])[0].astype(np.uint16)
        return Routed(keys, ids.astype(np.uint16), weights, natural, scores)

    def _attention_rows(self) -> dict[str, pa.Table]:
        return {"attention": self._mass_table(self._masses)}

    def _mass_table(self, blocks: Sequence[Masses], **more: Sequence[int | None]) -> pa.Table:
        """Columns of masses, of as many rows as they have; more: one value per block, as further columns."""
        assert self.attention is not None
        n_heads, n_kv_heads = self.attention.n_heads, self.attention.n_kv_heads
        heads = [np.tile(np.arange(n_heads if m.by_query_head else n_kv_heads), len(m.layers)) for m in blocks]
        group = [n_heads // n_kv_heads if m.by_query_head else 1 for m in blocks]
        rows = [len(m.rest) for m in blocks]
        widths = np.repeat([m.mass.shape[1] for m in blocks], rows)
        given = np.repeat([m.positions is not None for m in blocks], rows)
        positions = [np.zeros(0, dtype=np.int32), *(m.positions.ravel() for m in blocks if m.positions is not None)]
        of = {name: np.repeat([getattr(m, name) for m in blocks], rows) for name in ("request_id", "position", "n_queries")}
        of["layer"] = np.concatenate([np.repeat(m.layers, len(m.rest) // len(m.layers)) for m in blocks]).astype(np.uint16)
        refuse_nan(np.concatenate([m.mass.sum(axis=1) for m in blocks])[:, None], "mass", of)
        return pa.table(
            {
                "request_id": of["request_id"].astype(np.uint32),
                "pass_id": np.repeat([self.first_pass_id + m.pass_index for m in blocks], rows).astype(np.uint32),
                "position": of["position"].astype(np.int32),
                "layer": of["layer"],
                "kv_head": np.concatenate([h // g for h, g in zip(heads, group, strict=True)]).astype(np.uint16),
                "reduction": pa.array(np.repeat([m.reduction for m in blocks], rows)),
                "n_queries": of["n_queries"].astype(np.uint32),
                "key_positions": lists(np.concatenate(positions), np.where(given, widths, 0), absent=~given),
                "mass": lists(np.concatenate([m.mass.ravel() for m in blocks]), widths),
                "rest": np.concatenate([m.rest for m in blocks]),
            }
            | self._more_columns(blocks, np.concatenate(heads), np.repeat([m.by_query_head for m in blocks], rows))
            | {name: pa.array(np.repeat(np.array(values, object), rows), pa.uint32()) for name, values in more.items()}
        )

    def _more_columns(self, blocks: Sequence[Masses], heads: np.ndarray, is_query_head: np.ndarray) -> dict[str, pa.Array]:
        """What was asked for beside the masses; null where a row has none."""
        made = {}
        if self.attention is not None and self.attention.with_heads:
            made["query_head"] = pa.array(heads.astype(np.uint16), mask=~is_query_head)
        for name in VECTORS if self.page else ():
            given = [m.vectors.get(name) or [np.zeros((len(m.rest), 0), np.float32)] for m in blocks]
            widths = np.concatenate([np.repeat(x.shape[1], len(x)) for of in given for x in of])
            values = np.concatenate([x.ravel() for of in given for x in of])
            made[name] = lists(values, widths, absent=widths == 0)
        return made


def request_rows(requests: Sequence[Request], outcomes: Sequence[Outcome], dataset: str) -> pa.Table:
    """Table `requests` of what a model has run."""
    prompts, outputs = [r.prompt_ids for r in requests], [len(o.output_ids) for o in outcomes]
    return request_table([*map(len, prompts)], outputs, dataset, ids=[r.request_id for r in requests], prompts=prompts)


def _vectors(
    found: Sequence[tuple[np.ndarray, ...]], row: int, done: Pass, member: int, page: int
) -> dict[str, list[np.ndarray]]:
    """Of a member in layers with these queries and keys; the query of a decoded token only."""
    n, first = done.counts[member], done.starts[member]
    starts = np.unique([0, *range(-first % page, n, page)])
    keys = [k[row, :, -n:] for _, k in found]
    bounds = {name: [of.reduceat(k, starts, axis=1) for k in keys] for name, of in zip(VECTORS[1:], EXTREMES, strict=True)}
    queries = {"query": [q[row].reshape(k.shape[1], -1) for q, k in found]} if done.kind == "decode" else {}
    return queries | {name: [x.reshape(len(x), -1) for x in of] for name, of in bounds.items()}


def refuse_nan(values: np.ndarray, column: str, keys: dict[str, np.ndarray]) -> None:
    bad = np.isnan(values).any(axis=1)
    if bad.any():
        names = [name for name in ("request_id", "position", "layer") if name in keys]
        at = ", ".join(f"{name.removesuffix('_id')} {keys[name][bad.argmax()]}" for name in names)
        raise ValueError(f"{column}: NaN at {at}; {OVERFLOW}")


def flat(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """(L, n, width) per pass -> (rows, width), ordered by pass, layer, token; floats as f32."""
    joined = torch.cat([t.flatten(0, 1) for t in tensors])
    return joined.float().numpy() if joined.is_floating_point() else joined.numpy()


def runs_of_equal_keys(seen: dict[int, torch.Tensor]) -> list[tuple[np.ndarray, torch.Tensor]]:
    """(layers, (L, batch, heads, ..., keys) on the host) for each run of layers with the same number of keys, in layer order."""
    runs: list[tuple[list[int], list[torch.Tensor]]] = []
    for layer, masses in sorted(seen.items()):
        if not runs or runs[-1][1][0].shape != masses.shape:
            runs.append(([], []))
        runs[-1][0].append(layer)
        runs[-1][1].append(masses.to(runs[-1][1][0].device) if runs[-1][1] else masses)
    return [(np.array(layers), torch.stack(masses).cpu()) for layers, masses in runs]


def reduced(mass: np.ndarray, first: int, keep: AttentionKeep) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
    """positions, masses and rest of (rows, n) masses whose first key stands at position `first`."""
    rows, n = mass.shape
    if keep.kind == "block":
        starts = np.arange(0, n, keep.size)
        positions = np.broadcast_to((first + starts).astype(np.int32), (rows, len(starts)))
        return positions, np.add.reduceat(mass, starts, axis=1), np.zeros(rows, dtype=np.float32)
    if keep.kind == "top" and keep.size < n:
        chosen = np.sort(np.argsort(-mass, axis=1, kind="stable")[:, : keep.size], axis=1)
        kept = np.take_along_axis(mass, chosen, axis=1)
        return (first + chosen).astype(np.int32), kept, mass.sum(axis=1) - kept.sum(axis=1)
    listed = None if first == 0 else np.broadcast_to(np.arange(first, first + n, dtype=np.int32), (rows, n))
    return listed, mass, np.zeros(rows, dtype=np.float32)

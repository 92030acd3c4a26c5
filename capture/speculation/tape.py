"""Rows of a shard of speculative decoding: what every draft and verify pass did with every node, and what became of it.

`tokens`, `routing`, `scores` and the `row`s of `attention` hold the accepted path only, each with the verify pass that had it as
input: they read as an ordinary tape. `node_routing`, `node_scores` and the `node_row`s of `attention` hold the nodes of draft and
verify passes, also rejected ones, by round and node.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tokentape.capture.live.loop import Pass, Round
from tokentape.capture.rows import lists, rows_of
from tokentape.capture.shard import Masses, ShardRecorder, reduced, runs_of_equal_keys
from tokentape.warehouse.tables import TABLES, schema

OF_NODES = ("request_id", "round", "phase", "node", "layer")
WHOLE = np.iinfo(np.int32).max  # all experts of a token


@dataclass(eq=False)
class RoundRecorder(ShardRecorder):
    """Fed by `decode`'s on_pass and on_round; `tables` gives the Arrow tables.

    routing, attention: attached after the drafter, see what was applied; natural: before it, or None where the drafter reroutes
    nothing. policy_state: of draft passes. windows: of sliding layers, by layer.
    """

    windows: Sequence[int] = ()
    PHASE = "verify"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rounds: dict[tuple[int, int], Round] = {}
        self._node_rows: list[tuple[int, np.ndarray, np.ndarray]] = []  # pass, layers, (L, heads, nodes, columns)

    def _n_rows(self, coming: Pass) -> int:
        return super()._n_rows(coming) if coming.kind == "prefill" else coming.n_tokens * coming.is_target

    def record(self, done: Pass) -> None:
        """One forward pass that has just run. Rehearsals leave no trace, passes of another model no routing or attention."""
        if self.attention is not None and done.kind == "prefill":
            self._record_attention(done)
        elif self.attention is not None and done.is_target:
            runs = runs_of_equal_keys(self.attention.take().rows)
            if done.kind != "rehearsal":
                self._node_rows += [(len(self._passes), layers, rows[:, 0].numpy()) for layers, rows in runs]
        for capture, steps in ((self.routing, self._steps), (self.natural, self._natural)):
            if capture is not None and done.is_target:
                step = capture.take()
                steps += [step] * (done.kind != "rehearsal")
        self._passes += [done] * (done.kind != "rehearsal")

    def _kept(self, done: Pass) -> list[int]:
        if done.kind == "verify":
            return [len(self._round(done).inputs)]
        return done.counts if done.kind == "prefill" else [0]

    def _state(self, done: Pass) -> str | None:
        return self.policy_state if done.kind == "draft" else None

    def _more_rows(self) -> dict[str, pa.Table]:
        rounds = self.rounds.values()
        made = {
            "acceptance": [row for of in rounds for row in _drafted(of)],
            "rounds": [row for of in rounds for row in _pooled(of)],
        }
        return {name: pa.Table.from_pylist(rows, schema=schema(name, TABLES[name].columns)) for name, rows in made.items()}

    def _routing_rows(self, wanted: Sequence[str]) -> dict[str, pa.Table]:
        """Routing of the accepted path, and of all nodes in the passes that had them as inputs."""
        told = [
            row
            for pass_id, of in zip(self._pass_ids(), self._passes, strict=True)
            if of.is_target
            for row in self._tokens(pass_id, of)
        ]
        names = ("request_id", "round", "phase", "node", "position", "pass_id", "width", "is_path")
        tokens = dict(zip(names, map(np.array, zip(*told, strict=True)), strict=True))
        path, nodes = (self._routed(tokens, wanted, kept) for kept in (tokens["is_path"], tokens["phase"] != "prefill"))
        k = nodes.ids.shape[1]
        real = np.arange(k) < nodes.keys["width"][:, None]
        lengths, is_own = real.sum(axis=1), (nodes.keys["phase"] == "draft") & (nodes.natural is not None)
        own = nodes.ids if nodes.natural is None else nodes.natural
        made = {
            "routing": path.table(self.ROUTED, {"expert_ids": rows_of(path.ids), "gate_weights": rows_of(path.weights)}),
            "node_routing": nodes.table(
                (*OF_NODES, "position", "pass_id"),
                {
                    "expert_ids": lists(nodes.ids[real], lengths),
                    "gate_weights": lists(nodes.weights[real], lengths),
                    "natural_ids": lists(own[is_own].ravel(), np.where(is_own, own.shape[1], 0), absent=~is_own),
                },
            ),
        }
        if "scores" in wanted:
            made |= {"scores": path.scored(self.SCORED), "node_scores": nodes.scored(OF_NODES)}
        return made

    def _attention_rows(self) -> dict[str, pa.Table]:
        """Attention of prompts, of the accepted path, and of all other nodes in the passes that had them as inputs."""
        nodes = [masses for seen in self._node_rows for masses in self._of_nodes(*seen)]
        blocks = sorted((*self._masses, *nodes), key=lambda m: m.pass_index)
        rounds = [None if m.node is None else self._passes[m.pass_index].round for m in blocks]
        return {"attention": self._mass_table(blocks, round=rounds, node=[m.node for m in blocks])}

    def _of_nodes(self, pass_index: int, layers: np.ndarray, rows: np.ndarray) -> Iterator[Masses]:
        """Of each node of a pass, over the text so far, then its ancestors and itself: the positions before it, from 0."""
        done = self._passes[pass_index]
        of = self._round(done)
        held = of.nodes if done.kind == "verify" else range(of.draft.n + 1)  # nodes in the cache behind the text, in order
        for i, node in enumerate(done.nodes):
            above, at = [], node
            while at >= 0:
                above.append(done.start + held.index(at))
                at = of.draft.parents[at]
            position, is_path = done.start + of.draft.depths[node], done.kind == "verify" and node in of.inputs
            seen = rows[:, :, i][:, :, [*range(done.start), *reversed(above)]]
            sums = "node_row" if not is_path else "block_sum" if self.keep.kind == "block" else "row"
            windows = np.array(self.windows)[layers]
            for window in np.unique(windows):
                first = max(0, position + 1 - window) if window else 0
                mass = seen[windows == window, :, first:].reshape(-1, position + 1 - first)
                told = (pass_index, done.request_id, position, 1, sums, layers[windows == window])
                yield Masses(*told, *reduced(mass, first, self.keep), node=node)

    def _round(self, done: Pass) -> Round:
        return self.rounds[done.request_id, done.round]

    def _tokens(self, pass_id: int, done: Pass) -> list[tuple[Any, ...]]:
        """Of a pass's tokens; width: how many experts are more than filling, is_path: accepted."""
        if done.kind == "prefill":
            return [(done.request_id, 0, "prefill", 0, n, pass_id, WHOLE, True) for n in range(done.n_tokens)]
        of = self._round(done)
        is_draft = done.kind == "draft"
        width = of.pools.members.shape[1] if of.pools is not None and is_draft else WHOLE
        where = (done.request_id, done.round, done.kind)
        return [
            (*where, node, done.start + of.draft.depths[node], pass_id, width, not is_draft and node in of.inputs)
            for node in done.nodes
        ]


def _drafted(of: Round) -> list[dict[str, Any]]:
    """Rows of table `acceptance`."""
    accepted = of.path[: of.n_accepted]
    return [
        {
            "request_id": of.request_id,
            "round": of.number,
            "node": node,
            **{name: getattr(of.draft, f"{name}s")[node] for name in ("parent", "depth", "rank")},
            "draft_token_id": of.draft.tokens[node],
            "draft_prob": of.draft.probs[node],
            "target_prob": of.target_probs[node] if node in of.nodes else None,
            "is_verified": node in of.nodes,
            "is_accepted": node in accepted,
        }
        for node in range(1, of.draft.n + 1)
    ]


def _pooled(of: Round) -> list[dict[str, Any]]:
    """Rows of table `rounds`: one per layer, or one where the drafter has no pool."""
    common = {
        "request_id": of.request_id,
        "round": of.number,
        "n_drafted": of.draft.n,
        "n_verified": len(of.nodes) - 1,
        "n_accepted": of.n_accepted,
        "bonus_token_id": of.bonus,
        "is_clipped": of.is_clipped,
    }
    if of.pools is None:
        return [common]
    columns = {"layer": of.pools.layers, "pool": of.pools.members, "hotness": of.pools.hotness, "next_pool": of.pools.wanted}
    each = zip(*columns.values(), of.pools.entered, strict=True)
    return [common | dict(zip((*columns, "entered"), row, strict=True)) for row in each]

"""Rows of a shard of speculative decoding: what every draft and verify pass did with every node, and what became of it.

`tokens`, `routing` and `scores` hold the accepted path only, each row with the verify pass that had it as input: they read as an
ordinary tape. `node_routing` and `node_scores` hold all nodes of draft and verify passes, also rejected ones, by round and node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from tokentape.capture.live.loop import Outcome, Pass, Request, Round
from tokentape.capture.routing import RoutingCapture, RoutingStep
from tokentape.capture.rows import lists, refuse_nan, request_rows
from tokentape.policies.scoring import by_weight

KEYS = {"request_id": np.uint32, "round": np.uint32, "node": np.uint32, "position": np.int32, "pass_id": np.uint32}


@dataclass(frozen=True)
class _Seen:
    """A recorded pass; step: what the routers applied, natural: what they chose themselves. None: another model's pass."""

    done: Pass
    pass_id: int
    step: RoutingStep | None
    natural: RoutingStep | None


class RoundRecorder:
    """Fed by `decode`'s on_pass and on_round; `tables` gives the Arrow tables.

    routing: attached after the drafter, sees what was applied; natural: before it, or None where the drafter reroutes nothing.
    policy_state: of draft passes.
    """

    def __init__(
        self,
        routing: RoutingCapture | None,
        natural: RoutingCapture | None,
        first_pass_id: int,
        policy_state: str,
    ) -> None:
        self.routing, self.natural = routing, natural
        self.first_pass_id, self.policy_state = first_pass_id, policy_state
        self._seen: list[_Seen] = []
        self._rounds: dict[tuple[int, int], Round] = {}

    def record(self, done: Pass) -> None:
        """One forward pass that has just run. Rehearsals leave no trace."""
        step = self.routing.take() if self.routing is not None and done.is_target else None
        natural = self.natural.take() if self.natural is not None and done.is_target else None
        if done.kind != "rehearsal":
            self._seen.append(_Seen(done, self.first_pass_id + len(self._seen), step, natural))

    def record_round(self, done: Round) -> None:
        self._rounds[done.request_id, done.number] = done

    # ------------------------------------------------------------------------------------------------------------ tables

    def tables(
        self, requests: Sequence[Request], outcomes: Sequence[Outcome], dataset: str, wanted: Sequence[str]
    ) -> dict[str, pa.Table]:
        """The wanted tables of this shard. Raises ValueError where the model's router logits or weights hold NaN."""
        makers: dict[str, Callable[[], pa.Table]] = {
            "requests": lambda: request_rows(requests, outcomes, dataset),
            "passes": self._pass_rows,
            "tokens": lambda: self._token_rows(requests, outcomes),
            "acceptance": self._acceptance_rows,
            "rounds": self._round_rows,
        }
        made = {name: maker() for name, maker in makers.items() if name in wanted}
        if self.routing is not None:
            path, nodes = self._routed(on_path=True), self._routed(on_path=False)
            made |= {"routing": path.routing(), "node_routing": nodes.routing()}
            if "scores" in wanted:
                made |= {"scores": path.scores(), "node_scores": nodes.scores()}
        return {name: made[name] for name in wanted}

    def _pass_rows(self) -> pa.Table:
        n = len(self._seen)
        state = [self.policy_state if seen.done.kind == "draft" else None for seen in self._seen]
        return pa.table(
            {
                "pass_id": np.array([seen.pass_id for seen in self._seen], np.uint32),
                "kind": pa.array([seen.done.kind for seen in self._seen], pa.string()),
                "n_tokens": np.array([seen.done.n_tokens for seen in self._seen], np.uint32),
                "request_ids": lists(np.array([seen.done.request_id for seen in self._seen], np.uint32), np.ones(n, np.int64)),
                "policy_state": pa.array(state, pa.string()),
            }
        )

    def _token_rows(self, requests: Sequence[Request], outcomes: Sequence[Outcome]) -> pa.Table:
        passes: dict[int, list[int]] = {r.request_id: [] for r in requests}
        for seen in self._seen:
            done = seen.done
            if done.kind == "verify":
                passes[done.request_id] += [seen.pass_id] * len(self._rounds[done.request_id, done.round].inputs)
            elif done.kind == "prefill":
                passes[done.request_id] += [seen.pass_id] * done.n_tokens
        columns: dict[str, list[np.ndarray]] = {name: [] for name in ("request_id", "position", "token_id", "pass_id", "nll")}
        phases: list[str] = []
        for request, outcome in zip(requests, outcomes, strict=True):
            ids = [*request.prompt_ids, *outcome.output_ids[:-1]]
            assert outcome.nll is not None
            assert len(passes[request.request_id]) == len(ids)
            columns["request_id"].append(np.full(len(ids), request.request_id, np.uint32))
            columns["position"].append(np.arange(len(ids), dtype=np.int32))
            columns["token_id"].append(np.array(ids, np.int32))
            columns["pass_id"].append(np.array(passes[request.request_id], np.uint32))
            columns["nll"].append(np.concatenate([[np.nan], outcome.nll.numpy()[: len(ids) - 1]]).astype(np.float32))
            phases += ["prefill"] * len(request.prompt_ids) + ["verify"] * (len(ids) - len(request.prompt_ids))
        joined = {name: np.concatenate(parts) for name, parts in columns.items()}
        nll = pa.array(joined.pop("nll"), mask=joined["position"] == 0)
        return pa.table({**joined, "phase": pa.array(phases), "nll": nll})

    def _acceptance_rows(self) -> pa.Table:
        rows: dict[str, list[Any]] = {name: [] for name in ("request_id", "round", "node", "parent", "depth", "rank")}
        rows |= {name: [] for name in ("draft_token_id", "draft_prob", "target_prob", "is_verified", "is_accepted")}
        for done in self._rounds.values():
            draft, verified = done.draft, set(done.nodes)
            accepted = set(done.path[: done.n_accepted])
            for node in range(1, draft.n + 1):
                rows["request_id"].append(done.request_id)
                rows["round"].append(done.number)
                rows["node"].append(node)
                rows["parent"].append(draft.parents[node])
                rows["depth"].append(draft.depths[node])
                rows["rank"].append(draft.ranks[node])
                rows["draft_token_id"].append(draft.tokens[node])
                rows["draft_prob"].append(draft.probs[node])
                rows["target_prob"].append(done.target_probs[node] if node in verified else None)
                rows["is_verified"].append(node in verified)
                rows["is_accepted"].append(node in accepted)
        kinds = {"draft_prob": pa.float32(), "target_prob": pa.float32(), "is_verified": pa.bool_(), "is_accepted": pa.bool_()}
        return pa.table({name: pa.array(column, kinds.get(name, pa.int64())) for name, column in rows.items()})

    def _round_rows(self) -> pa.Table:
        rows: list[dict[str, Any]] = []
        for done in self._rounds.values():
            common = {
                "request_id": done.request_id,
                "round": done.number,
                "n_drafted": done.draft.n,
                "n_verified": len(done.nodes) - 1,
                "n_accepted": done.n_accepted,
                "bonus_token_id": done.bonus,
                "is_clipped": done.is_clipped,
            }
            change = done.pools
            if change is None:
                rows.append({**common, "layer": None, "pool": None, "hotness": None, "next_pool": None, "entered": None})
                continue
            for i, layer in enumerate(change.layers):
                of_layer = {"pool": change.members[i], "hotness": change.hotness[i], "next_pool": change.wanted[i]}
                rows.append({**common, "layer": layer, **of_layer, "entered": change.entered[i]})
        kinds = {"is_clipped": pa.bool_(), "hotness": pa.list_(pa.uint32())}
        kinds |= dict.fromkeys(("pool", "next_pool", "entered"), pa.list_(pa.uint16()))
        of_layers = ("layer", "pool", "hotness", "next_pool", "entered")
        of_rounds = ("n_drafted", "n_verified", "n_accepted", "bonus_token_id", "is_clipped")
        names = ("request_id", "round", *of_layers, *of_rounds)
        return pa.table({name: pa.array([row[name] for row in rows], kinds.get(name, pa.int64())) for name in names})

    def _routed(self, on_path: bool) -> _Routed:
        """Routing of the accepted path, or of all nodes in the passes that had them as inputs."""
        assert self.routing is not None
        found = _Routed(np.array(self.routing.layers, np.uint16), on_path)
        for seen in self._seen:
            done = seen.done
            if seen.step is None or (done.kind == ("draft" if on_path else "prefill")):
                continue
            if done.kind == "prefill":
                found.add(seen, list(range(done.n_tokens)), list(range(done.n_tokens)), [0] * done.n_tokens)
                continue
            of = self._rounds[done.request_id, done.round]
            nodes = of.inputs if on_path else done.nodes
            places, positions = [done.nodes.index(n) for n in nodes], [done.start + of.draft.depths[n] for n in nodes]
            n_real = of.pools.members.shape[1] if of.pools is not None and done.kind == "draft" else None
            found.add(seen, places, positions, nodes, n_real)
        return found


class _Routed:
    """Rows of routing and scores, pass by pass, each ordered by layer and node."""

    def __init__(self, layers: np.ndarray, on_path: bool) -> None:
        self.layers, self.on_path = layers, on_path
        self._keys: dict[str, list[np.ndarray]] = {name: [] for name in (*KEYS, "layer")}
        self._phases: list[str] = []
        self._ids: list[np.ndarray] = []
        self._weights: list[np.ndarray] = []
        self._natural: list[np.ndarray | None] = []
        self._scores: list[np.ndarray] = []

    def add(self, seen: _Seen, rows: list[int], positions: list[int], nodes: list[int], n_real: int | None = None) -> None:
        """rows: places of the nodes in the pass; n_real: experts of a token that are more than filling, None: all."""
        assert seen.step is not None
        n, n_layers = len(rows), len(self.layers)
        values = {"request_id": seen.done.request_id, "round": seen.done.round, "pass_id": seen.pass_id}
        for name, value in values.items():
            self._keys[name].append(np.full(n * n_layers, value, KEYS[name]))
        self._keys["position"].append(np.tile(np.array(positions, np.int32), n_layers))
        self._keys["node"].append(np.tile(np.array(nodes, np.uint32), n_layers))
        self._keys["layer"].append(np.repeat(self.layers, n))
        self._phases += [seen.done.kind] * (n * n_layers)
        weights, ids = _taken(seen.step.weights, rows), _taken(seen.step.ids, rows)
        ids, weights = by_weight(ids, weights)
        self._ids.append(ids[:, :n_real].astype(np.uint16))
        self._weights.append(weights[:, :n_real])
        natural = None
        if seen.natural is not None and seen.done.kind == "draft":
            natural, _ = by_weight(_taken(seen.natural.ids, rows), _taken(seen.natural.weights, rows))
        self._natural.append(natural)
        if seen.step.scores is not None:
            self._scores.append(_taken(seen.step.scores, rows))

    def _keyed(self, *names: str) -> dict[str, Any]:
        found = {name: np.concatenate(self._keys[name]) for name in names if name in self._keys}
        return found | ({"phase": pa.array(self._phases, pa.string())} if "phase" in names else {})

    def routing(self) -> pa.Table:
        """Table `routing` of the accepted path, or `node_routing`."""
        lengths = np.concatenate([np.full(len(ids), ids.shape[1]) for ids in self._ids])
        weights = np.concatenate([w.ravel() for w in self._weights])
        columns = self._keyed("request_id", "position", "layer", "pass_id", *(() if self.on_path else ("round", "node", "phase")))
        bad = np.repeat(np.arange(len(lengths)), lengths)[np.isnan(weights)]
        if bad.size:
            refuse_nan(np.where(np.arange(len(lengths)) == bad[0], np.nan, 0.0)[:, None], "gate_weights", columns)
        columns["expert_ids"] = lists(np.concatenate([ids.ravel() for ids in self._ids]), lengths)
        columns["gate_weights"] = lists(weights, lengths)
        if not self.on_path:
            columns["natural_ids"] = self._natural_ids()
        return pa.table(columns)

    def _natural_ids(self) -> pa.ListArray:
        widths = [
            np.full(len(ids), 0 if own is None else own.shape[1]) for ids, own in zip(self._ids, self._natural, strict=True)
        ]
        lengths = np.concatenate(widths)
        values = [np.zeros(0, np.uint16), *(own.astype(np.uint16).ravel() for own in self._natural if own is not None)]
        return lists(np.concatenate(values), lengths, absent=lengths == 0)

    def scores(self) -> pa.Table:
        """Table `scores` of the accepted path, or `node_scores`."""
        scores = np.concatenate(self._scores)
        columns = self._keyed("request_id", "layer", *(("position",) if self.on_path else ("round", "node", "phase")))
        refuse_nan(scores, "scores", columns | {"position": np.concatenate(self._keys["position"])})
        return pa.table({**columns, "scores": lists(scores.ravel(), np.full(len(scores), scores.shape[1]))})


def _taken(tensor: torch.Tensor, rows: list[int]) -> np.ndarray:
    """(L, n, width) of a pass -> (L * rows, width), floats as f32."""
    chosen = tensor[:, rows].flatten(0, 1)
    return chosen.float().numpy() if chosen.is_floating_point() else chosen.numpy()

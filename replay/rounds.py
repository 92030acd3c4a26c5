"""Rounds of speculative decoding from a tape: accepted lengths, and the pools of any policy and size.

Recomputed exactly: how long a path each round accepted (from the drafted tokens and the text, not from the recorded flags), and
for the recorded policy and size every pool, hotness, next pool and what entered. Under another policy or size, and for the
oracle, whose rehearsals are not on the tape, the original routing of draft nodes is taken as recorded, although a draft with
other experts would have had other hidden states from the first restricted layer on: `fidelity` is then approximate, and what
comes out are proxies (overlap with the original top-k, captured router mass). Acceptance under another pool, width, depth or
precision cannot be replayed: it needs the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.policies.resolve import resolve
from tokentape.policies.scoring import gates, ranking
from tokentape.policies.speculation.pools import Pools, pool_size, restricted_topk, selections
from tokentape.warehouse.geometry import Geometry

NEEDED = ("requests", "tokens", "passes", "routing", "acceptance", "rounds", "node_routing", "node_scores")
Key = tuple[int, int, int]  # group, round, layer
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class PoolRounds:
    """Every round of a replayed pool. pools: by (group, round, index of the MoE layer) the columns pool, hotness, next_pool and
    entered of table `rounds`.

    proxies, means over (draft node, layer): pool_overlap_frac, the share of a node's original top-k that the pool's top-k keeps,
    and captured_mass_frac, router probability inside the pool. fidelity: exact, or approximate (see the module).
    """

    fidelity: str
    pools: dict[Key, tuple[Ids, ...]]
    proxies: dict[str, float]


def accepted_lengths(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """request_id, round, n_accepted of every round: the longest drafted path that the text follows.

    tables: requests, tokens, acceptance, rounds. Of `rounds` only the bonus token is read (a request's last token is nobody's
    input, so `tokens` lacks it).
    """
    bonus = {(r, n): b for r, n, b in tables["rounds"].select("request_id", "round", "bonus_token_id").iter_rows()}
    prompts = dict(tables["requests"].select("request_id", "n_prompt_tokens").iter_rows())
    texts = dict(tables["tokens"].sort("position").group_by("request_id", maintain_order=True).agg("token_id").iter_rows())
    verified = tables["acceptance"].filter("is_verified").sort("node", descending=True)  # of siblings alike the first counts
    drafted = verified.select("request_id", "round", "parent", "draft_token_id", "node").iter_rows()
    child = {tuple(of): node for *of, node in drafted}
    found = []
    for (request, number), added in sorted(bonus.items()):
        if number == 0:
            root = prompts[request]
        after = texts[request][root + 1 :]
        is_last = (request, number + 1) not in bonus
        if is_last and added is not None:
            after = [*after, added]
        at, n = 0, int(is_last and added is None)  # the last output token was an accepted node then, and nobody's input
        for token in after:
            if (at := child.get((request, number, at, token), -1)) < 0:
                break
            n += 1
        found.append((request, number, n))
        root += n + 1
    return pl.DataFrame(found, schema=["request_id", "round", "n_accepted"], orient="row")


class RoundTape:
    """A speculative tape's drafts and verifications by group of requests that share a pool, ready to be replayed.

    tables: NEEDED, as Polars frames; settings: the manifest's. Raises ValueError where the tape holds no pools or no scores.
    """

    def __init__(
        self,
        trace_id: str,
        geometry: Geometry,
        settings: Mapping[str, Any],
        score_rule: str | None,
        score_params: Mapping[str, Any],
        tables: Mapping[str, pl.DataFrame],
    ) -> None:
        missing = [name for name in NEEDED if name not in tables]
        draft = settings.get("speculation") or {}
        if missing or draft.get("draft") != "elastic":
            lacks = f"no {missing[0]}" if missing else "no pools"
            raise ValueError(f"tape {trace_id} has {lacks}; capture one with --tables tokens,routing,scores --draft elastic")
        self.geometry, self.rule, self.params = geometry, score_rule, score_params
        self.pool, self.pool_frac = str(draft["pool"]), float(draft["pool_frac"])
        self.seed, self.batch = int(settings["seed"]), int(settings["batch_size"])
        self.tables = tables
        place = {layer: i for i, layer in enumerate(geometry.moe_layers)}
        nodes = tables["node_routing"].with_columns(tables["node_scores"]["scores"])
        prefills = tables["passes"].filter(pl.col("kind") == "prefill").select("pass_id", round=pl.lit(0))
        self._prompt = self._counts(tables["routing"].join(prefills, on="pass_id"), place)
        self._verified = self._counts(nodes.filter(pl.col("phase") == "verify"), place)
        self._drafted: dict[Key, tuple[Ids, NDArray[np.float64]]] = {}
        drafts = nodes.filter(pl.col("phase") == "draft").with_columns(group=pl.col("request_id") // self.batch)
        for (group, number, layer), part in drafts.group_by("group", "round", "layer", maintain_order=True):
            own = part.select(pl.coalesce("natural_ids", "expert_ids")).to_series()
            ids, scores = np.array(own.to_list(), np.int64), np.array(part["scores"].to_list(), np.float64)
            self._drafted[int(group), int(number), place[int(layer)]] = ids, scores

    def _counts(self, rows: pl.DataFrame, place: Mapping[int, int]) -> dict[Key, Ids]:
        """(E,) selections by (group, round, layer)."""
        parts = rows.with_columns(group=pl.col("request_id") // self.batch).group_by("group", "round", "layer")
        return {
            (int(group), int(number), place[int(layer)]): selections(np.concatenate(ids), self.geometry.n_experts)
            for group, number, layer, ids in parts.agg("expert_ids").iter_rows()
        }

    def replay(self, pool: str | None = None, pool_frac: float | None = None) -> PoolRounds:
        """The tape's rounds under a pool policy and size; None: those it was recorded with. Pure."""
        name, frac = self.pool if pool in (None, "recorded") else str(pool), self.pool_frac if pool_frac is None else pool_frac
        policy = resolve("draft", name)
        is_recorded = (name, frac) == (self.pool, self.pool_frac) and not policy.rehearses
        n_layers, n_experts = len(self.geometry.moe_layers), self.geometry.n_experts
        nothing, found = np.zeros(n_experts, np.int64), dict[Key, tuple[Ids, ...]]()
        totals = np.zeros(3)  # overlap, mass, draft nodes x layers
        groups = self.tables["rounds"].select(pl.col("request_id") // self.batch, "round").unique().sort("request_id", "round")
        pools: Pools | None = None
        for group, number in groups.iter_rows():
            if number == 0:
                prompt = np.stack([self._prompt[group, 0, i] for i in range(n_layers)])
                rng = np.random.default_rng([self.seed, group * self.batch])
                pools = Pools(policy, prompt, pool_size(n_experts, frac), rng)
            assert pools is not None
            keys = [(group, number, i) for i in range(n_layers)]
            drafted = [self._drafted.get(key) for key in keys]
            hotness = np.stack([nothing if d is None else selections(d[0], n_experts) for d in drafted])
            if pools.policy.rehearses and hotness.any():
                pools.rehearsed(hotness)
            members, wanted = pools.members, pools.wanted(hotness)
            totals += sum(self._proxies(i, members[i], *of) for i, of in enumerate(drafted) if of is not None)
            touched = np.stack([self._verified[key] > 0 for key in keys])
            entered = pools.verified(wanted, hotness, touched)
            found |= dict(zip(keys, zip(members, hotness, wanted, entered, strict=True), strict=True))
        overlap, mass = map(float, totals[:2] / max(1.0, totals[2]))
        fidelity = "exact" if is_recorded else "approximate"
        return PoolRounds(fidelity, found, {"pool_overlap_frac": overlap, "captured_mass_frac": mass})

    def _proxies(self, index: int, members: Ids, natural: Ids, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums over the nodes of a layer: share of the original top-k kept, router mass in the pool, and 1."""
        assert self.rule is not None
        values = ranking(scores, self.rule, self.params, self.geometry.moe_layers[index])
        chosen = restricted_topk(np.where(np.isneginf(values), scores - 1e6, values), members, natural.shape[1])
        kept = (chosen[:, :, None] == natural[:, None, :]).any(axis=2).sum() / natural.shape[1]
        dense = gates(scores, self.rule)
        return np.array([kept, (dense[:, members].sum(axis=1) / dense.sum(axis=1)).sum(), len(scores)])

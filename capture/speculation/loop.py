"""Draft and verify: rounds of proposing tokens, scoring them in one pass of the target and keeping what it accepts.

The output is the target's own: token for token when greedy, in distribution when sampled. Requests of a group go round by round
together and share the drafter's pools; each runs through the model alone, so there is no padding. The drafter's pools hold still
through a draft phase and change once the whole group is verified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from tokentape.capture.decode import Outcome, Request, Sampling, prompt_nll
from tokentape.capture.speculation.drafters import Drafter, OnPass, SelfDrafter
from tokentape.capture.speculation.text import Text, distribution
from tokentape.policies.speculation.accept import accept_greedy, accept_sampled
from tokentape.policies.speculation.tree import Draft, Probabilities, Shape, ancestors


@dataclass(frozen=True)
class NodePass:
    """A forward pass that has just run, of one request. nodes: its inputs in the draft tree; none in a prefill."""

    kind: str  # prefill | rehearsal | draft | verify
    request_id: int
    round: int
    nodes: list[int]
    start: int  # position of the root, or 0 in a prefill
    n_tokens: int
    is_target: bool  # run by the target: its routers saw it


@dataclass(frozen=True)
class PoolChange:
    """The pools of a round, (L, ...): in force, hotness of the draft phase, wanted next, and what entered per layer."""

    members: np.ndarray
    hotness: np.ndarray
    wanted: np.ndarray
    entered: list[np.ndarray]


@dataclass(frozen=True)
class Round:
    """One request's round. path: accepted nodes; committed: tokens that became output, the bonus token included.

    target_probs: of each drafted node's token, NaN where it was not verified. pools: None for drafters without.
    """

    request_id: int
    number: int
    draft: Draft
    nodes: list[int]  # verified, the root first
    path: list[int]
    committed: list[int]
    target_probs: list[float]
    is_clipped: bool
    pools: PoolChange | None = None

    @property
    def n_accepted(self) -> int:
        """Drafted tokens accepted and kept, without the bonus token."""
        return min(len(self.path), len(self.committed))

    @property
    def bonus(self) -> int | None:
        """The token that the target added, unless a stop token or the length came first."""
        return self.committed[-1] if len(self.committed) > len(self.path) else None

    @property
    def inputs(self) -> list[int]:
        """Nodes on the accepted path that were inputs of a pass as ordinary decoding has it: a last token is nobody's input."""
        return [0, *self.path][: len(self.committed)]


@dataclass
class _Live:
    request: Request
    text: Text
    ids: list[int]
    rng: np.random.Generator
    outcome: Outcome = field(default_factory=Outcome)
    nll: list[torch.Tensor] = field(default_factory=list)
    rounds: int = 0
    is_done: bool = False

    @property
    def room(self) -> int:
        """Tokens that may still be output."""
        return self.request.budget - len(self.outcome.output_ids)


@torch.inference_mode()
def speculate(
    model: PreTrainedModel,
    requests: Sequence[Request],
    sampling: Sampling,
    stop_ids: frozenset[int],
    drafter: Drafter,
    shape: Shape,
    on_pass: Callable[[NodePass], None] = lambda done: None,
    on_round: Callable[[Round], None] = lambda done: None,
) -> list[Outcome]:
    """Runs a group of requests to its end, inside `with drafter`. Outcomes are those of capture.decode.decode, nll included."""
    group = [_Live(r, Text(model), list(r.prompt_ids), np.random.default_rng(r.seed)) for r in requests]
    for live in group:
        _prefill(live, sampling, stop_ids, on_pass)
    drafter.begin(requests[0].request_id, drafter.throttle.take() if drafter.throttle is not None else None)
    while alive := [live for live in group if not live.is_done]:
        drafts = _draft_all(alive, drafter, sampling, shape, on_pass)
        throttle, pools = drafter.throttle, drafter.pools
        hotness = throttle.take() if throttle is not None else None
        rounds = [_verify(live, draft, shape, sampling, stop_ids, on_pass) for live, draft in zip(alive, drafts, strict=True)]
        change = None
        if throttle is not None and pools is not None and hotness is not None:
            members, wanted = pools.members, pools.wanted(hotness)
            change = PoolChange(members, hotness, wanted, pools.verified(wanted, hotness, throttle.take() > 0))
        for done in rounds:
            on_round(replace(done, pools=change))
    for live in group:
        live.outcome.nll = torch.cat([*live.nll]).cpu()
    return [live.outcome for live in group]


def _prefill(live: _Live, sampling: Sampling, stop_ids: frozenset[int], on_pass: Callable[[NodePass], None]) -> None:
    logits = live.text.feed(live.ids)
    on_pass(NodePass("prefill", live.request.request_id, 0, [], 0, len(live.ids), True))
    ids = torch.tensor([live.ids], device=logits.device)
    live.nll.append(prompt_nll(logits[None], ids)[0])
    if live.request.budget < 1:
        live.is_done = True
        return
    draft, last = Draft(live.ids[-1], Shape()), logits[-1:]
    _, first = _accept(draft, [0], last, distribution(last, sampling), sampling, live.rng)
    _commit(live, [first], last, stop_ids)


def _draft_all(
    alive: list[_Live], drafter: Drafter, sampling: Sampling, shape: Shape, on_pass: Callable[[NodePass], None]
) -> list[Draft]:
    """A draft per request, no deeper than the tokens it may still output but the one that the target adds."""
    made = []
    for live in alive:
        limited = replace(shape, depth=max(1, min(shape.depth, live.room - 1)))
        made.append(Draft(live.ids[-1], limited, live.rng if sampling.temperature > 0 else None))
    pairs = [(live, draft) for live, draft in zip(alive, made, strict=True) if live.room > 1]
    if pairs and isinstance(drafter, SelfDrafter) and drafter.pools is not None and drafter.pools.policy.rehearses:
        assert drafter.throttle is not None
        for live, draft in pairs:
            drafter.rehearse(live.text, draft, sampling, _teller(live, "rehearsal", drafter, on_pass))
        drafter.pools.rehearsed(drafter.throttle.take())
    for live, draft in pairs:
        told = _teller(live, "draft", drafter, on_pass)
        drafter.draft(live.request.request_id, live.ids, live.text, draft, sampling, told)
    return made


def _teller(live: _Live, kind: str, drafter: Drafter, on_pass: Callable[[NodePass], None]) -> OnPass:
    start, name = len(live.ids) - 1, live.request.request_id
    return lambda nodes, n: on_pass(NodePass(kind, name, live.rounds, nodes, start, n, drafter.runs_target))


def _verify(
    live: _Live,
    draft: Draft,
    shape: Shape,
    sampling: Sampling,
    stop_ids: frozenset[int],
    on_pass: Callable[[NodePass], None],
) -> Round:
    nodes, start = draft.verified(), live.text.length
    tokens = [draft.tokens[n] for n in nodes]
    parents = [-1, *(nodes.index(draft.parents[n]) for n in nodes[1:])]
    if parents == list(range(-1, len(nodes) - 1)):
        logits = live.text.feed(tokens)
    else:
        logits = live.text.feed_tree(tokens, [draft.depths[n] for n in nodes], ancestors(parents))
    name, number = live.request.request_id, live.rounds
    on_pass(NodePass("verify", name, number, nodes, start, len(nodes), True))
    chances = distribution(logits, sampling)
    path, bonus = _accept(draft, nodes, logits, chances, sampling, live.rng)
    after = [nodes.index(n) for n in (0, *path)]
    live.text.keep(start, after)
    probs = [float("nan")] * len(draft.tokens)
    for place, node in enumerate(nodes[1:], 1):
        probs[node] = float(chances[parents[place], tokens[place]])
    live.rounds += 1
    was_limited = draft.shape.depth < shape.depth or live.room == 1
    committed = _commit(live, [*(draft.tokens[n] for n in path), bonus], logits[after], stop_ids)
    return Round(name, number, draft, nodes, path, committed, probs, was_limited or len(committed) <= len(path))


def _accept(
    draft: Draft, nodes: list[int], logits: torch.Tensor, chances: Probabilities, sampling: Sampling, rng: np.random.Generator
) -> tuple[list[int], int]:
    if sampling.temperature == 0:
        return accept_greedy(draft, nodes, logits.argmax(-1).tolist())
    return accept_sampled(draft, nodes, chances, rng)


def _commit(live: _Live, tokens: list[int], logits: torch.Tensor, stop_ids: frozenset[int]) -> list[int]:
    """Outputs tokens up to a stop token or the limit; logits (n, V) predicted each. Returns those that were output."""
    kept = tokens[: live.room]
    stop = next((i for i, token in enumerate(kept) if token in stop_ids), None)
    if stop is not None:
        kept = kept[: stop + 1]
    live.outcome.output_ids += kept
    live.ids += kept
    chosen = torch.tensor(kept, device=logits.device)
    live.nll.append(F.cross_entropy(logits[: len(kept)].float(), chosen, reduction="none"))
    live.is_done = stop is not None or live.room == 0
    return kept

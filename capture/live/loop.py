"""The one decode loop: form, draft, target pass, commit, with any decisions inside the model (capture/live/slots.py).

Greedy, sampled (each request with its own generator, so that its tokens do not depend on what ran before it) or teacher-forced. A
last token of a request is never an input. Requests go on in lockstep, padded on the left; with a drafter or a schedule each runs
through the model alone. The output of drafting is the target's own: token for token when greedy, in distribution when sampled.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel

from tokentape.capture.live.sampling import OVERFLOW, Sampling, distribution, drawn, nll_of
from tokentape.capture.live.schedule import Former
from tokentape.capture.live.slots import Inside, Pass, Request, Step
from tokentape.capture.live.texts import WHOLE_PROMPTS, Text, takes_padding
from tokentape.policies.speculation.accept import accept_greedy, accept_sampled
from tokentape.policies.speculation.tree import Draft, Probabilities, Shape, ancestors

__all__ = ["Outcome", "Pass", "Request", "Round", "Sampling", "decode"]

ROOT = Shape()


@dataclass
class Outcome:
    """What became of a request: the tokens after the prompt, nll of inputs 1, 2, ... (prompt, then all outputs), and the logits
    (tokens after the prompt, V) that each of these was chosen by, where they were asked for. has_nan: some of these hold NaN."""

    output_ids: list[int] = field(default_factory=list)
    nll: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    has_nan: bool = False


def refuse_nan(requests: Sequence[Request], outcomes: Sequence[Outcome]) -> None:
    for request, outcome in zip(requests, outcomes, strict=True):
        if outcome.has_nan:
            raise ValueError(f"logits: NaN at request {request.request_id}; {OVERFLOW}")


@dataclass(frozen=True)
class PoolChange:
    """The pools of a round, (L, ...): in force, hotness of the draft phase, wanted next, and what entered per layer."""

    layers: tuple[int, ...]  # absolute
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


@torch.inference_mode()
def decode(
    model: PreTrainedModel,
    requests: Sequence[Request],
    sampling: Sampling,
    stop_ids: frozenset[int],
    pad_id: int,
    inside: Inside | None = None,
    *,
    before_pass: Callable[[Pass], None] = lambda coming: None,
    on_pass: Callable[[Pass], None] = lambda done: None,
    on_round: Callable[[Round], None] = lambda done: None,
    with_nll: bool = False,
    with_logits: bool = False,
) -> list[Outcome]:
    """Runs the requests to their end, inside `with inside`. before_pass, on_pass, on_round: of whoever watches."""
    run = _Run(inside or Inside(model), sampling, stop_ids, before_pass, on_pass, on_round, with_nll, with_logits)
    return run.outcomes(model, requests, pad_id)


@dataclass
class _Row:
    """A request under way. ids: all that is decided; rng: of drafts; generator: of tokens that are drawn without one."""

    request: Request
    ids: list[int]
    rng: np.random.Generator
    generator: torch.Generator
    outcome: Outcome = field(default_factory=Outcome)
    nll: list[torch.Tensor] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    rounds: int = 0
    is_done: bool = False

    @property
    def room(self) -> int:
        """Tokens that may still be output."""
        return self.request.budget - len(self.outcome.output_ids)

    def told(self, at: int) -> int | None:
        """The token that is forced as output number `at`; None: there is none."""
        forced = self.request.forced
        return None if forced is None or at >= len(forced) else forced[at]


class Batch:
    """Requests that go through the model together; `position`: columns of their prompts that are done."""

    def __init__(self, rows: list[_Row], text: Text, pad_id: int, pads: list[int]) -> None:
        self.rows, self.text, self.pad_id, self.pads = rows, text, pad_id, pads
        self.prompt = torch.tensor([[pad_id] * pad + row.ids for pad, row in zip(pads, rows, strict=True)], device=text.device)
        columns = torch.arange(self.prompt.shape[1], device=text.device)
        self.mask = columns >= torch.tensor(pads, device=text.device).unsqueeze(1) if any(pads) else None
        self.position = self.n_steps = 0
        self.nexts = self.prompt[:, -1]  # (rows,) next inputs, also of rows that are done
        self.last: torch.Tensor | None = None  # (rows, V) logits of the last column of the prompts so far

    @property
    def n_prompt(self) -> int:
        return self.prompt.shape[1]

    @property
    def is_done(self) -> bool:
        return all(row.is_done for row in self.rows)

    @property
    def alive(self) -> list[int]:
        return [i for i, row in enumerate(self.rows) if not row.is_done]

    def positions(self, last: bool = False) -> dict[str, Any]:
        """Mask and positions for a padded batch; nothing where the model's own are right."""
        if self.mask is None:
            return {}
        positions = (self.mask.long().cumsum(-1) - 1).clamp(min=0)
        return {"attention_mask": self.mask.long(), "position_ids": positions[:, -1:] if last else positions}

    def parts(self, take: int) -> list[tuple[int, int, int]]:
        """(request, first position, tokens) of each prompt's next columns."""
        told = zip(self.rows, self.pads, strict=True)
        return [(row.request.request_id, self.position, take - pad) for row, pad in told]

    def coming(self, kind: str, members: list[int], starts: list[int], counts: list[int], **of: Any) -> Pass:
        names = [self.rows[i].request.request_id for i in members]
        pads = [self.pads[i] for i in members]
        return Pass(kind, names, members, starts, counts, pads, n_rows=len(self.rows), text=self.text, **of)


@dataclass
class _Run:
    inside: Inside
    sampling: Sampling
    stop_ids: frozenset[int]
    before_pass: Callable[[Pass], None]
    on_pass: Callable[[Pass], None]
    on_round: Callable[[Round], None]
    with_nll: bool
    with_logits: bool
    is_drafting: bool = False

    def __post_init__(self) -> None:
        self.drafter = self.inside.drafter
        self.shape = ROOT if self.drafter is None else self.drafter.shape
        self.with_nll |= self.drafter is not None

    def _batches(self, model: PreTrainedModel, requests: Sequence[Request], pad_id: int) -> list[Batch]:
        """All requests in lockstep, or each alone."""
        rows = [
            _Row(r, list(r.prompt_ids), np.random.default_rng(r.seed), torch.Generator().manual_seed(r.seed)) for r in requests
        ]
        is_uneven = len({len(row.ids) for row in rows}) > 1
        is_alone = self.drafter is not None or self.inside.schedule is not None or (is_uneven and not takes_padding(model))
        batches = []
        for group in [[row] for row in rows] if is_alone else [rows]:
            width = max(len(row.ids) for row in group)
            pads = [width - len(row.ids) for row in group]
            cache = self.inside.new_cache(pads, self.drafter is not None)
            if cache is None and self.drafter is not None:
                cache = DynamicCache()
            batches.append(Batch(group, Text(model, self, cache, width), pad_id, pads))
        return batches

    def before(self, coming: Pass) -> None:
        self.inside.before(coming)
        self.before_pass(coming)

    def after(self, done: Pass) -> None:
        self.inside.after(done)
        self.on_pass(done)

    def outcomes(self, model: PreTrainedModel, requests: Sequence[Request], pad_id: int) -> list[Outcome]:
        """Runs until all requests are done."""
        self.inside.begin(requests)
        queue, decoding = self._batches(model, requests, pad_id), list[Batch]()
        rows = [row for batch in queue for row in batch.rows]
        former = Former(self.inside.schedule, self.inside.max_seqs, model.config.get_text_config().num_hidden_layers)
        if former.rule is not None and former.rule.may_split and model.config.model_type in WHOLE_PROMPTS:
            raise ValueError(f"{type(model).__name__} loses track of a prompt in slices; take a schedule that splits none")
        while queue or decoding or not former.is_idle:
            formed = former.form(queue, decoding)
            decoded = [row.request.request_id for batch in decoding for row in batch.rows if not row.is_done]
            if self.drafter is not None and decoding:
                self._draft_and_verify(decoding, requests[0].request_id)
            else:
                for batch in decoding:
                    self._decode(batch)
            slices = [part for batch, take in formed.prompts for part in batch.parts(take)]
            for batch, take in formed.prompts:
                if formed.is_first:
                    self._prefill(batch, take)
                if formed.is_last:
                    batch.position += take
            self.inside.end(Step(decoded, slices, formed.first_layer, formed.last_layer))
            joining = [batch for batch, _ in formed.prompts if formed.is_last and batch.position == batch.n_prompt]
            for batch in joining:
                self._first(batch)
            decoding = [batch for batch in (*decoding, *joining) if not batch.is_done]
        for row in rows:
            row.outcome.nll = torch.cat(row.nll).cpu() if self.with_nll else None
            row.outcome.logits = torch.cat(row.logits) if row.logits else None
        return [row.outcome for row in rows]

    def _prefill(self, batch: Batch, take: int) -> None:
        """The next columns of the prompts: whole, or a slice of one."""
        start, every = batch.position, list(range(len(batch.rows)))
        ids = batch.prompt[:, start : start + take]
        keep = None if batch.mask is None else batch.mask.flatten()
        counts = [take - pad for pad in batch.pads]
        is_last = start + take == batch.n_prompt
        starts = [start] * len(every)
        coming = batch.coming("prefill", every, starts, counts, width=start + take, keep=keep, is_last=is_last)
        if not self.with_nll:
            logits = batch.text.run(ids, coming, logits_to_keep=1, **batch.positions())
        else:
            logits, of_ids = batch.text.run_scored(ids, coming, **batch.positions())
            before = [] if batch.last is None else [nll_of(batch.last[:, None], ids[:, :1])]
            nll = torch.cat([*before, of_ids], dim=1)
            for i, (row, pad) in enumerate(zip(batch.rows, batch.pads, strict=True)):
                row.nll.append(nll[i, pad:])
        batch.last = logits[:, -1]

    def _first(self, batch: Batch) -> None:
        """The first tokens, by what the prompts' last columns foretell."""
        assert batch.last is not None
        for row in batch.rows:
            row.is_done = row.request.budget < 1
        if batch.is_done:
            return
        if self.drafter is None:
            self._advance(batch, batch.last)
            return
        row, logits = batch.rows[0], batch.last
        _, first = self._accept(row, Draft(row.ids[-1], ROOT), [0], logits, distribution(logits, self.sampling))
        self._commit(row, [first], logits)

    def _decode(self, batch: Batch) -> None:
        """One token of every request of the batch."""
        alive = batch.alive
        if batch.mask is not None:
            batch.mask = F.pad(batch.mask, (0, 1), value=True)
        keep = None
        if len(alive) < len(batch.rows):
            keep = torch.zeros(len(batch.rows), dtype=torch.bool)
            keep[alive] = True
        starts = [len(batch.rows[i].ids) - 1 for i in alive]
        coming = batch.coming("decode", alive, starts, [1] * len(alive), width=batch.text.length + 1, keep=keep)
        logits = batch.text.run(batch.nexts.unsqueeze(1), coming, **batch.positions(last=True))
        for name in coming.request_ids:
            self.inside.commit(name, [0])
        self._advance(batch, logits[:, -1])

    def _advance(self, batch: Batch, logits: torch.Tensor) -> None:
        """Chooses every request's next token by logits (rows, V)."""
        chosen = logits.argmax(-1)
        nans = logits.gather(-1, chosen[:, None]).isnan().tolist()  # of a row with NaN argmax is the first
        if self.sampling.temperature > 0:
            chosen = drawn(logits, self.sampling, [row.generator for row in batch.rows])
        if any(row.request.forced is not None for row in batch.rows):
            given = [-1 if row.request.forced is None else row.told(batch.n_steps) for row in batch.rows]
            told = torch.tensor([batch.pad_id if token is None else token for token in given], device=logits.device)
            chosen = torch.where(told >= 0, told, chosen)
        batch.n_steps, batch.nexts = batch.n_steps + 1, chosen
        nll = nll_of(logits, chosen) if self.with_nll else None
        tokens = chosen.tolist()
        for i in batch.alive:
            batch.rows[i].outcome.has_nan |= nans[i][0]
            self._commit(batch.rows[i], [tokens[i]], logits[i : i + 1], None if nll is None else nll[i : i + 1])

    def _commit(self, row: _Row, tokens: list[int], logits: torch.Tensor, nll: torch.Tensor | None = None) -> list[int]:
        """Outputs tokens up to a stop token or the limit; logits (n, V) foretold each. Returns those that were output."""
        kept = tokens[: row.room]
        stops = self.stop_ids if row.request.forced is None else frozenset[int]()
        end = next((n for n, token in enumerate(kept, 1) if token in stops), None)
        kept = kept[:end]
        row.outcome.output_ids += kept
        row.ids += kept
        if self.with_nll:
            chosen = torch.tensor(kept, device=logits.device)
            row.nll.append(nll_of(logits[: len(kept)], chosen) if nll is None else nll)
        if self.with_logits:
            row.logits.append(logits[: len(kept)].float())
        row.is_done = end is not None or row.room == 0
        return kept

    # ------------------------------------------------------------------------------------------------------------- drafts

    def _draft_and_verify(self, decoding: list[Batch], first: int) -> None:
        """A round of all that decode. The drafter's pools hold still through it and change once every draft is verified.

        first: the group's first request."""
        assert self.drafter is not None
        pool = self.drafter.pool
        if not self.is_drafting:
            self.is_drafting = True
            self.drafter.begin(first, pool.take("prefill") if pool is not None else None)
        drafts = self._drafts(decoding)
        hotness = pool.take("draft") if pool is not None else None
        rounds = [self._verify(batch, draft) for batch, draft in zip(decoding, drafts, strict=True)]
        change, pools = None, self.drafter.pools
        if pool is not None and pools is not None and hotness is not None:
            members, wanted = pools.members, pools.wanted(hotness)
            change = PoolChange(
                tuple(pool.blocks), members, hotness, wanted, pools.verified(wanted, hotness, pool.take("verify") > 0)
            )
        for done in rounds:
            self.on_round(replace(done, pools=change))

    def _drafts(self, decoding: list[Batch]) -> list[Draft]:
        """A draft per request, no deeper than the tokens it may still output but the one that the target adds."""
        drafter, made = self.drafter, []
        assert drafter is not None
        for batch in decoding:
            row = batch.rows[0]
            limited = replace(self.shape, depth=max(1, min(self.shape.depth, row.room - 1)))
            made.append(Draft(row.ids[-1], limited, row.rng if self.sampling.temperature > 0 else None))
        pairs = [(batch, draft) for batch, draft in zip(decoding, made, strict=True) if batch.rows[0].room > 1]

        def grow(batch: Batch, draft: Draft, kind: str) -> None:
            row = batch.rows[0]
            drafter.draft(row.request.request_id, row.ids, batch.text, draft, self.sampling, self._teller(batch, kind))

        if pairs and drafter.pool and drafter.pools and drafter.pools.policy.rehearses:
            for batch, draft in pairs:  # without a pool, for its counts, and drawn with a generator of its own
                grow(batch, Draft(draft.tokens[0], draft.shape, copy.deepcopy(draft.rng)), "rehearsal")
            drafter.pools.rehearsed(drafter.pool.take("rehearsal"))
        for batch, draft in pairs:
            grow(batch, draft, "draft")
        return made

    def _teller(self, batch: Batch, kind: str) -> Callable[[list[int], int], Pass]:
        """What makes the passes of a draft known: by the nodes that are inputs, and all their tokens."""
        row, is_target = batch.rows[0], self.drafter is not None and (kind == "verify" or self.drafter.runs_target)
        start, width = len(row.ids) - 1, batch.text.length
        of = {"round": row.rounds, "is_target": is_target}
        return lambda nodes, n: batch.coming(kind, [0], [start], [n], width=width + n, nodes=nodes, **of)

    def _verify(self, batch: Batch, draft: Draft) -> Round:
        row, text = batch.rows[0], batch.text
        nodes, start = draft.verified(), text.length
        tokens = [draft.tokens[n] for n in nodes]
        parents = [-1, *(nodes.index(draft.parents[n]) for n in nodes[1:])]
        coming = self._teller(batch, "verify")(nodes, len(nodes))
        if parents == list(range(-1, len(nodes) - 1)):
            logits = text.feed(tokens, coming)
        else:
            logits = text.feed_tree(tokens, coming, [draft.depths[n] for n in nodes], ancestors(parents))
        chances = distribution(logits, self.sampling)
        path, bonus = self._accept(row, draft, nodes, logits, chances)
        was_limited = draft.shape.depth < self.shape.depth or row.room == 1
        after = [nodes.index(n) for n in (0, *path)]
        committed = self._commit(row, [*(draft.tokens[n] for n in path), bonus], logits[after])
        after = after[: len(committed)]  # what follows a stop token is nobody's input
        text.keep(start, after)
        name = row.request.request_id
        self.inside.commit(name, after)
        assert self.drafter is not None
        self.drafter.commit(text, after)
        probs = [float("nan")] * len(draft.tokens)
        for place, node in enumerate(nodes[1:], 1):
            probs[node] = float(chances[parents[place], tokens[place]])
        number, row.rounds = row.rounds, row.rounds + 1
        return Round(name, number, draft, nodes, path, committed, probs, was_limited or len(committed) <= len(path))

    def _accept(
        self, row: _Row, draft: Draft, nodes: list[int], logits: torch.Tensor, chances: Probabilities
    ) -> tuple[list[int], int]:
        """(accepted path, bonus token): by the target's choices, or those that are told; sampled by its `chances`."""
        if self.sampling.temperature > 0 and row.request.forced is None:
            return accept_sampled(draft, nodes, chances, row.rng)
        n_out, best = len(row.outcome.output_ids), logits.argmax(-1)
        row.outcome.has_nan |= bool(logits.gather(-1, best[:, None]).isnan().any())
        told = [row.told(n_out + draft.depths[n]) for n in nodes]
        return accept_greedy(
            draft, nodes, [own if token is None else token for own, token in zip(best.tolist(), told, strict=True)]
        )

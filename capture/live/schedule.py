"""Which prompts go on in an iteration, how far, and through which layers: a scheduler's rule (policies/serving/rule.py).

A request's cache is its own and nothing that decides in a prompt looks at another request, so a slice of a prompt runs through
the model once, when its batch is formed; its layers count in the iterations of their groups, its first token comes with the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokentape.policies.serving.groups import group_start, n_groups

if TYPE_CHECKING:
    from tokentape.capture.live.loop import Batch


@dataclass(frozen=True)
class Formed:
    """prompts: and the columns that each goes on by, in the layers first_layer .. last_layer - 1."""

    prompts: list[tuple[Batch, int]]
    first_layer: int
    last_layer: int
    is_first: bool  # of its groups of layers
    is_last: bool


class Former:
    """Arrivals are all at the start. scheduler: None takes all prompts at once, whole; max_seqs: requests under way."""

    def __init__(self, scheduler: Any, max_seqs: int, n_layers: int) -> None:
        self.rule = None if scheduler is None else scheduler.rule(n_layers)
        self.max_seqs, self.n_layers = max_seqs, n_layers
        self.under_way: list[tuple[Batch, int]] = []
        self._partial: list[Batch] = []
        self._group, self._n_groups = 0, 1

    @property
    def is_idle(self) -> bool:
        return not self.under_way and not self._partial

    def form(self, queue: list[Batch], decoding: list[Batch]) -> Formed:
        """What of the prompts runs in this iteration; takes new ones from the queue."""
        if not self.under_way and not (self.rule is not None and self.rule.waits_for_idle and decoding):
            self.under_way, self._group = self._taken(queue, len(decoding)), 0
            tokens = sum(take for _, take in self.under_way)
            self._n_groups = 1 if self.rule is None else n_groups(self.rule.step_numbers(), tokens)
        prompts, group, of = self.under_way, self._group, self._n_groups
        if not prompts:
            return Formed([], 0, 0, True, True)
        self._group += 1
        if self._group == of:
            self.under_way = []
        first, last = (int(group_start(g, of, self.n_layers)) for g in (group, group + 1))
        return Formed(prompts, first, last, group == 0, group == of - 1)

    def _taken(self, queue: list[Batch], n_decoding: int) -> list[tuple[Batch, int]]:
        """As form_batch of the serving engine (replay/serving/state.py), first come first served."""
        if self.rule is None:
            taken = [(batch, batch.n_prompt) for batch in queue]
            queue.clear()
            return taken
        room = self.rule.budget_tokens - (n_decoding if self.rule.counts_decodes else 0)
        found, tokens = list[tuple["Batch", int]](), 0
        while len(found) < self.rule.max_prompts and (self._partial or queue):
            is_new = not self._partial
            batch = queue[0] if is_new else self._partial[0]
            if is_new and n_decoding + len(found) >= self.max_seqs:
                break
            rest = batch.n_prompt - batch.position
            take = min(rest, room - tokens) if self.rule.may_split else rest
            if take <= 0 or (not self.rule.may_split and found and tokens + rest > room):
                break
            (queue if is_new else self._partial).pop(0)
            found.append((batch, take))
            tokens += take
            if take < rest:
                self._partial = [batch]
                break
        return found

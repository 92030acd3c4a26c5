"""What a scheduler is to a serving engine: how the prefill work of an iteration is chosen (Layered Prefill sections 3 and 4).

All schedulers give every decoding request one token per iteration. They differ in the batch of prompt tokens that is formed when
none is in flight, and in how many groups of layers it walks through, one group per iteration.
"""

from dataclasses import astuple, dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

UNLIMITED = int(np.iinfo(np.int64).max // 4)


@dataclass(frozen=True)
class BatchRule:
    """How a batch of prompt tokens is formed, first come first served, the rest of a split prompt first.

    budget_tokens: prompt tokens of a batch, on each replica of a data-parallel machine. counts_decodes: its decoding requests use
    up a token of the budget each. may_split:
    the last prompt is cut to fit; else only whole prompts are taken, the first one whatever its length. waits_for_idle: a batch
    is formed only when nothing decodes. max_prompts: prompts of a batch. starts_decoding: arriving prompts were processed
    elsewhere and decode from their second token on. steps: (largest batch in tokens, groups of layers), by size; the last
    one holds for every larger batch too. Raises ValueError for what no engine can follow.
    """

    budget_tokens: int
    counts_decodes: bool
    may_split: bool
    waits_for_idle: bool = False
    max_prompts: int = UNLIMITED
    starts_decoding: bool = False
    steps: tuple[tuple[int, int], ...] = ((UNLIMITED, 1),)

    def __post_init__(self) -> None:
        batches = [largest for largest, _ in self.steps]
        whole = (self.budget_tokens, self.max_prompts, *batches, *(groups for _, groups in self.steps))
        if not all(isinstance(n, int) and 1 <= n <= UNLIMITED for n in whole) or not batches or batches != sorted({*batches}):
            told = f"budget_tokens {self.budget_tokens}, max_prompts {self.max_prompts} and steps {self.steps}"
            raise ValueError(f"BatchRule: {told} must be at least 1 and whole, and one step or more, by size of batch")

    def numbers(self) -> NDArray[np.int64]:
        """(6,) the fields but `steps`, in their order, as the kernel takes them."""
        return np.array(astuple(self)[:-1], np.int64)

    def step_numbers(self) -> NDArray[np.int64]:
        """(2, m) the steps: largest batch, groups."""
        return np.ascontiguousarray(np.array(self.steps, np.int64).T)


@runtime_checkable
class Scheduler(Protocol):
    """A frozen dataclass whose fields are its parameters."""

    def rule(self, n_layers: int) -> BatchRule:
        """The rule for a model of so many layers. Raises ValueError naming a field that does not fit it."""
        ...

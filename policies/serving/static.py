"""Static batching: a batch of prompts is processed at once and decoded until all have finished (FasterTransformer)."""

from __future__ import annotations

from dataclasses import dataclass

from tokentape.policies.serving.rule import UNLIMITED, BatchRule, at_least_one


@dataclass(frozen=True)
class Static:
    """Takes waiting requests only when nothing runs, max_prompts at most."""

    max_prompts: int = 32

    def __post_init__(self) -> None:
        at_least_one(self, "max_prompts")

    def rule(self, n_layers: int) -> BatchRule:
        """As Scheduler."""
        return BatchRule(UNLIMITED, False, may_split=False, waits_for_idle=True, max_prompts=self.max_prompts)

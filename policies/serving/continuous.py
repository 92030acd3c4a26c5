"""Continuous batching: whole prompts join the running batch at every iteration (Orca, OSDI 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from tokentape.policies.serving.rule import BatchRule, at_least_one


@dataclass(frozen=True)
class Continuous:
    """Admits whole prompts while they fit cap_tokens together; the first is admitted whatever its length."""

    cap_tokens: int = 8192

    def __post_init__(self) -> None:
        at_least_one(self, "cap_tokens")

    def rule(self, n_layers: int) -> BatchRule:
        """As Scheduler."""
        return BatchRule(self.cap_tokens, False, may_split=False)

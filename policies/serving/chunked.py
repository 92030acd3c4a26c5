"""Chunked prefill: prompts are cut along tokens, a chunk per iteration beside the decodes (Sarathi-Serve, OSDI 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from tokentape.policies.serving.rule import BatchRule, at_least_one


@dataclass(frozen=True)
class Chunked:
    """chunk_tokens: tokens of an iteration, decodes among them; what they leave is filled with prompts, short ones together."""

    chunk_tokens: int = 512

    def __post_init__(self) -> None:
        at_least_one(self, "chunk_tokens")

    def rule(self, n_layers: int) -> BatchRule:
        """As Scheduler."""
        return BatchRule(self.chunk_tokens, True, may_split=True)

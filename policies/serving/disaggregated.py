"""Disaggregated serving: one engine processes prompts, another decodes, the KV cache moves (DistServe, OSDI 2024)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tokentape.policies.serving.chunked import Chunked
from tokentape.policies.serving.rule import BatchRule, at_least_one


@dataclass(frozen=True)
class Disaggregated:
    """chunk_tokens: of the prefill engine, which Layered Prefill does not give; kv_bytes_per_s: of the link between them. Both
    assumed."""

    chunk_tokens: int = 2048
    kv_bytes_per_s: float = 300e9

    def __post_init__(self) -> None:
        at_least_one(self, "chunk_tokens", "kv_bytes_per_s")

    def prefill_rule(self, n_layers: int) -> BatchRule:
        """The rule of the engine that processes prompts."""
        return Chunked(self.chunk_tokens).rule(n_layers)

    def decode_rule(self, n_layers: int) -> BatchRule:
        """The rule of the engine that decodes; a prompt that lost its KV cache there is processed there, in chunks."""
        return dataclasses.replace(self.prefill_rule(n_layers), starts_decoding=True)

"""The schedulers: what each lets into a batch of prompt tokens (rule.py)."""

from dataclasses import dataclass, fields, replace
from typing import Annotated

from tokentape.policies.bounds import Bounded, one_of
from tokentape.policies.serving.groups import RULES, steps
from tokentape.policies.serving.rule import UNLIMITED, BatchRule


class AtLeastOne(Bounded):
    """Raises ValueError for the first number of a scheduler that is below 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in fields(self):  # type: ignore[arg-type]
            if not isinstance(value := getattr(self, field.name), str) and value < 1:
                raise ValueError(f"{type(self).__name__}: {field.name} must be at least 1, found {value}")


@dataclass(frozen=True)
class Static(AtLeastOne):
    """Takes waiting requests, max_prompts at most, only when nothing runs: a batch is processed at once and decoded until all
    have finished (FasterTransformer)."""

    max_prompts: int = 32

    def rule(self, n_layers: int) -> BatchRule:
        return BatchRule(UNLIMITED, False, may_split=False, waits_for_idle=True, max_prompts=self.max_prompts)


@dataclass(frozen=True)
class Continuous(AtLeastOne):
    """Continuous batching: whole prompts join the running batch at every iteration (Orca, OSDI 2022), while they fit cap_tokens
    together; the first is admitted whatever its length."""

    cap_tokens: int = 8192

    def rule(self, n_layers: int) -> BatchRule:
        return BatchRule(self.cap_tokens, False, may_split=False)


@dataclass(frozen=True)
class Chunked(AtLeastOne):
    """Prompts are cut along tokens, a chunk per iteration beside the decodes (Sarathi-Serve, OSDI 2024).

    chunk_tokens: tokens of an iteration, decodes among them; what they leave is filled with prompts, short ones together.
    """

    chunk_tokens: int = 512

    def rule(self, n_layers: int) -> BatchRule:
        return BatchRule(self.chunk_tokens, True, may_split=True)


@dataclass(frozen=True)
class Layered(AtLeastOne):
    """Prompts are cut along layers, one group per iteration beside the decodes (Layered Prefill section 4).

    One batch of up to pass_tokens prompt tokens is in flight; decodes are not counted. A longer prompt takes several passes.

    n_max: most groups of layers; n_lg_rule: how many of them a batch takes (policies/serving/groups.py). The defaults are what
    the authors ran as "layered": long prompts are cut along tokens too.
    """

    pass_tokens: int = 8192
    n_max: int = 16
    n_lg_rule: Annotated[str, one_of(RULES)] = "code"

    def rule(self, n_layers: int) -> BatchRule:
        """As Scheduler. Raises ValueError for a fixed number of groups above n_layers."""
        return BatchRule(self.pass_tokens, False, may_split=True, steps=steps(self.n_lg_rule, self.n_max, n_layers))


@dataclass(frozen=True)
class Disaggregated(AtLeastOne):
    """One engine processes prompts, another decodes, the KV cache moves (DistServe, OSDI 2024).

    chunk_tokens: of the prefill engine, which Layered Prefill does not give; kv_bytes_per_s: of the link between them. Both
    assumed.
    """

    chunk_tokens: int = 2048
    kv_bytes_per_s: float = 300e9

    def prefill_rule(self, n_layers: int) -> BatchRule:
        return Chunked(self.chunk_tokens).rule(n_layers)

    def decode_rule(self, n_layers: int) -> BatchRule:
        """The rule of the engine that decodes; a prompt that lost its KV cache there is processed there, in chunks."""
        return replace(self.prefill_rule(n_layers), starts_decoding=True)

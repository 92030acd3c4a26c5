"""Layered prefill: prompts are cut along layers, one group per iteration beside the decodes (Layered Prefill section 4)."""

from __future__ import annotations

from dataclasses import dataclass

from tokentape.policies.serving.groups import RULES, steps
from tokentape.policies.serving.rule import BatchRule, at_least_one


@dataclass(frozen=True)
class Layered:
    """One batch of up to pass_tokens prompt tokens in flight; decodes are not counted. A longer prompt takes several passes.

    n_max: most groups of layers; n_lg_rule: how many of them a batch takes (policies/serving/groups.py). The defaults are what
    the authors ran as "layered": long prompts are cut along tokens too.
    """

    pass_tokens: int = 8192
    n_max: int = 16
    n_lg_rule: str = "code"

    def __post_init__(self) -> None:
        at_least_one(self, "pass_tokens", "n_max")
        if self.n_lg_rule not in RULES:
            raise ValueError(f"Layered: n_lg_rule {self.n_lg_rule!r} is unknown; choose {', '.join(RULES)}")

    def rule(self, n_layers: int) -> BatchRule:
        """As Scheduler. Raises ValueError for a fixed number of groups above n_layers."""
        return BatchRule(self.pass_tokens, False, may_split=True, steps=steps(self.n_lg_rule, self.n_max, n_layers))

"""StreamingLLM: the first tokens and the most recent ones (Xiao et al. 2024), at their original positions."""

from __future__ import annotations

from dataclasses import dataclass

from tokentape.policies.kv.full import weigh_nothing
from tokentape.policies.kv.rule import KVPolicy


@dataclass(frozen=True)
class Streaming(KVPolicy):
    """Keeps `sink` first tokens and the latest of the rest; sink 0 is a plain window of recent tokens.

    The paper numbers positions within the cache; here keys keep the position they were rotated at.
    """

    sink: int = 4
    weigh = staticmethod(weigh_nothing)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recent != "auto":
            raise ValueError(f"recent {self.recent}: streaming keeps what the sink leaves of the budget; leave recent out")

    @property
    def limits(self) -> tuple[int, int, int]:
        budget, sink, _ = super().limits
        return budget, sink, 0 if self.budget is None else budget - sink

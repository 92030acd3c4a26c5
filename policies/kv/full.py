"""The full cache: nothing leaves."""

from __future__ import annotations

from dataclasses import dataclass

from tokentape.policies.kernels import kernel
from tokentape.policies.kv.rule import WEIGH_SIGNATURE, KVPolicy


@kernel(WEIGH_SIGNATURE)
def weigh_nothing(mass, positions, now, total, rank, memory, salt, params):  # type: ignore[no-untyped-def]
    pass


@dataclass(frozen=True)
class Full(KVPolicy):
    """Keeps every token; the baseline of all others."""

    budget: int | None = None
    sink: int = 0
    weigh = staticmethod(weigh_nothing)

    def __post_init__(self) -> None:
        if self.budget is not None:
            raise ValueError(f"budget {self.budget}: full keeps every token; leave budget out, or use another policy")
        super().__post_init__()

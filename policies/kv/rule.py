"""What a KV eviction policy is: a frozen dataclass with a budget of tokens, what it never evicts, and how it ranks the rest.

A policy never moves keys or values and never sees a tape or a model; slots.py runs it over both. Its compiled `weigh` updates the
score of every retained token by the attention of one query; the lowest `rank` outside sink and recent window leaves, of equals
the oldest (of a prompt the latest). Sink and recent tokens count inside the budget.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.bounds import Bounded, Count
from tokentape.policies.kernels import F32_2D, F64, I32, int64, void

Floats = NDArray[np.float64]

# weigh(mass, positions, now, total, rank, memory, salt, params): one head's slots after the query at position `now`
#   mass       (S,) f64  attention each slot received        positions  (S,) i32  token in the slot, -1: none
#   now        i64       position of the query and newest token
#   total      (S,) f64  in and out: what is accumulated; 0 for the newest token
#   rank       (S,) f64  out: the lowest leaves              memory     (S, m) f32  in and out: `memory` numbers per slot
#   salt       i64       differs between layers and heads    params     (p,) f64  the policy's parameters
WEIGH_SIGNATURE = void(F64, I32, int64, F64, F64, F32_2D, int64, F64)
UNLIMITED = 2**31 - 1


@dataclass(frozen=True)
class KVPolicy(Bounded):
    """budget: tokens that a head keeps after every step; None: all. sink: first tokens that stay; recent: last ones that stay.

    recent "auto" is half of the budget, or what the sink leaves of it. Raises ValueError where no token could be evicted.
    """

    budget: int | None = 128
    sink: Count = 10
    recent: int | str = "auto"

    is_bound: ClassVar[bool] = False
    is_per_head = True  # else all heads of a layer keep the same tokens, by the sum of their scores; without a type no field
    reads_pages: ClassVar[bool] = False  # evicts nothing: reads part of all (quest.py), over a tape only
    needs_raw: ClassVar[bool] = False  # scores are logits, before the softmax
    prompt_queries: ClassVar[int | None] = None  # the last prompt queries whose attention its first scores need; None: all
    memory: ClassVar[int] = 1
    weigh: ClassVar[Any]  # compiled function of WEIGH_SIGNATURE

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.recent, int) and self.recent < 0:
            raise ValueError(f"recent {self.recent} must be 0 or more")
        if isinstance(self.recent, str) and self.recent != "auto":
            raise ValueError(f"recent {self.recent!r} must be a number of tokens, or auto")
        if self.budget is None:
            return
        if self.budget < 1:
            raise ValueError(f"budget {self.budget} must be 1 token or more; none keeps all")
        if self.sink and self.sink >= self.budget - 1:
            raise ValueError(
                f"sink {self.sink} leaves no room in a budget of {self.budget} tokens; give less than {max(1, self.budget - 1)}"
            )
        if isinstance(self.recent, int) and self.sink + self.recent >= self.budget:
            raise ValueError(
                f"sink {self.sink} + recent {self.recent} fill the budget of {self.budget} tokens: nothing could be evicted"
            )

    @property
    def limits(self) -> tuple[int, int, int]:
        """(budget, sink, recent) in tokens."""
        if self.budget is None:
            return UNLIMITED, self.sink, 0
        recent = min(self.budget // 2, self.budget - self.sink - 1) if isinstance(self.recent, str) else self.recent
        return self.budget, self.sink, recent

    def params(self) -> Floats:
        return np.zeros(1)

    def prompt_scores(self, mass: Floats, salts: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """(total, rank), (G, c) each, after a prompt of c tokens. mass (G, c): attention summed over the prompt's queries, or
        over its last `prompt_queries`; salts (G,)."""
        return mass, mass

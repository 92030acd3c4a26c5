"""The oracle: keeps what the rest of the tape attends to most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies.kv.rule import KVPolicy
from tokentape.policies.kv.tova import weigh_by_last


@dataclass(frozen=True)
class Oracle(KVPolicy):
    """Ranks by the attention that the recorded queries still to come pay: the replay hands that to `weigh` as mass.

    It sees the future, so it is drawn as a bound; it is greedy, so no proof that nothing keeps more. Over a tape only.
    """

    sink: int = 0
    recent: int | str = 0
    is_bound: ClassVar[bool] = True
    weigh = staticmethod(weigh_by_last)

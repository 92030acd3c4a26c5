"""LFRU, least frequently and recently used: the expert with the fewest lookups per event since it was last used leaves.

Source: E1n00r, LFRUPolicy of tinyserve (github.com/e1n00r/tinyserve, tinyserve/cache_policy.py), offered to vLLM in pull request
37190: lookups since it entered over (clock - last use + 1). Its clock counts lookups, as ours in serial lookup, else events; its
ties leave in order of entry, ours by least recent use. Not the two partitions that M. Bilal and S.-G. Kang (IEEE Access, 2017)
call so.
"""

from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies.kernels import kernel
from tokentape.policies.protocol import RANK_SIGNATURE, Ranked


@dataclass(frozen=True)
class LFRU(Ranked):
    """Ages: what was used often long ago falls behind what was used a little just now."""

    ages: ClassVar[bool] = True

    @staticmethod
    @kernel(RANK_SIGNATURE, allocates=False)
    def rank(of):  # type: ignore[no-untyped-def]
        return of.n_cached / (1.0 if of.is_used else of.since + 1.0)

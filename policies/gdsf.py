"""GDSF, greedy dual size frequency: what costs most to fetch per byte stays, and what is not used ages by what leaves.

Source: L. Cherkasova, Improving WWW proxies performance with greedy-dual-size-frequency caching policy, HP Labs 98-69, 1998: the
rank is clock + lookups since it entered x cost / size, the clock the rank of what left last.
"""

from dataclasses import dataclass

from tokentape.policies.kernels import kernel
from tokentape.policies.protocol import RANK_SIGNATURE, Ranked


@dataclass(frozen=True)
class GDSF(Ranked):
    """A fetch costs per_fetch + per_byte x bytes; 1 and 0, as libCacheSim has it, keep most hits, 0 and 1 most bytes."""

    per_fetch: float = 1.0
    per_byte: float = 0.0

    @staticmethod
    @kernel(RANK_SIGNATURE, allocates=False)
    def rank(of):  # type: ignore[no-untyped-def]
        return of.floor + of.n_cached * (of.params[0] + of.params[1] * of.size) / of.size

    def __post_init__(self) -> None:
        if min(self.per_fetch, self.per_byte) < 0 or self.per_fetch + self.per_byte == 0:
            raise ValueError(f"gdsf: per_fetch {self.per_fetch} and per_byte {self.per_byte} must be 0 or more, one of them more")

"""Static pinning by frequency: the experts used most in a profile stay, everything else is streamed through."""

from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies.bounds import SomeShare
from tokentape.policies.kernels import kernel
from tokentape.policies.protocol import RANK_SIGNATURE, Ranked


@dataclass(frozen=True)
class Static(Ranked):
    """Keeps the experts looked up most in the first `profile_frac` of the tape; filled on demand.

    profile_frac: share of the events, from the start, that are counted; until they have passed, the expert unused for longest
    leaves. At 1.0 the profile is the tape itself, known from the start: an oracle, drawn as a bound.
    """

    profile_frac: SomeShare = 0.1  # type: ignore[misc]
    bypass: ClassVar[bool] = True

    @staticmethod
    @kernel(RANK_SIGNATURE, allocates=False)
    def rank(of):  # type: ignore[no-untyped-def]
        return of.profile

    @property
    def is_bound(self) -> bool:  # type: ignore[override]
        return self.profile_frac >= 1.0

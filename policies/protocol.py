"""What a cache policy is: a frozen dataclass that says how victims are found, and one small kernel that ranks experts.

A policy never moves bytes and never sees the cache; policies/cache.py does. It is one of five kinds:
  queue    victims leave in order of entry (`promote=False`) or of last use (`promote=True`); O(1) per lookup
  lists    several lists, of what has left too (lists.py has the kernel): `which` of its policies, `params()` its numbers
  ranked   the resident expert with the lowest rank leaves, ties by least recent use; `rank` is evaluated at every lookup.
           It is a compiled function; a plain Python one is compiled at first use. `params()`: its parameters, f64 (n,),
           C-contiguous; `profile_frac`: share of the tape, from its start, that its profile counts
  uniform  a resident expert drawn uniformly leaves
  future   the expert whose next lookup is farthest away leaves: a bound, only over a recorded tape
ranked and future: `bypass`: a missed expert that would leave at once is streamed and not kept.
The same objects run over a recorded tape and inside a live model.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from tokentape.policies.kernels import array, float64, int64

# rank(now, n_cached, n_total, profile, params) -> float64, evaluated at every lookup of an expert
#   now      event index (serial lookup: lookup index), int64      n_cached  lookups since it entered, this one included, int64
#   n_total  lookups since the start, this one included, int64     profile   lookups in the policy's profile, float64
#   params   the policy's parameters, float64 array
RANK_SIGNATURE = float64(int64, int64, int64, float64, array(float64, 1))


@runtime_checkable
class CachePolicy(Protocol):
    """Which resident expert leaves when room is needed."""

    kind: ClassVar[str]  # queue | lists | ranked | uniform | future

    @property
    def is_bound(self) -> bool:
        """True if the policy sees the future: drawn as a bound, never as a method."""
        ...

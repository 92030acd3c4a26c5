"""Placements that decide event by event which of a layer's experts compute where they lie, beside any cache."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

from tokentape.policies.bounds import Count, FromZero, Must
from tokentape.policies.kernels import F64, U8, array, int64, kernel, uint8, void
from tokentape.policies.placement.host import AsItDecodes, Host

_I64_IN, _U8_IN = (array(t, 1, readonly=True) for t in (int64, uint8))  # the loop's own
# where(layer, keys, counts, resident, near, params): an event's experts; what computes near is neither looked up nor admitted
#   layer     i64       MoE layer                    keys    (u,) i64  experts, in order of last mention
#   counts    (u,) i64  tokens of the event on each  resident (E,) u8  of the layer, in the fast tier
#   near      (u,) u8   out, zeros before            params  (p,) f64  the policy's parameters
WHERE_SIGNATURE = void(int64, _I64_IN, _I64_IN, _U8_IN, U8, F64)


@dataclass(frozen=True)
class EventPlacement(AsItDecodes):
    """One function; plain Python is compiled. needs_cache: it goes by what is missing."""

    kind: ClassVar[str] = "event"
    needs_cache: ClassVar[bool] = False
    where: ClassVar[Any]  # of WHERE_SIGNATURE


@dataclass(frozen=True)
class NearIfRare(EventPlacement):
    """A missing expert with few tokens computes where it lies; with more it is fetched.

    most: tokens up to which it does.
    """

    most: Annotated[int, Must("must be 0 tokens or more", lambda most: most >= 0)] = 4
    needs_cache: ClassVar[bool] = True

    @staticmethod
    @kernel(WHERE_SIGNATURE, allocates=False)
    def where(layer, keys, counts, resident, near, params):  # type: ignore[no-untyped-def]
        for i in range(keys.shape[0]):
            near[i] = not resident[keys[i]] and counts[i] <= params[0]


@dataclass(frozen=True)
class NearIfFaster(EventPlacement):
    """A missing expert computes where it lies if that takes less than to fetch it and read it once, as in Fiddler (K. Kamahori
    et al., Fiddler: CPU-GPU orchestration for fast inference of mixture-of-experts models, ICLR 2025).

    fetch_reads, token_reads, main_reads: as of Host; those not given are the machine's.
    """

    fetch_reads: FromZero | None = None
    token_reads: FromZero | None = None
    main_reads: FromZero | None = None
    needs_cache: ClassVar[bool] = True

    @staticmethod
    @kernel(WHERE_SIGNATURE, allocates=False)
    def where(layer, keys, counts, resident, near, params):  # type: ignore[no-untyped-def]
        for i in range(keys.shape[0]):
            near[i] = not resident[keys[i]] and max(1.0, params[1] * counts[i]) < params[0] + params[2]


@dataclass(frozen=True)
class NearBesideLink(NearIfFaster):
    """Missing experts are shared out between the link, those with most tokens first, and where they lie, those with fewest
    first, the next to whichever is done with it sooner, as in HybriMoE (S. Zhong et al., HybriMoE: hybrid CPU-GPU scheduling and
    cache management for efficient MoE inference, DAC 2025)."""

    @staticmethod
    @kernel(WHERE_SIGNATURE, allocates=False)
    def where(layer, keys, counts, resident, near, params):  # type: ignore[no-untyped-def]
        n = int64(0)
        for i in range(keys.shape[0]):
            near[i] = not resident[keys[i]]
            n += near[i]
        near_reads = link_reads = 0.0
        for _ in range(n):  # of what is left, one end of the order by tokens
            fewest, most = int64(-1), int64(-1)
            for i in range(keys.shape[0]):
                if near[i] == 1:
                    fewest = i if fewest < 0 or counts[i] < counts[fewest] else fewest
                    most = i if most < 0 or counts[i] >= counts[most] else most
            by_near = near_reads + max(1.0, params[1] * counts[fewest])
            if by_near <= link_reads + params[0]:
                near_reads, near[fewest] = by_near, 2
            else:
                link_reads, near[most] = link_reads + params[0], 0
        for i in range(keys.shape[0]):
            near[i] = near[i] == 2


@dataclass(frozen=True)
class FirstLayersNear(EventPlacement):
    """All experts of the first MoE layers compute where they lie, the others are in the fast tier: llama.cpp's --n-cpu-moe.

    layers: so many; where none is given, those that the fast tier has no room for.
    """

    layers: Count | None = None

    @staticmethod
    @kernel(WHERE_SIGNATURE, allocates=False)
    def where(layer, keys, counts, resident, near, params):  # type: ignore[no-untyped-def]
        near[:] = layer < params[0]

    def on(self, host: Host) -> Self:
        return self if self.layers is not None else replace(self, layers=host.n_away)

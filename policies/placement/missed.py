"""Placements that decide event by event which of a layer's experts compute where they lie, beside any cache."""

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from tokentape.policies.kernels import F64, U8, array, int64, kernel, uint8, void
from tokentape.policies.placement.host import AsItDecodes, Host
from tokentape.policies.placement.importance import Floats

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

    most: int = 4
    needs_cache: ClassVar[bool] = True

    @staticmethod
    @kernel(WHERE_SIGNATURE, allocates=False)
    def where(layer, keys, counts, resident, near, params):  # type: ignore[no-untyped-def]
        for i in range(keys.shape[0]):
            near[i] = not resident[keys[i]] and counts[i] <= params[0]

    def __post_init__(self) -> None:
        if self.most < 0:
            raise ValueError(f"near_if_rare: most {self.most} must be 0 tokens or more")

    def params(self) -> Floats:
        return np.array([float(self.most)])


@dataclass(frozen=True)
class NearIfFaster(EventPlacement):
    """A missing expert computes where it lies if that takes less than to fetch it and read it once, as in Fiddler (K. Kamahori
    et al., Fiddler: CPU-GPU orchestration for fast inference of mixture-of-experts models, ICLR 2025).

    fetch_reads, token_reads, main_reads: as of Host; those not given are the machine's.
    """

    fetch_reads: float | None = None
    token_reads: float | None = None
    main_reads: float | None = None
    needs_cache: ClassVar[bool] = True

    @staticmethod
    @kernel(WHERE_SIGNATURE, allocates=False)
    def where(layer, keys, counts, resident, near, params):  # type: ignore[no-untyped-def]
        for i in range(keys.shape[0]):
            near[i] = not resident[keys[i]] and max(1.0, params[1] * counts[i]) < params[0] + params[2]

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not value >= 0.0:
                raise ValueError(f"{name} {value} must be 0 reads of an expert or more")

    def on(self, host: Host) -> Self:
        return replace(self, **{name: getattr(host, name) for name, value in asdict(self).items() if value is None})

    def params(self) -> Floats:
        told = asdict(self)
        if missing := [name for name, value in told.items() if value is None]:
            raise ValueError(f"{type(self).__name__} goes by a machine's times; run it on one, or give {', '.join(missing)}")
        return np.array(list(told.values()))


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

    layers: int | None = None

    @staticmethod
    @kernel(WHERE_SIGNATURE, allocates=False)
    def where(layer, keys, counts, resident, near, params):  # type: ignore[no-untyped-def]
        near[:] = layer < params[0]

    def __post_init__(self) -> None:
        if self.layers is not None and self.layers < 0:
            raise ValueError(f"layers {self.layers} must be 0 or more")

    def on(self, host: Host) -> Self:
        return self if self.layers is not None else replace(self, layers=host.n_away)

    def params(self) -> Floats:
        if self.layers is None:
            raise ValueError("FirstLayersNear goes by the room of a machine; run it on one, or give layers")
        return np.array([float(self.layers)])

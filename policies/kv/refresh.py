"""Refresh of embedded DRAM by groups (2DRP): how often each group is refreshed, how often a bit is lost (Kelle sections 4, 5).

Four groups: tokens with a score of at least the median of their layer and head (HST) or less (LST), times bits 15..8 (MSB) or
7..0 (LSB) of a stored word. The retention curve is data with an assumption: the paper draws it without numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from statistics import NormalDist
from typing import Annotated, ClassVar, Protocol, Self, runtime_checkable

from tokentape.policies.bounds import AboveZero, Bounded, Must
from tokentape.policies.resolve import convert

FIRST_US = 45.0  # retention time that the paper's eDRAM is rated for
FAILURE_AT_45_US = 3e-6
MEAN_FAILURE = 2.0e-3  # over the four default intervals (paper)
WORST = 0.5  # a bit that is lost is as likely right as wrong
Lost = Annotated[float, Must(f"must lie in 0..{WORST}", lambda lost: 0.0 <= lost <= WORST)]


@runtime_checkable
class Refresh(Protocol):
    """How often embedded memory is refreshed."""

    @property
    def harmonic_mean_us(self) -> float:
        """The one interval at which all that is held takes as many refreshes."""
        ...


class _ByGroup(Bounded):
    """A number for each of HST-MSB, HST-LSB, LST-MSB and LST-LSB."""

    word: ClassVar[str]

    @classmethod
    def parse(cls, text: str) -> Self:
        """One for all bits, or four by group. Raises ValueError for anything else."""
        parts = [convert(cls.word, part, float) for part in text.split(",")]
        if len(parts) not in (1, 4):
            raise ValueError(f"{cls.word}={text}: give one for all bits, or four: HST-MSB,HST-LSB,LST-MSB,LST-LSB")
        return cls(*(parts * 4 if len(parts) == 1 else parts))

    @classmethod
    def uniform(cls, value: float) -> Self:
        return cls(*[value] * 4)


@dataclass(frozen=True)
class Intervals(_ByGroup):
    """Refresh intervals of the four groups in us, as the paper sets them. Raises ValueError for one that is not above 0."""

    word: ClassVar[str] = "intervals"
    hst_msb_us: AboveZero = 360.0
    hst_lsb_us: AboveZero = 5400.0
    lst_msb_us: AboveZero = 1440.0
    lst_lsb_us: AboveZero = 7200.0

    @classmethod
    def parse(cls, text: str) -> Self:
        """2drp, one interval in us, or four by group. Raises ValueError for anything else."""
        return cls() if text == "2drp" else super().parse(text)

    @property
    def all_us(self) -> tuple[float, float, float, float]:
        return astuple(self)

    @property
    def harmonic_mean_us(self) -> float:
        """The paper's "average": the one interval at which four equal groups take as many refreshes."""
        return 4.0 / sum(1.0 / t for t in self.all_us)


@dataclass(frozen=True)
class OneInterval(Bounded):
    """All bits at one interval. Raises ValueError for one that is not above 0."""

    interval_us: AboveZero = FIRST_US

    @property
    def harmonic_mean_us(self) -> float:
        return self.interval_us


REFRESH: dict[str, type[Refresh]] = {"2drp": Intervals, "uniform": OneInterval}


@dataclass(frozen=True)
class RetentionCurve(Bounded):
    """Share of bits lost between two refreshes: lognormal, F(t) = Phi(Phi^-1(failure_at_45us) + ln(t / 45 us) / sigma).

    Assumed: anchored at 45 us, and by `sigma` at the paper's mean rate over its four intervals (`anchored`). Raises ValueError
    for a sigma that is not above 0 and a rate outside (0, 0.5).
    """

    sigma: AboveZero
    failure_at_45us: Annotated[float, Must(f"must lie between 0 and {WORST}", lambda lost: 0.0 < lost < WORST)] = FAILURE_AT_45_US

    def failure_frac(self, interval_us: float) -> float:
        """At most one half. Raises ValueError for an interval that is not above 0."""
        if not interval_us > 0.0:
            raise ValueError(f"a refresh interval of {interval_us} us: give one above 0")
        z = NormalDist().inv_cdf(self.failure_at_45us) + math.log(interval_us / FIRST_US) / self.sigma
        return min(WORST, NormalDist().cdf(z))

    def mean_failure(self, intervals_us: Sequence[float]) -> float:
        """Over equal groups."""
        return sum(map(self.failure_frac, intervals_us)) / len(intervals_us)

    @classmethod
    def anchored(
        cls,
        failure_at_45us: float = FAILURE_AT_45_US,
        mean_failure: float = MEAN_FAILURE,
        intervals_us: Sequence[float] = Intervals().all_us,
    ) -> Self:
        """The curve through both anchors. Raises ValueError where none goes through them."""

        def lost(sigma: float) -> float:
            return cls(sigma, failure_at_45us).mean_failure(intervals_us)

        low, high = 0.1, 50.0  # the mean failure falls as sigma grows
        if not lost(high) < mean_failure < lost(low):
            raise ValueError(f"no curve has a failure rate of {failure_at_45us} at 45 us and {mean_failure} over the intervals")
        for _ in range(80):
            middle = (low + high) / 2.0
            low, high = (middle, high) if lost(middle) > mean_failure else (low, middle)
        return cls(high, failure_at_45us)

    def interval_at(self, failure: float) -> float:
        """The interval in us at which `failure` of the bits are lost. Raises ValueError for a share outside (0, 0.5)."""
        if not 0.0 < failure < WORST:
            raise ValueError(f"a share of lost bits of {failure}: give one between 0 and {WORST}")
        normal = NormalDist()
        return FIRST_US * math.exp(self.sigma * (normal.inv_cdf(failure) - normal.inv_cdf(self.failure_at_45us)))


CURVE = RetentionCurve.anchored()  # the default


@dataclass(frozen=True)
class BitRates(_ByGroup):
    """Share of bits lost in each group."""

    word: ClassVar[str] = "rate"
    hst_msb: Lost = 0.0
    hst_lsb: Lost = 0.0
    lst_msb: Lost = 0.0
    lst_lsb: Lost = 0.0

    @classmethod
    def of(cls, intervals: Intervals, curve: RetentionCurve = CURVE) -> Self:
        return cls(*(curve.failure_frac(t) for t in intervals.all_us))

"""Which values a parameter may have, said with its type (`share_frac: Share = 0.7`) and held where the policy is made."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_args


@dataclass(frozen=True)
class Must:
    """told: what is said of a value that does not hold. None, of a parameter that is left out, is let through."""

    told: str
    holds: Callable[[Any], bool]


class Bounded:
    """A dataclass whose types may say what values must be. Raises ValueError for the first that does not hold."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            for kind in (field.type, *get_args(field.type)):  # of a union, what it is of
                for must in getattr(kind, "__metadata__", ()):
                    if isinstance(must, Must) and value is not None and not must.holds(value):
                        given = repr(value) if isinstance(value, str) else value
                        raise ValueError(f"{type(self).__name__}: {field.name} {given} {must.told}")


def one_of(names: Collection[str]) -> Must:
    return Must(f"is unknown; choose {', '.join(names)}", names.__contains__)


Share = Annotated[float, Must("must lie in 0..1", lambda value: 0.0 <= value <= 1.0)]
SomeShare = Annotated[float, Must("must lie in (0, 1]", lambda value: 0.0 < value <= 1.0)]
Weight = Annotated[float, Must("must be 0 or more and below 1", lambda value: 0.0 <= value < 1.0)]  # of the past
FromZero = Annotated[float, Must("must be 0 or more", lambda value: value >= 0.0)]
AboveZero = Annotated[float, Must("must be above 0", lambda value: value > 0.0)]
Count = Annotated[int, Must("must be 0 or more", lambda value: value >= 0)]
Positive = Annotated[int, Must("must be at least 1", lambda value: value >= 1)]

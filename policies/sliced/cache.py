"""The sliced cache: MSB and LSB slices of all layers' experts under one byte budget (SliceMoE section 4.2).

Two lists in order of use, one of MSB slices and one of LSB slices; node K is a list's end. While room is needed the least
recently used LSB slice leaves, and where none may leave, the least recently used MSB slice: its LSB slice has left before it.
Slices that the layer in flight uses (`pin` carries the current event) are exempt. An LSB slice is never kept without its MSB.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from tokentape.policies.bounds import Bounded, one_of
from tokentape.policies.kernels import I64, U32, int64, kernel, uint64, void
from tokentape.policies.matryoshka import MAT
from tokentape.policies.queue import push_back, unlink

LSB_POLICIES = ("on_pressure", "after_use")


def _widths(pair: str) -> dict[str, int]:
    """The widths that a person types as MAT84."""
    mat = MAT.parse(pair)
    return {"bits_high": mat.high, "bits_low": mat.low}


@dataclass(frozen=True)
class SlicedCache(Bounded):
    """bits_high, bits_low: widths of the whole expert and of its MSB slice (8 and 4: MAT84); equal widths leave no LSB slice.

    lsb_policy: on_pressure, an LSB slice stays until its bytes are needed (assumed to be meant); after_use, it is dropped when
    its token is done (the paper's words taken literally). skip_lsb_when_over_budget: while misses are over the budget's target,
    a missing LSB slice is not read but degrades; a hard budget in debt does so in any case.
    """

    bits_high: int = 8
    bits_low: int = 4
    lsb_policy: Annotated[str, one_of(LSB_POLICIES)] = "on_pressure"
    skip_lsb_when_over_budget: bool = False
    shorthands: ClassVar = {"pair": _widths}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.bits_low <= self.bits_high:
            raise ValueError(
                f"slices need 0 < bits_low <= bits_high, got bits_low {self.bits_low} and bits_high {self.bits_high}"
            )

    @property
    def name(self) -> str:
        return f"MAT{self.bits_high}{self.bits_low}"


@kernel(void(uint64, uint64, U32), allocates=False)
def refresh(node, end, link):  # type: ignore[no-untyped-def]
    unlink(node, link)
    push_back(node, end, link)


@kernel(int64(uint64, int64, U32, I64), allocates=False)
def first_free(end, now, link, pin):  # type: ignore[no-untyped-def]
    """The least recently used member that is not pinned, -1 if there is none."""
    node = uint64(link[2 * end + 1])
    while node != end and pin[node] == now:
        node = uint64(link[2 * node + 1])
    return int64(node) if node != end else int64(-1)


@kernel(inline="always")
def drop(key, link, is_in):  # type: ignore[no-untyped-def]
    unlink(key, link)
    is_in[key] = 0

"""What a router is to the loop and to the sliced cache, and the two orderings that all of them share.

A router chooses the experts of an event's tokens from what the model's own router ranks by and from what is resident. Its
function has one fixed signature, so that the loop's machine code is kept on disk and serves every router, also a user's own.
"""

from dataclasses import astuple, dataclass, is_dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokentape.policies import kernels as kn
from tokentape.policies.bounds import Bounded
from tokentape.policies.kernels import array, dispatcher_of, function, int32, int64, kernel, uint8, uint64, void

_U8_IN = array(uint8, 1, readonly=True)
INFINITE, RULED_OUT = 0x7F800000, -0x7F800001  # inf and -inf as whole numbers of the same order; NaNs lie outside
LOW_HALF, NOTHING = 0xFFFFFFFF, -(2**63)
DECODE, PROMPT = 0, 1  # phases

# choose(layer, values, gates, natural, resident, phase, params, work, ids): the experts of m tokens of an event
#   layer    i64        MoE layer                        values   (m, E) f32  what the family ranks by; -inf: it rules it out
#   gates    (m, E) f32 weights before the top k         natural  (m, k) i64  the model's own choice, by falling value
#   resident (E,) u8    of the layer, in the fast tier   phase    (m,) u8     DECODE or PROMPT
#   params   (p,) f64   the policy's parameters and, behind them, what it remembers: it may write there
#   work     (2, E) i64 free to use                      ids      (m, k) i64  out: distinct experts in any order; -1 where too few
#                                                                             can be chosen.
CHOOSE_SIGNATURE = void(int64, kn.F32_2D, kn.F32_2D, kn.I64_2D, _U8_IN, kn.U8, kn.F64, kn.I64_2D, kn.I64_2D)
CHOOSE = function(CHOOSE_SIGNATURE)


class Router(Bounded):
    """Chooses experts by its `choose`, of CHOOSE_SIGNATURE; plain Python is compiled.

    needs_scores: it looks beyond the top k, so a tape that recorded no more cannot drive it. strength: the pull towards what is
    resident, params[0] of a router that has one. n_natural: how many of the model's own choice it reads, None: all; event.py
    makes no others for it.
    """

    needs_scores: ClassVar[bool] = True
    choose: ClassVar[Any]
    strength: float = 0.0
    n_natural: ClassVar[int | None] = None

    def params(self, n_layers: int, n_experts: int) -> NDArray[np.float64]:
        """Its fields, handed to `choose`, f64 (p,). Raises ValueError if they do not fit the model."""
        return np.array(astuple(self) if is_dataclass(self) else (), np.float64)


def compiled(router: Any) -> Any:
    """The kernel as an address to hand over; a plain Python function (a user's) is compiled here, with a look at what it chooses.

    Handed over as it is, a compiled function has its address looked up at every call: 130 us, where the rest of a call with one
    event takes 50. Where NUMBA_DISABLE_JIT is set it is the function as it is. Raises ValueError if it does not compile.
    """
    from numba.core.types import CompileResultWAP

    made = dispatcher_of(router.choose, CHOOSE_SIGNATURE)
    if not hasattr(router.choose, "compiled"):  # no kernel of ours; as it is, for nobody hears what an address raises
        return dispatcher_of(_checked(made), CHOOSE_SIGNATURE)
    is_compiled = hasattr(made, "get_compile_result")
    return CompileResultWAP(made.get_compile_result(CHOOSE_SIGNATURE.of_numba)) if is_compiled else made


@lru_cache(maxsize=64)
def _checked(choose: Any) -> Any:
    """A person's own function, which raises IndexError where an expert is not there or stands twice."""

    def checked(layer, values, gates, natural, resident, phase, params, work, ids):  # type: ignore[no-untyped-def]
        choose(layer, values, gates, natural, resident, phase, params, work, ids)
        for i in range(ids.shape[0]):
            for j in range(ids.shape[1]):
                if not -1 <= ids[i, j] < values.shape[1] or (ids[i, j] >= 0 and ids[i, j] in ids[i, :j]):
                    raise IndexError("ids hold an expert twice, or one that is not there")

    return checked


@kernel(inline="always")
def to_ordered(value):  # type: ignore[no-untyped-def]
    """A float32 as the int32 of the same order; -0 as 0. Maxima of whole numbers take several lanes at a time, of floats one."""
    pattern = np.float32(value).view(np.int32)
    pattern = pattern if pattern != int32(-(2**31)) else int32(0)
    return pattern ^ ((pattern >> int32(31)) & int32(2**31 - 1))


@kernel(inline="always")
def from_ordered(number):  # type: ignore[no-untyped-def]
    """The float32 of an int32 made by `to_ordered`."""
    return np.int32(number ^ ((number >> int32(31)) & int32(2**31 - 1))).view(np.float32)


@kernel(inline="always")
def key_of(value, e):  # type: ignore[no-untyped-def]
    """An expert's value and, below it, how low its index is, as one whole number: the larger comes first."""
    return (int64(to_ordered(value)) << 32) | (LOW_HALF - int64(e))


@kernel(void(int64, kn.I64, kn.I64), allocates=False)
def take(k, keys, order):  # type: ignore[no-untyped-def]
    """order[:k]: the experts of the k largest keys, falling; -1 past the last above -inf, or on NaN. The keys are used up.

    Of 64 this costs half of inserting them one by one into the best 6, and nothing is sorted.
    """
    n = uint64(keys.shape[0])
    for j in range(uint64(k)):
        largest = keys[uint64(0)]
        for e in range(n):
            largest = max(largest, keys[e])
        if RULED_OUT < largest >> 32 <= INFINITE:
            order[j] = LOW_HALF - (largest & LOW_HALF)
            keys[uint64(order[j])] = NOTHING
        else:
            order[j] = -1


@kernel(void(kn.F32, int64, kn.I64, kn.I64), allocates=False)
def top_k(values, k, keys, order):  # type: ignore[no-untyped-def]
    """As `take`, of the values: ties by lowest index. keys (E,): scratch."""
    for e in range(uint64(values.shape[0])):
        keys[e] = key_of(values[e], e)
    take(k, keys, order)


@kernel(void(kn.F32, kn.F32, kn.I64), allocates=False)
def by_gate(values, gates, chosen):  # type: ignore[no-untyped-def]
    """Sorts `chosen` by falling gate, equal gates by falling value, then by rising index: the order of a tape's rows."""
    for i in range(uint64(1), uint64(chosen.shape[0])):
        moving = chosen[i]
        gate, value = gates[uint64(moving)], values[uint64(moving)]
        j = uint64(i)
        while j > uint64(0):
            other = chosen[j - uint64(1)]
            above, beside = gates[uint64(other)], values[uint64(other)]
            if above > gate or (above == gate and (beside > value or (beside == value and other < moving))):
                break
            chosen[j] = other
            j -= uint64(1)
        chosen[j] = moving


@dataclass(frozen=True)
class Stock(Router):
    """Routes as the model does, to its own top k, whatever is resident; the cache keeps what was used last (plain LRU)."""

    needs_scores: ClassVar[bool] = False

    @staticmethod
    @kernel(CHOOSE_SIGNATURE)
    def choose(layer, values, gates, natural, resident, phase, params, work, ids):  # type: ignore[no-untyped-def]
        for i in range(ids.size):
            ids.flat[i] = natural.flat[i]

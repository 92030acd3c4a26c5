"""What is in the cache when decode starts (SliceMoE section 4.5): predictive cache warm-up and what it is compared with.

It sees what prefill left and says what decode finds; it never adds a slice that prefill did not pass through DRAM, but for a
random fill.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tokentape.policies.bounds import Bounded, Share
from tokentape.policies.kernels import I64, U8, U32, int64, kernel, void
from tokentape.policies.order import ascending
from tokentape.policies.sliced import state as at
from tokentape.policies.sliced.event import drop_used_lsb


class Warmup(Bounded):
    """kind: what the kernels know it by."""

    kind: ClassVar[int] = at.EMPTY
    lsb_share_frac: float = 0.0


@dataclass(frozen=True)
class Empty(Warmup):
    """Decode starts with nothing."""


@dataclass(frozen=True)
class LastLayer(Warmup):
    """Decode finds what the layers that came last left: plain LRU."""

    kind: ClassVar[int] = at.LAST


@dataclass(frozen=True)
class RandomFill(Warmup):
    """Decode finds MSB slices of experts drawn at random, as many as fit. Nothing is charged for them."""

    kind: ClassVar[int] = at.RANDOM


@dataclass(frozen=True)
class PCW(Warmup):
    """Predictive cache warm-up: prefill keeps what its tokens used most, as far as they are routed, and decode evicts the rarest
    of it first.

    lsb_share_frac: share of the capacity that LSB slices of the most critical experts keep (3 to 5 %, assumed).
    """

    lsb_share_frac: Share = 0.04
    kind: ClassVar[int] = at.PREDICTIVE


@kernel(I64(U32))
def in_order(link):  # type: ignore[no-untyped-def]
    """Members of a list of the cache, least recently used first."""
    end = link.shape[0] // 2 - 1
    members, n = np.empty(end, np.int64), 0
    node = int64(link[2 * end + 1])
    while node != end:
        members[n] = node
        n += 1
        node = int64(link[2 * node + 1])
    return members[:n].copy()


@kernel(void(I64, U32, U8))
def _hold(keys, link, is_in):  # type: ignore[no-untyped-def]
    """A list holds exactly these keys, least recently used first."""
    is_in[:] = 0
    before = is_in.shape[0]
    for key in keys:
        link[2 * before + 1], link[2 * key] = key, before
        is_in[key] = 1
        before = key
    link[2 * before + 1], link[2 * is_in.shape[0]] = is_in.shape[0], before


@kernel(void(at.SLICED), allocates=False)
def begin_prompt(sliced):  # type: ignore[no-untyped-def]
    """A prompt comes, and none is under way: counts begin."""
    sizes, clock, counted = sliced[0], sliced[2], sliced[8]
    counted[:] = 0.0
    if sizes[at.AFTER_USE]:
        drop_used_lsb(sizes, clock, sliced[11], sliced[13], sliced[15])


@kernel(void(int64, at.SLICED), allocates=False)
def begin_decode(request, sliced):  # type: ignore[no-untyped-def]
    """A generation begins: step 0 of the request comes next."""
    token, credit = sliced[3][request], sliced[4]
    token[at.STEP], token[at.LAST_LAYER], token[at.TOKEN_FLASH] = -1, at.BEFORE_FIRST, 0
    credit[request] = 0.0


@kernel(void(at.SLICED))
def clear(sliced):  # type: ignore[no-untyped-def]
    """Empties the cache; router and soft budget forget what they have learnt."""
    (_, limits, clock, tokens, _, pulls, params, fresh, _, _, msb_link, lsb_link, msb_in, lsb_in, _, _, _, _, _, _, _, _) = sliced
    nothing = np.zeros(0, np.int64)
    for i in range(fresh.shape[0]):
        params[i] = fresh[i]
    pulls[at.STRENGTH], pulls[at.MEAN_MISS] = limits[at.PULL], 0.0
    _hold(nothing, msb_link, msb_in)
    _hold(nothing, lsb_link, lsb_in)
    clock[at.USED] = 0
    for request in range(tokens.shape[0]):
        begin_decode(request, sliced)


@kernel(void(at.SLICED))
def warm_up(sliced):  # type: ignore[no-untyped-def]
    """Prompts are done: puts the cache into the warm-up's state."""
    (sizes, limits, clock, _, _, _, _, _, counted, draws, msb_link, lsb_link, msb_in, lsb_in, _, _, _, _, _, _, _, _) = sliced
    msb, lsb = in_order(msb_link), in_order(lsb_link)
    if sizes[at.WARMUP] == at.EMPTY:
        msb, lsb = msb[:0], lsb[:0]
    elif sizes[at.WARMUP] == at.RANDOM:
        drawn = draws[clock[at.GENERATION] % draws.shape[0]]
        msb, lsb = drawn[: sizes[at.CAPACITY] // sizes[at.MSB]], lsb[:0]
    elif sizes[at.WARMUP] == at.PREDICTIVE:
        msb = msb[ascending(counted[0][msb])]  # ties stay in order of use
        lsb = lsb[ascending(counted[2][lsb])]
        lsb = lsb[counted[2][lsb] > 0.0]
        n_kept = int64(limits[at.LSB_SHARE] * sizes[at.CAPACITY]) // sizes[at.LSB] if sizes[at.LSB] else 0
        lsb = lsb[max(0, lsb.shape[0] - n_kept) :]
    clock[at.GENERATION] += 1
    _hold(msb, msb_link, msb_in)
    _hold(lsb, lsb_link, lsb_in)
    clock[at.USED] = msb.shape[0] * sizes[at.MSB] + lsb.shape[0] * sizes[at.LSB]

"""Placements that follow the decode: before a layer-step computes, experts move to the GPU (MoNDE-like; specification 4.3).

The paper gives no policy of its baselines: `Balance` is MoNDE's own, the others are readings of the specification. A kernel has
one fixed signature, so that a compiled timeline takes any of them.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.bounds import AboveZero, FromZero, Weight
from tokentape.policies.kernels import F64, I64, U8, int64, kernel, total
from tokentape.policies.placement.host import AsItDecodes, Host
from tokentape.policies.placement.importance import Floats, shares

# migrate(counts, average, resident, capacity, params) -> experts that crossed the link for this layer-step
#   counts    (E,) i64  tokens of the batch on each expert in this layer-step
#   average   (E,) f64  in and out: the layer's memory; `start_average` before the first step
#   resident  (E,) u8   in and out: on the GPU while the step computes; at most `capacity`
#   capacity  i64       experts per layer         params (p,) f64  the policy's parameters
MIGRATE_SIGNATURE = int64(I64, F64, U8, int64, F64)


@dataclass(frozen=True)
class ReactivePlacement(AsItDecodes):
    """starts_placed: the first step finds the prefill-guided set on the GPU, else nothing."""

    kind: ClassVar[str] = "reactive"
    starts_placed: ClassVar[bool] = False
    migrate: ClassVar[Any]  # compiled function of MIGRATE_SIGNATURE


def start_average(prefill_counts: NDArray[np.integer], batch: int, top_k: int) -> Floats:
    """(..., E) tokens per step that each expert would get if decode were as the prompts: shares of P times B x k."""
    return shares(prefill_counts) * (batch * top_k)


@kernel(inline="always")
def migrated(migrate, counts, average, resident, capacity, params):  # type: ignore[no-untyped-def]
    """What a placement answers, which may be a person's own."""
    n_most = max(capacity, total(resident))
    n_moved = migrate(counts, average, resident, capacity, params)
    if not 0 <= n_moved <= resident.shape[0] or total(resident) > n_most:
        raise ValueError("migrate returned no number of experts, or left more resident than its capacity")
    return n_moved


@kernel(int64(I64, U8))
def _take_busiest(counts, resident):  # type: ignore[no-untyped-def]
    """Makes the expert with most tokens resident, of those that are not; returns its tokens, 0 where none has any."""
    best = -1
    for e in range(counts.shape[0]):
        if counts[e] > 0 and not resident[e] and (best < 0 or counts[e] > counts[best]):
            best = e
    if best < 0:
        return 0
    resident[best] = 1
    return counts[best]


@dataclass(frozen=True)
class EMA(ReactivePlacement):
    """The experts of highest exponential average of tokens per step, the running step included; those that are new migrate.

    beta: weight of the past. The resident expert of lowest average makes room, so that residents are always the top ones.
    """

    beta: Weight = 0.9
    starts_placed: ClassVar[bool] = True

    @staticmethod
    @kernel(MIGRATE_SIGNATURE)
    def migrate(counts, average, resident, capacity, params):  # type: ignore[no-untyped-def]
        for e in range(counts.shape[0]):
            average[e] = params[0] * average[e] + (1.0 - params[0]) * counts[e]
        n_moved, n_free = 0, capacity - total(resident)
        while capacity > 0:  # few enter in a step: one after the other is faster than sorting all
            enters, leaves = -1, -1
            for e in range(counts.shape[0]):
                if resident[e]:
                    if leaves < 0 or average[e] <= average[leaves]:
                        leaves = e
                elif enters < 0 or average[e] > average[enters]:
                    enters = e
            if enters < 0:
                break
            if n_free > 0:
                n_free -= 1
            elif average[enters] > average[leaves] or (average[enters] == average[leaves] and enters < leaves):
                resident[leaves] = 0
            else:
                break
            resident[enters] = 1
            n_moved += 1
        return n_moved


@dataclass(frozen=True)
class Never(ReactivePlacement):
    """No expert on the GPU: all compute where they lie."""

    @staticmethod
    @kernel(MIGRATE_SIGNATURE)
    def migrate(counts, average, resident, capacity, params):  # type: ignore[no-untyped-def]
        return 0


@dataclass(frozen=True)
class Always(ReactivePlacement):
    """The experts with most tokens in the step are fetched anew in every layer-step; one without a token is not."""

    @staticmethod
    @kernel(MIGRATE_SIGNATURE)
    def migrate(counts, average, resident, capacity, params):  # type: ignore[no-untyped-def]
        resident[:] = 0
        n_moved = 0
        while n_moved < capacity and _take_busiest(counts, resident):
            n_moved += 1
        return n_moved


@dataclass(frozen=True)
class Balance(ReactivePlacement):
    """Fetches as many of the busiest experts as make the longer of link and near compute shortest; fewer on a tie. So MoNDE
    shares out hot and cold experts by the ratio of bandwidths (T. Kim et al., MoNDE: mixture of near-data experts, DAC 2024);
    that this is worked out for every layer-step, not as a share beforehand, is assumed.

    fetch_reads, token_reads: as of Host; those not given are the machine's.
    """

    fetch_reads: AboveZero | None = None
    token_reads: FromZero | None = None
    by_machine: ClassVar[bool] = True

    @staticmethod
    @kernel(MIGRATE_SIGNATURE)
    def migrate(counts, average, resident, capacity, params):  # type: ignore[no-untyped-def]
        fetch, per_token = params[0], params[1]
        resident[:] = 0
        left = 0.0
        for e in range(counts.shape[0]):
            left += max(1.0, per_token * counts[e]) if counts[e] > 0 else 0.0
        best, n_best, n_moved = left, 0, 0
        while n_moved < capacity:
            n_tokens = _take_busiest(counts, resident)
            if n_tokens == 0:
                break
            n_moved += 1
            left -= max(1.0, per_token * n_tokens)
            if max(fetch * n_moved, left) < best:
                best, n_best = max(fetch * n_moved, left), n_moved
        resident[:] = 0
        for _ in range(n_best):
            _take_busiest(counts, resident)
        return n_best

    def on(self, host: Host) -> Self:
        return super().on(host) if self.fetch_reads or host.fetch_reads else self  # else no expert is moved there

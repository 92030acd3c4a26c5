"""What a step of Kelle's cost model is asked of, and how it is counted where the paper and physics differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MEAN_POINTS = 33  # lengths that the mean over a decode is taken at


@dataclass(frozen=True)
class Work:
    """A batch of requests. budget_tokens: kept per request where the system evicts; None: all. kv_bits: of an element of KV."""

    n_context_tokens: int
    n_decode_tokens: int
    batch: int = 16
    budget_tokens: int | None = None
    kv_bits: float = 16.0

    def __post_init__(self) -> None:
        for name, least in (("n_context_tokens", 0), ("n_decode_tokens", 0), ("batch", 1), ("budget_tokens", 1), ("kv_bits", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}; it must be at least {least}")

    @property
    def n_tokens(self) -> int:
        """Length of a request at its end."""
        return self.n_context_tokens + self.n_decode_tokens


@dataclass(frozen=True)
class Accounting:
    """How a step is counted where the paper and physics differ.

    true_gqa: KV of the model's own KV heads, else of as many as query heads. eval_point: final, the longest step, or mean, over
    the decode. charges_recompute: recomputation reads layer inputs and occupies the array, else KV reads vanish. must_fit_dram:
    what does not fit has no time. streamed_bypasses_edram: KV that comes from DRAM is not written to eDRAM and read again
    (assumed; without it the paper's energies are missed). activations_at_retention: they refresh at the retention time, else as
    rarely as KV. cuts_windows: a layer with a sliding window attends to no more.
    """

    true_gqa: bool = False
    eval_point: str = "final"
    charges_recompute: bool = False
    must_fit_dram: bool = False
    streamed_bypasses_edram: bool = True
    activations_at_retention: bool = False
    cuts_windows: bool = False

    def __post_init__(self) -> None:
        if self.eval_point not in ("final", "mean"):
            raise ValueError(f"eval_point is {self.eval_point!r}; choose final or mean")

    @property
    def n_lengths(self) -> int:
        """Lengths of a request that a step is evaluated at."""
        return 1 if self.eval_point == "final" else MEAN_POINTS

    def lengths(self, works: Sequence[Work]) -> Floats:
        """(works, n_lengths) of each."""
        ends = np.array([(work.n_context_tokens, work.n_tokens) for work in works], np.float64)
        return ends[:, 1:] if self.eval_point == "final" else np.linspace(ends[:, 0], ends[:, 1], MEAN_POINTS, axis=1)


PAPER = Accounting()
PHYSICAL = Accounting(true_gqa=True, eval_point="mean", charges_recompute=True, must_fit_dram=True)
MODES = {"paper": PAPER, "physical": PHYSICAL}
WHOLE = Accounting(true_gqa=True, charges_recompute=True, cuts_windows=True)  # the last step of the model's own

"""How many different experts a batch of tokens touches, as recorded on a tape, and the closed forms fitted to it."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokentape.hw.coverage import Form, Heaps, Pigeonhole, PowerLaw, Reuse, Uniform
from tokentape.hw.work import Floats, Ints
from tokentape.policies.kernels import I32, I64, array, int64, kernel, void
from tokentape.replay.trace import DECODE, PREFILL, TOKENS, Trace

N_DRAWS = 200  # batches drawn per number of tokens
PHASES = {"decode": DECODE, "prefill": PREFILL}
ONE_REQUEST = "one_request"  # consecutive decoded tokens of one request, as a draft is verified


@dataclass(frozen=True, eq=False)
class Curve:
    """distinct: (m,) mean over layers and draws of the experts that n_tokens (m,) touch in a layer; powers of two from 1."""

    phase: str
    n_tokens: Floats
    distinct: Floats

    def at(self, n_tokens: float) -> float:
        """Experts that `n_tokens` touch, linear in log2 between the recorded points. Raises ValueError beyond them."""
        if not 0 < n_tokens <= self.n_tokens[-1]:
            raise ValueError(
                f"the tape tells the {self.phase} coverage of 1 to {self.n_tokens[-1]:g} tokens, not of {n_tokens:g}; "
                "record more requests or longer prompts, or choose a closed form"
            )
        return float(np.interp(np.log2(n_tokens), np.log2(self.n_tokens), self.distinct))


def recorded(trace: Trace, phase: str, seed: int = 0) -> Curve:
    """The curve of a tape, by drawing batches from it.

    decode: one token each of as many requests as possible, a request again only when all are in. prefill: consecutive tokens of
    one prompt; one_request: of one answer. Raises ValueError where the tape has no tokens of the phase.
    """
    curves = recorded_by_layer(trace, phase, seed)
    mean = np.asarray(np.mean([curve.distinct for curve in curves], axis=0), np.float64)
    return Curve(phase, curves[0].n_tokens, mean)


def recorded_by_layer(trace: Trace, phase: str, seed: int = 0) -> tuple[Curve, ...]:
    """The same for every MoE layer, as far as all of them reach."""
    curves = by_layer(trace, phase, lambda _, chosen: (chosen > 0).sum(axis=1).mean(), seed)
    n_tokens = np.asarray(2.0 ** np.arange(curves.shape[1]), np.float64)
    return tuple(Curve(phase, n_tokens, curve) for curve in curves)


def by_layer(trace: Trace, phase: str, tell: Callable[[int, Ints], Any], seed: int = 0) -> Floats:
    """(MoE layers, m, ...) what `tell` says of a layer's batches of 1, 2, 4, ... tokens, as far as all layers reach. Batches are
    chosen (draws, E), by how many tokens an expert was. Raises ValueError where the tape has no tokens of the phase."""
    of_phase = trace.pass_kind[trace.row_pass] == (DECODE if phase == ONE_REQUEST else PHASES[phase])
    if not of_phase.any():
        raise ValueError(f"tape {trace.trace_id} routes no token in {phase}")
    rng = np.random.default_rng(seed)
    curves = []
    for layer in range(len(trace.geometry.moe_layers)):
        rows = np.flatnonzero(of_phase & (trace.row_layer == layer))
        curves.append([tell(layer, chosen) for chosen in _of_layer(trace, rows, phase, rng)])
    n_points = min(map(len, curves))
    return np.array([curve[:n_points] for curve in curves], np.float64)


def _of_layer(trace: Trace, rows: Ints, phase: str, rng: np.random.Generator) -> Iterator[Ints]:
    """Batches of 1, 2, 4, ... tokens; rows are one layer's, brought into the order of request and position."""
    rows = rows[np.lexsort((trace.row_position[rows], trace.row_request[rows]))]
    ids, widths = trace.ids_of(rows)
    bounds = np.concatenate(([0], np.cumsum(widths)))
    starts = np.flatnonzero(np.diff(trace.row_request[rows], prepend=-1))
    lengths = np.diff(starts, append=rows.size)
    longest = rows.size if phase == "decode" else int(lengths.max())
    draw = _batches if phase == "decode" else _runs
    for power in range(int(np.log2(longest)) + 1):
        chosen, n = np.zeros((N_DRAWS, trace.geometry.n_experts), np.int64), 0
        for drawn in draw(2**power, starts, lengths, rng):
            _count(ids, bounds, drawn, chosen[n : n + len(drawn)])
            n += len(drawn)
        yield chosen


def _batches(n: int, starts: Ints, lengths: Ints, rng: np.random.Generator) -> Iterator[Ints]:
    """(draws, n) rows, N_DRAWS in all: requests in random order, again from the first when all are in; of each a random token."""
    order = rng.permuted(np.tile(np.arange(starts.size), (N_DRAWS, 1)), axis=1)
    for begin, end in _parts(n):
        requests = np.tile(order[begin:end], -(-n // starts.size))[:, :n]
        yield starts[requests] + (rng.random(requests.shape) * lengths[requests]).astype(np.int64)


def _runs(n: int, starts: Ints, lengths: Ints, rng: np.random.Generator) -> Iterator[Ints]:
    """(draws, n) rows, N_DRAWS in all: n consecutive tokens from a random place of a random prompt that has as many."""
    long_enough = np.flatnonzero(lengths >= n)
    requests = rng.choice(long_enough, N_DRAWS)
    first = starts[requests] + (rng.random(N_DRAWS) * (lengths[requests] - n + 1)).astype(np.int64)
    for begin, end in _parts(n):
        yield first[begin:end, None] + np.arange(n)


def _parts(n: int) -> Iterator[tuple[int, int]]:
    """Bounds of the draws of n tokens that are held together."""
    most = max(1, TOKENS // n)
    return ((begin, min(begin + most, N_DRAWS)) for begin in range(0, N_DRAWS, most))


@kernel(void(I32, I64, array(int64, 2), array(int64, 2)))
def _count(ids, bounds, drawn, chosen):  # type: ignore[no-untyped-def]
    """Adds to `chosen` (draws, E) the tokens of every draw that chose an expert; ids: of row r those from bounds[r] on."""
    for draw in range(drawn.shape[0]):
        for row in drawn[draw]:
            for i in range(bounds[row], bounds[row + 1]):
                chosen[draw, ids[i]] += 1


def forms_of(trace: Trace, curve: Curve) -> dict[str, Form]:
    """The closed forms of hw/coverage.py with parameters estimated from the tape; without those whose parameter it does not tell
    (single tokens, or experts that are all touched at once).

    Layer by layer, and averaged: exponents from how often each expert is selected, reuse from consecutive tokens; growth from the
    curve itself.
    """
    n_experts, top_k = trace.geometry.n_experts, trace.geometry.top_k
    of_layer = []
    for layer in range(len(trace.geometry.moe_layers)):
        rows = np.flatnonzero((trace.row_layer == layer) & (trace.pass_kind[trace.row_pass] == PHASES[curve.phase]))
        rows = rows[np.lexsort((trace.row_position[rows], trace.row_request[rows]))]
        rows = rows[np.diff(trace.offsets)[rows] == top_k]
        of_layer.append((trace.ids[trace.offsets[rows][:, None] + np.arange(top_k)], trace.row_request[rows]))

    found: dict[str, Form] = {"uniform": Uniform(), "pigeonhole": Pigeonhole()}
    counts = [(np.bincount(ids.ravel(), minlength=n_experts), len(ids)) for ids, _ in of_layer]
    with suppress(ValueError):
        found["power-law"] = PowerLaw(exponent=float(np.mean([PowerLaw.from_counts(*of).exponent for of in counts])))
    with suppress(ValueError):
        reused = [Reuse.from_routing(ids, n_experts, of).reuse_prob for ids, of in of_layer]
        found["reuse"] = Reuse(reuse_prob=float(np.mean(reused)))
    with suppress(ValueError):
        found["heaps"] = Heaps.from_curve(curve.n_tokens, curve.distinct, n_experts, top_k)
    return found

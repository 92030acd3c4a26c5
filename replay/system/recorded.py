"""A tape's requests as dense rows, which a loop can take in any order and batch: the experts of every (token, MoE layer)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from tokentape.hw.work import Ints
from tokentape.policies.kernels import F32_3D, F64_3D, I16_3D, I64, array, boolean, kernel, void
from tokentape.replay.kv.tape import AttentionTape
from tokentape.replay.scores import Scores
from tokentape.replay.serving.workload import Requests
from tokentape.replay.system.drafts import Rounds, rounds_of
from tokentape.replay.trace import PREFILL, Trace
from tokentape.warehouse.geometry import Geometry

IDS = np.int16
ROWS = 1 << 16  # of a trace that are placed together
MOST_IMPUTED = 0.05


@dataclass(frozen=True, eq=False)
class Recorded:
    """ids (rows, MoE layers, k) i16 by falling weight, -1: not run; gates of that shape, f32, equal where the tape has none.
    first (S + 1,): rows of a recorded request, one per input position; n_prompt (S,). not_run: (token, layer)s without a row.
    rounds: of drafts, whose nodes' rows stand behind those of positions. request_ids (S,): of the tape. tracks: of KV
    policies on its attention (kv.py), once computed. scores: of rows x MoE layers, where a router asks; row_of: which of those a
    row of the trace is. no_prompts: requests without any row of a prompt; where the first position is a decode's, one that was
    not run stands before it."""

    trace_id: str
    origin: str
    geometry: Geometry
    ids: NDArray[np.int16]
    gates: NDArray[np.float32]
    first: Ints
    n_prompt: Ints
    not_run: int
    request_ids: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    attention: AttentionTape | None = None
    tracks: dict[Any, NDArray[np.float64]] = field(default_factory=dict, repr=False)
    scores: Scores | None = None
    row_of: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    rounds: Rounds | None = None
    no_prompts: int = 0
    is_weighted: bool = False
    batch: int = 1

    @property
    def n_inputs(self) -> Ints:
        """(S,) recorded positions."""
        return np.diff(self.first)

    def requests(self, arrival_s: ArrayLike | None = None, order: ArrayLike | None = None) -> Requests:
        """The tape's own requests, whole, in this order; all there at 0 unless told."""
        rows = np.arange(self.n_prompt.size) if order is None else np.asarray(order, np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= self.n_prompt.size):
            raise ValueError(f"tape {self.trace_id} has requests 0 to {self.n_prompt.size - 1}; the order names {rows.max()}")
        arrival = np.zeros(rows.size) if arrival_s is None else np.asarray(arrival_s, np.float64)
        n_output = self.n_inputs[rows] - self.n_prompt[rows] + 1
        return Requests(arrival, self.n_prompt[rows], n_output, origin=f"tape {self.trace_id}", tape_request=rows)

    @property
    def gaps(self) -> str:
        """What of its routing is missing, where that is a prompt or more than MOST_IMPUTED; empty: it is whole."""
        share = self.not_run / (int(self.first[-1]) * self.ids.shape[1])
        prompts = f", no prompt of {self.no_prompts} requests has: they look nothing up" if self.no_prompts else ""
        return f"{share:.1%} of the tape's (token, layer)s have no routing{prompts}" if prompts or share > MOST_IMPUTED else ""

    def refuse_longer(self, requests: Requests) -> None:
        """Raises ValueError naming the first request that needs more tokens than the tape holds of it."""
        if not len(requests.tape_request):
            raise ValueError("the requests are of no tape; make them with Recorded.requests")
        needed = requests.n_prompt_tokens + requests.n_output_tokens - 1
        held = self.n_inputs[requests.tape_request]
        if np.any(needed > held):
            at = int(np.argmax(needed > held))
            raise ValueError(
                f"request {at}: it processes {needed[at]} tokens, request {requests.tape_request[at]} of tape {self.trace_id} "
                f"holds {held[at]}; ask for at most {held[at] - requests.n_prompt_tokens[at] + 1} output tokens"
            )

    def used_by_prompts(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(S, MoE layers, E) selections of every expert in a request's prompt, and their gate weights."""
        return self._used(self.is_prompt)

    def used_by_decodes(self, requests: Requests | None = None) -> NDArray[np.float64]:
        """(S, MoE layers, E) selections in the tokens after the prompt; requests: in as many of them as these take."""
        of, position = self.places()
        n_taken = self.n_inputs.copy()
        if requests is not None:
            n_taken[requests.tape_request] = requests.n_prompt_tokens + requests.n_output_tokens - 1
        return self._used(~self.is_prompt & (position < n_taken[of]))[0]

    @property
    def is_prompt(self) -> NDArray[np.bool_]:
        """(rows,)"""
        of, position = self.places()
        return np.asarray(position < self.n_prompt[of])

    def places(self) -> tuple[Ints, Ints]:
        """(rows,) request and position of every input."""
        of = np.repeat(np.arange(self.n_prompt.size), self.n_inputs)
        return of, np.arange(of.size) - self.first[:-1][of]

    def _used(self, rows: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        used, weights = np.zeros((2, self.n_prompt.size, self.ids.shape[1], self.geometry.n_experts))
        _count(self.places()[0], rows, self.ids, self.gates, used, weights)
        return used, weights


@kernel(void(I64, array(boolean, 1), I16_3D, F32_3D, F64_3D, F64_3D))
def _count(of, is_counted, ids, gates, used, weights):  # type: ignore[no-untyped-def]
    """Adds the choices of the rows that count, and their gates, to those of their requests: used, weights (S, MoE layers, E)."""
    for row in range(of.shape[0]):
        for m in range(ids.shape[1] if is_counted[row] else 0):
            for j in range(ids.shape[2]):
                if ids[row, m, j] >= 0:
                    used[of[row], m, ids[row, m, j]] += 1.0
                    weights[of[row], m, ids[row, m, j]] += gates[row, m, j]


def recorded(
    trace: Trace,
    gate_weights: NDArray[np.float32] | None = None,
    attention: AttentionTape | None = None,
    scores: Scores | None = None,
    drafted: tuple[Mapping[str, Any], Mapping[str, pl.DataFrame]] | None = None,
) -> Recorded:
    """All requests of a tape. gate_weights: of every entry of `trace.ids`; attention: where it records some; scores: of every row
    of the trace; drafted: of a speculative one, see rounds_of. Raises ValueError where a prompt stands behind decodes."""
    requests, of = np.unique(trace.row_request, return_inverse=True)
    position, layer = trace.row_position.astype(np.int64), trace.row_layer
    n_prompt = np.zeros(requests.size, np.int64)
    is_prompt = trace.pass_kind[trace.row_pass] == PREFILL
    np.maximum.at(n_prompt, of[is_prompt], position[is_prompt] + 1)
    if (turns := ~is_prompt & (position < n_prompt[of])).any():
        request = requests[of[np.argmax(turns)]]
        raise ValueError(
            f"tape {trace.trace_id}: request {request} decodes before its prompt ends, as turns of a chat do; a "
            "system runs a prompt a request: record or import a request per turn, or replay it with --policy"
        )
    without, begins = n_prompt == 0, np.full(requests.size, np.iinfo(np.int64).max)
    np.minimum.at(begins, of, position)
    position = position + (without & (begins == 0))[of]
    n_prompt = np.where(without, np.maximum(1, begins), n_prompt)
    n_inputs = n_prompt.copy()
    np.maximum.at(n_inputs, of, position + 1)
    first = np.concatenate(([0], np.cumsum(n_inputs)))
    widths = np.diff(trace.offsets)
    shape = (int(first[-1]), len(trace.geometry.moe_layers), int(widths.max()))
    ids, gates = np.full(shape, -1, IDS), np.zeros(shape, np.float32)
    row_of = (first[of] + position) * shape[1] + layer
    for begin in range(0, widths.size, ROWS):
        part = slice(begin, begin + ROWS)
        entries = slice(*trace.offsets[[begin, min(begin + ROWS, widths.size)]])
        at = np.repeat(row_of[part] * shape[2] - trace.offsets[:-1][part], widths[part]) + np.arange(entries.start, entries.stop)
        ids.reshape(-1)[at] = trace.ids[entries]
        gates.reshape(-1)[at] = 1.0 if gate_weights is None else gate_weights[entries]
    not_run, rounds = int((ids[:, :, 0] < 0).sum()), None
    if drafted is not None:
        ids, rounds = rounds_of(ids, first, trace.geometry.moe_layers, requests, *drafted)
    return Recorded(
        trace.trace_id,
        trace.origin,
        trace.geometry,
        ids,
        gates,
        first,
        n_prompt,
        not_run,
        requests.astype(np.int64),
        attention,
        scores=None if scores is None else scores.at(row_of, shape[0] * shape[1]),
        row_of=row_of,
        rounds=rounds,
        no_prompts=int(np.sum(without)),
        is_weighted=gate_weights is not None,
        batch=int(np.diff(trace.member_offsets).max()),
    )

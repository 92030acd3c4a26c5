"""Routing by sequence and phase: what prompts used and what every decode step uses, in the arrays that placement is judged on.

P counts a prompt's tokens that selected an expert, W sums the gate weights of those selections (specification 3). Decode step t
is the t-th decoded token of its sequence: a batch of sequences is replayed in lockstep by t.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.placement import Seen
from tokentape.replay.system.recorded import Recorded

ENDED = -1
WEIGHT_SOURCES = ("gate", "softmax")


@dataclass(frozen=True, eq=False)
class CXLNDPRouting:
    """S sequences, L MoE layers, E experts per layer, top k, T steps of the longest decode.

    layers: absolute numbers (L,). request_ids: (S,) i64. prefill_counts: (S, L, E) i32, P. prefill_weights: (S, L, E) f64, W;
    P where no weights were recorded. decode_ids: (S, T, L, k) i16, ENDED from step n_decode[s] on. n_decode: (S,) i32.
    """

    trace_id: str
    origin: str
    layers: tuple[int, ...]
    request_ids: NDArray[np.int64]
    prefill_counts: NDArray[np.int32]
    prefill_weights: NDArray[np.float64]
    decode_ids: NDArray[np.int16]
    n_decode: NDArray[np.int32]

    @property
    def n_sequences(self) -> int:
        return int(self.decode_ids.shape[0])

    @property
    def n_steps(self) -> int:
        return int(self.decode_ids.shape[1])

    @property
    def n_layers(self) -> int:
        return int(self.decode_ids.shape[2])

    @property
    def top_k(self) -> int:
        return int(self.decode_ids.shape[3])

    @property
    def n_experts(self) -> int:
        return int(self.prefill_counts.shape[2])

    def decode_counts(self) -> NDArray[np.int64]:
        """(S, L, E) selections of every sequence's decode."""
        counts = np.zeros(self.prefill_counts.shape, np.int64)
        of_layer = np.arange(self.n_layers)[None, :, None] * self.n_experts
        for sequence, ids in enumerate(self.decode_ids):
            keys = (ids[: self.n_decode[sequence]] + of_layer).ravel()
            counts[sequence] = np.bincount(keys, minlength=counts[0].size).reshape(counts[0].shape)
        return counts

    def seen(self, groups: NDArray[np.int64]) -> Seen:
        """What the groups (G, B) of sequences did, for fixed placements. The tape's counts are of all sequences, in or out."""
        decoded = self.decode_counts()
        tape = self.prefill_counts.sum(axis=0, dtype=np.int64) + decoded.sum(axis=0)
        prefill = self.prefill_counts[groups].sum(axis=1, dtype=np.int64)
        return Seen(prefill, self.prefill_weights[groups].sum(axis=1), decoded[groups].sum(axis=1), tape)

    def refuse_other_model(self, n_experts: int, top_k: int, model: str) -> None:
        """Raises ValueError, with both values, where the tape is of another number of experts or another top k."""
        for name, here, there in (("experts per layer", self.n_experts, n_experts), ("experts per token", self.top_k, top_k)):
            if here != there:
                raise ValueError(f"tape {self.trace_id} routes over {here} {name}, {model} has {there}; give another tape")


def routing_of(tape: Recorded, weight_source: str = "gate") -> CXLNDPRouting:
    """The tape's requests as sequences; a token without a row in any layer is left out. weight_source: gate (weights as the model
    applied them) or softmax (of all scores, of the chosen).

    Raises ValueError naming the request on rows without exactly k experts, on a request without prompt rows, and on tokens that
    some layers lack; and for softmax on a tape without scores.
    """
    if weight_source not in WEIGHT_SOURCES:
        raise ValueError(f"weight source {weight_source!r} is unknown; choose {', '.join(WEIGHT_SOURCES)}")
    of = tape.places()[0]
    ids, requests, k = tape.ids[: of.size], tape.request_ids, tape.geometry.top_k
    is_run = ids[:, :, 0] >= 0
    if weight_source == "softmax":
        if tape.scores is None or not tape.scores.is_full:
            raise ValueError(
                f"tape {tape.trace_id} holds no scores; choose weight source gate, or record it with --tables scores"
            )
        shares = tape.scores.gates.reshape(*tape.ids.shape[:2], -1)[: of.size]
        tape = replace(tape, gates=np.take_along_axis(shares, np.maximum(ids, 0), axis=2))
    is_prompt, is_whole = tape.is_prompt, is_run.all(axis=1)
    is_part = is_run.any(axis=1) & ~is_whole

    def refuse(is_bad: NDArray[np.bool_], what: str) -> None:
        if is_bad.any():
            raise ValueError(f"tape {tape.trace_id}: request {requests[int(np.argmax(is_bad))]} has {what}")

    def requests_of(rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.bincount(of[rows], minlength=requests.size) > 0

    narrow = (is_run & ((ids >= 0).sum(axis=2) != k)).any(axis=1)
    refuse(requests_of(narrow), f"rows that do not name {k} experts, as the model routes to; record it again")
    refuse(requests_of(is_part & is_prompt), "prompt rows that some layers lack; placement needs them: record prefill")
    refuse(~requests_of(is_whole & is_prompt), "no prompt rows; placement needs them: record prefill")
    refuse(requests_of(is_part & ~is_prompt), "decode steps that some layers lack; record it again")
    rows = np.flatnonzero(is_whole & ~is_prompt)
    n_decode = np.bincount(of[rows], minlength=requests.size)
    step = np.arange(rows.size) - np.repeat(np.cumsum(n_decode) - n_decode, n_decode)
    of_steps = np.full((requests.size, int(n_decode.max()), *ids.shape[1:]), ENDED, np.int16)
    of_steps[of[rows], step] = ids[rows]
    counts, weights = tape.used_by_prompts()
    layers = tuple(tape.geometry.moe_layers)
    of_prompts = counts.astype(np.int32)
    return CXLNDPRouting(tape.trace_id, tape.origin, layers, requests, of_prompts, weights, of_steps, n_decode.astype(np.int32))


def joined(routings: Sequence[CXLNDPRouting]) -> CXLNDPRouting:
    """The sequences of several tapes of one model as one, in order; request ids are counted anew.

    Raises ValueError where the tapes are of different layers, experts or top k.
    """
    first = routings[0]
    for other in routings[1:]:
        other.refuse_other_model(first.n_experts, first.top_k, first.trace_id)
        if other.layers != first.layers:
            raise ValueError(f"tape {other.trace_id} has MoE layers {other.layers}, {first.trace_id} has {first.layers}")
    longest = max(routing.n_steps for routing in routings)
    short = [((0, 0), (0, longest - routing.n_steps), (0, 0), (0, 0)) for routing in routings]
    ids = [np.pad(routing.decode_ids, pad, constant_values=ENDED) for routing, pad in zip(routings, short, strict=True)]
    return CXLNDPRouting(
        trace_id=" + ".join(routing.trace_id for routing in routings),
        origin=" + ".join(dict.fromkeys(routing.origin for routing in routings)),
        layers=first.layers,
        request_ids=np.arange(sum(routing.n_sequences for routing in routings)),
        prefill_counts=np.concatenate([routing.prefill_counts for routing in routings]),
        prefill_weights=np.concatenate([routing.prefill_weights for routing in routings]),
        decode_ids=np.concatenate(ids),
        n_decode=np.concatenate([routing.n_decode for routing in routings]),
    )


def in_batches(n_sequences: int, batch: int) -> NDArray[np.int64]:
    """(G, batch) sequences decoded together, in the order of the tape; a remainder is left out. Raises ValueError for none."""
    if batch < 1:
        raise ValueError(f"batch {batch} must be 1 sequence or more")
    if n_sequences < batch:
        raise ValueError(f"a batch of {batch} needs as many sequences, the tape has {n_sequences}; lower the batch")
    return np.arange(n_sequences // batch * batch).reshape(-1, batch)

"""The KV engine: recorded attention through an eviction policy. What stays, what share of attention, how many bytes.

Open loop: the rows are the unmodified model's. `renorm` scales a row to its whole sum over what the policy retains before scores
are added up, as the softmax over a smaller cache would; from the second layer on both forms are approximations, since eviction
changes later hidden states. The tape is read in pieces, so that a long context never stands in memory as a square.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kv import KVPolicy
from tokentape.policies.kv.importance import AERP
from tokentape.policies.kv.quest import Quest
from tokentape.policies.kv.recompute import DISTINCT, PAIRS, POPULAR, WORD_BYTES, Widths, after_prompt, pays
from tokentape.policies.kv.rule import UNLIMITED
from tokentape.policies.kv.slots import Slots, salts_of
from tokentape.policies.kv.tova import Oracle
from tokentape.policies.registry import name_of
from tokentape.replay.kv.events import NO_SLOT, NOT_A_NUMBER, OK, OUT_OF_RANGE, ROWS, SUM_IS_OFF, add_future, run_events
from tokentape.replay.kv.quest import head_rows, replay_quest
from tokentape.replay.kv.tape import AttentionTape, Events, events_of, prompt_mass

THETA = 0.5  # of popularity, where a policy has none of its own
BINS = 32  # of query positions in the timeline, at most
_WRONG = {
    NOT_A_NUMBER: "NaN or negative attention",
    SUM_IS_OFF: "a row that does not sum to its query heads",
    OUT_OF_RANGE: "a key position outside the text so far",
    NO_SLOT: "no free slot (a position was recorded twice)",
}


@dataclass(frozen=True, eq=False)
class KVReplay:
    """Rows of tables kv_replays (one), kv_heads and kv_timeline."""

    replay: dict[str, Any]
    heads: list[dict[str, Any]]
    timeline: list[dict[str, Any]]

    @property
    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """The last one says that the others are whole."""
        return {"kv_heads": self.heads, "kv_timeline": self.timeline, "kv_replays": [self.replay]}


def widths_of(tape: AttentionTape, accounting: str = "paper") -> Widths:
    """Bytes of a layer. paper: as if every query head had its own keys and values; physical: the KV heads', or MLA's latent."""
    geometry = tape.geometry
    head_bytes = WORD_BYTES * geometry.kv_elements_per_token_layer // tape.n_heads
    if accounting == "paper" and not tape.notes.get("is_latent"):
        head_bytes *= int(tape.notes["query_heads_per_kv_head"])
    return Widths(WORD_BYTES * geometry.hidden, head_bytes, tape.n_heads)


def replay_kv(tape: AttentionTape, policy: KVPolicy, renorm: bool = True, exact: bool = True) -> KVReplay:
    """Replays the attention of every request, each with a cache of its own.

    exact: refuse a tape whose rows hold their largest masses only; else what a row does not list counts as nothing, and kept mass
    gets an upper end. Raises ValueError for rows that cannot be followed (with the request, position and layer), and for a
    policy that ranks by logits, which a tape does not hold.
    """
    if isinstance(policy, Quest):
        replay, heads = replay_quest(tape, policy, widths_of(tape).head_bytes)
        return KVReplay(replay, heads, [])
    engine = _replayed(tape, policy, renorm, exact)
    return engine.result(exact=exact and not engine.starts_from_all_queries)


def kept_of(tape: AttentionTape, policy: KVPolicy) -> dict[int, NDArray[np.int64]]:
    """By request (inputs, layers, 5): tallies (policies/kv/recompute.py) of what is kept after every input from the prompt's last
    on; -1 where no attention is recorded. Raises ValueError as `replay_kv`."""
    return _replayed(tape, policy, True, True).kept


def _replayed(tape: AttentionTape, policy: KVPolicy, renorm: bool, exact: bool) -> _Engine:
    if policy.needs_raw:
        raise ValueError("score_kind raw ranks by logits, and a tape holds probabilities; use softmax, or run it inside a model")
    if exact and str(tape.notes["keep"]).startswith("top"):
        raise ValueError(
            f"tape {tape.trace_id} keeps {tape.notes['keep']} of every attention row: its kept sets are approximate; "
            "record full rows, or allow it with --approximate"
        )
    engine = _Engine(tape, policy, renorm)
    if isinstance(policy, Oracle):
        engine.look_ahead()
    for events in events_of(tape):
        engine.run(events)
    return engine


@dataclass
class _Request:
    """State of one request: see run_events for the shapes."""

    slots: Slots
    salts: NDArray[np.int64]
    future: NDArray[np.float64]
    held: NDArray[np.int32]
    is_x: NDArray[np.uint8]
    tally: NDArray[np.int64]
    dense: NDArray[np.float32]
    popular_at_first: NDArray[np.bool_]
    last_position: int
    n_layers_done: int = 0
    observed: dict[int, tuple[int, NDArray[np.float64]]] = field(default_factory=dict)  # layer: prompt queries, (heads, c) sum


class _Engine:
    def __init__(self, tape: AttentionTape, policy: KVPolicy, renorm: bool) -> None:
        self.tape, self.policy, self.renorm = tape, policy, renorm
        self.n_layers, self.n_heads = len(tape.layers), tape.n_heads
        self.n_sets = self.n_heads if policy.is_per_head else 1
        self.windows = np.array(tape.geometry.windows_by_layer, np.int64)[list(tape.layers)]
        recompute = policy if isinstance(policy, AERP) else None
        self.accounting = recompute.accounting if recompute else "paper"
        self.theta = recompute.theta if recompute else THETA
        self.widths = widths_of(tape, self.accounting)
        self.stores_x = recompute is not None and pays(self.widths, self.accounting)
        longest = max((n for _, n in tape.requests.values()), default=1)
        self.bin_tokens = max(1, -(-longest // BINS))
        self.starts_from_all_queries = False
        self.open: dict[int, _Request] = {}
        self.futures: dict[int, NDArray[np.float64]] = {}
        n_bins = -(-longest // self.bin_tokens)
        # By layer and head, and by layer and bin: events, kept, kept with rest, evicted or the tallies. popular: tokens popular
        # after the prompt, and those that still are at the end.
        self.of_heads, self.of_bins = np.zeros((self.n_layers, self.n_heads, 4)), np.zeros((self.n_layers, n_bins, 8))
        self.popular, self.n_updates, self.full_pairs = np.zeros(2, np.int64), 0, 0.0
        self.kept = {request: np.full((n, self.n_layers, 5), -1) for request, (_, n) in tape.requests.items()}
        self.requests: set[int] = set()

    # ------------------------------------------------------------------------------------------------------------- events

    def look_ahead(self) -> None:
        """The first of two readings: all attention that decoded queries pay to every position."""
        for events in events_of(self.tape):
            of, shape = events, (self.n_layers, self.n_sets, self.tape.requests[events.request_id][1])
            future = self.futures.setdefault(of.request_id, np.zeros(shape))
            if of.kind == "row":
                rows = (of.mass_bounds, of.mass, of.key_bounds, of.keys, of.now)
                self._refuse(add_future(of.layers, *rows, future, self.n_heads), of)

    def run(self, events: Events) -> None:
        """Prompts of one request in a piece of the tape, or queries in order."""
        request = self.open.get(events.request_id) or self._begin(events.request_id)
        if events.kind != "row":
            for e in range(events.now.size):
                (self._prompt if events.kind == "column_sum" else self._observe)(request, events, e)
            return
        self._decode(request, events)
        request.n_layers_done += int((events.now == request.last_position).sum())
        if request.n_layers_done == self.n_layers:
            self._end(events.request_id)

    def _begin(self, request_id: int) -> _Request:
        n_inputs = self.tape.requests[request_id][1]
        salts = np.stack([salts_of(layer, self.n_sets) for layer in range(self.n_layers)])
        n_slots = min(self.policy.limits[0], n_inputs) + 1
        slots = Slots(self.policy, salts.ravel(), n_slots)
        future = self.futures.pop(request_id, np.zeros((0, 0, 0)))
        per_token = (self.n_layers, n_inputs)
        made = _Request(
            slots, salts, future, np.zeros(per_token, np.int32), np.zeros(per_token, np.uint8),
            np.zeros((self.n_layers, 5), np.int64),
            np.zeros(n_inputs, np.float32), np.zeros(per_token, np.bool_), n_inputs - 1,
        )  # fmt: skip
        self.open[request_id] = made
        self.requests.add(request_id)
        return made

    def _observe(self, request: _Request, events: Events, e: int) -> None:
        """Adds up the prompt's last queries that a policy looks at, as far as they are recorded one by one."""
        n_prompt = self.tape.requests[events.request_id][0]
        if events.now[e] >= n_prompt - (self.policy.prompt_queries or 0):
            layer, mass = int(events.layers[e]), prompt_mass(self.tape, events, e)
            n, seen = request.observed.get(layer, (0, np.zeros((self.n_heads, n_prompt))))
            seen[:, : mass.shape[1]] += mass
            request.observed[layer] = n + 1, seen

    def _prompt(self, request: _Request, events: Events, e: int) -> None:
        layer, per_set = int(events.layers[e]), self.n_heads // self.n_sets
        mass = prompt_mass(self.tape, events, e)
        c = mass.shape[1]
        n_seen, seen = request.observed.pop(layer, (0, mass))
        is_observed = n_seen > 0 and n_seen == min(c, self.policy.prompt_queries or 0)
        mass = (seen if is_observed else mass).reshape(self.n_sets, per_set, -1).sum(axis=1)
        if request.future.size:
            mass = request.future[layer, :, :c]
        elif self.policy.prompt_queries is not None and not is_observed:
            # Without their own rows the mean over all queries of a prompt stands for each of the last ones.
            self.starts_from_all_queries = True
            mass = mass / np.arange(c, 0, -1) * np.minimum(self.policy.prompt_queries, np.arange(c, 0, -1))
        kept = request.slots.start(mass, layer * self.n_sets, int(self.windows[layer]))
        request.held[layer, :c] = kept.sum(axis=0) * per_set
        made = after_prompt(request.held[layer, :c], self.n_heads, self.theta, self.stores_x)
        request.is_x[layer, :c], request.tally[layer] = made
        request.popular_at_first[layer, :c] = request.held[layer, :c] > self.theta * self.n_heads
        self.kept[events.request_id][c - 1, layer] = request.tally[layer]

    def _decode(self, request: _Request, events: Events) -> None:
        slots, m = request.slots, events.now.size
        shape = (self.n_layers, self.n_sets, slots.positions.shape[1])
        kept, n_left = np.zeros((m, self.n_heads, 3)), np.zeros((m, self.n_sets), np.int64)
        tallies, seen = np.zeros((m, 5), np.int64), np.zeros(shape[2])
        code = run_events(
            slots.weigh, slots.params, slots.limits, self.renorm, self.stores_x, self.tape.row_sum, self.theta,
            self.windows, events.layers, events.now, events.mass_bounds, events.mass, events.key_bounds, events.keys, events.rest,
            slots.positions.reshape(shape), slots.total.reshape(shape), slots.rank.reshape(shape),
            slots.memory.reshape(*shape, -1), request.salts, request.future, request.held, request.is_x, request.tally, kept,
            n_left, tallies, request.dense, seen,
        )  # fmt: skip
        self._refuse(code, events)
        self.kept[events.request_id][events.now, events.layers] = tallies
        self._add(events, kept, n_left, tallies)

    def _refuse(self, code: int, events: Events) -> None:
        if code == OK:
            return
        e, head = divmod(code % ROWS, self.n_heads)
        raise ValueError(
            f"tape {self.tape.trace_id}: {_WRONG[code // ROWS]} at request {events.request_id}, position {events.now[e]}, layer "
            f"{self.tape.layers[events.layers[e]]}, KV head {head}; record it again"
        )

    # --------------------------------------------------------------------------------------------------------------- sums

    def _add(self, events: Events, kept: NDArray[np.float64], n_left: NDArray[np.int64], tallies: NDArray[np.int64]) -> None:
        whole = np.maximum(kept[:, :, 2], 1e-30)
        low, high = kept[:, :, 0] / whole, np.minimum((kept[:, :, 0] + kept[:, :, 1]) / whole, 1.0)
        assert (low >= 0).all()
        assert (low <= 1 + 1e-6).all(), "more attention was kept than paid"
        per_set = self.n_heads // self.n_sets
        of_head = np.stack([np.ones_like(low), low, high, np.repeat(n_left, per_set, axis=1)], axis=-1)
        np.add.at(self.of_heads, events.layers, of_head)
        means = np.stack([np.ones(len(low)), low.mean(axis=1), high.mean(axis=1)], axis=-1)
        np.add.at(self.of_bins, (events.layers, events.now // self.bin_tokens), np.concatenate([means, tallies], axis=1))
        self.n_updates += int(tallies[:, PAIRS].sum()) // per_set + int(n_left.sum())
        self.full_pairs += float((events.now + 1).sum())

    def _end(self, request_id: int) -> None:
        request = self.open.pop(request_id)
        still = request.popular_at_first & (request.held > self.theta * self.n_heads)
        self.popular += (request.popular_at_first.sum(), still.sum())

    def result(self, exact: bool) -> KVReplay:
        tape = self.tape
        for request_id in list(self.open):
            self._end(request_id)
        n_events = self.of_bins[:, :, 0].sum()
        if not n_events:
            raise ValueError(f"tape {tape.trace_id} holds no decoded attention rows: there is nothing to replay")
        told = json.dumps(asdict(self.policy), sort_keys=True)
        key = {"trace_id": tape.trace_id, "policy": name_of("kv", self.policy), "parameters": told, "renorm": self.renorm}
        totals = self.of_bins.sum(axis=(0, 1))
        x_bytes, kv_bytes = self.widths.bytes_of(totals[3:])
        per_token = self.n_layers / n_events
        n_popular, n_stay = self.popular
        replay = {
            "is_bound": self.policy.is_bound,
            "origin": tape.origin,
            "is_exact": exact,
            "budget_tokens": None if self.policy.limits[0] == UNLIMITED else self.policy.limits[0],
            "n_requests": len(self.requests),
            "n_steps": round(n_events / self.n_layers),
            "kept_mass_frac": totals[1] / n_events,
            "kept_mass_high_frac": totals[2] / n_events,
            "n_evicted": int(self.of_heads[:, :, 3].sum()),
            "n_updates": self.n_updates,
            "popular_frac": totals[3 + POPULAR] / max(1.0, totals[3 + DISTINCT]),
            "popular_stays_frac": float(n_stay / n_popular) if n_popular else None,
            "x_bytes": float(x_bytes) * per_token,
            "kv_bytes": float(kv_bytes) * per_token,
            "full_bytes": self.full_pairs * self.widths.head_bytes * self.n_heads * per_token,
        }
        return KVReplay(key | replay, head_rows(key, self.tape.layers, self.of_heads), self._bin_rows(key))

    def _bin_rows(self, key: dict[str, Any]) -> list[dict[str, Any]]:
        rows = []
        for layer, place in np.argwhere(self.of_bins[:, :, 0] > 0).tolist():
            n, low, high, *tally = self.of_bins[layer, place].tolist()
            x_bytes, kv_bytes = self.widths.bytes_of(np.array(tally))
            rows.append(
                key | {
                    "layer": self.tape.layers[layer], "first_position": place * self.bin_tokens, "bin_tokens": self.bin_tokens,
                    "n_steps": int(n), "kept_mass_frac": low / n, "kept_mass_high_frac": high / n,
                    "retained_tokens": tally[PAIRS] / n / self.n_heads,
                    "distinct_tokens": tally[DISTINCT] / n, "popular_frac": tally[POPULAR] / max(1.0, tally[DISTINCT]),
                    "x_bytes": float(x_bytes) / n, "kv_bytes": float(kv_bytes) / n,
                }
            )  # fmt: skip
        return rows

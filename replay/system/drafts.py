"""The draft slot: rounds of drafts and verification as a tape recorded them.

A decode whose position began a recorded round has that round's nodes verified, rejected ones too, and accepts as many as were
accepted; elsewhere (after a restart, or beyond the rounds) it decodes plainly. Drafts are passes of their own, level by level.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.hw.work import Ints
from tokentape.policies.kernels import F64, F64_2D, I16_3D, I64, I64_2D, OF_TABLE, function, int64, kernel, tuple_of, void
from tokentape.policies.resolve import told
from tokentape.replay.capacity import total_expert_bytes
from tokentape.replay.serving import iteration as it
from tokentape.replay.serving.state import NEWER, OLDEST, input_of
from tokentape.warehouse.formats import bytes_per_value
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.model_sizes import static_bytes

TABLES = ("rounds", "node_routing")
_FORMATS = {4: "int4", 8: "int8-g32"}  # of weights but experts, by the drafter's bits at most

# first_row (n,): of a request in ids; round_at (positions,): the round that begins there, -1: none; n_accepted (rounds,);
# bounds of a round's verified nodes (rounds + 1,) in ids, of its draft passes (rounds + 1,), of a pass's nodes (passes + 1,) in
# ids; of_table (MoE layers,): row of the draft's table; table; numbers (N_DRAFTED,).
DRAFTS = tuple_of(I64, I64, I64, I64, I64, I64, I64, F64_2D, F64)
N_EXPERTS, WIDTH, WINDOW_TOKENS, DRAFT_S, ROUNDS, VERIFIED, N_DRAFTED = range(7)
NO_DRAFTS = (*(np.zeros(0, np.int64) for _ in range(7)), np.zeros((0, 0)), np.zeros(N_DRAFTED))


@kernel(int64(int64, int64, DRAFTS), allocates=False)
def round_of(r, held, drafts):  # type: ignore[no-untyped-def]
    """Round of request r, `held` of whose tokens are in the cache; -1: it decodes plainly, -2: nothing is recorded."""
    round_at = drafts[1]
    return round_at[drafts[0][r] + held] if round_at.shape[0] > 0 else -2


@kernel(int64(int64, int64, int64, DRAFTS), allocates=False)
def nodes_of(r, held, n_nodes, drafts):  # type: ignore[no-untyped-def]
    """Drafts that request r has verified: of its round, or n_nodes where nothing is recorded."""
    k = round_of(r, held, drafts)
    if k < 0:
        return n_nodes if k == -2 else 0
    return drafts[3][k + 1] - drafts[3][k] - 1


@kernel(int64(int64, I64_2D, I64, I64, DRAFTS, I64), allocates=False)
def decode_rows(at, requests, state, first_row, drafts, rows):  # type: ignore[no-untyped-def]
    """Fills `rows` with the rows of ids that the decodes take in iteration `at`, in order of joining; returns how many."""
    n = 0
    r = state[OLDEST]
    while r >= 0:
        held = input_of(r, at, requests)
        k = round_of(r, held, drafts)
        if k < 0:
            rows[n] = first_row[r] + held
            n += 1
        else:
            for row in range(drafts[3][k], drafts[3][k + 1]):
                rows[n] = row
                n += 1
        r = requests[r, NEWER]
    return n


@kernel(void(int64, I64_2D, I64, function(OF_TABLE), I16_3D, DRAFTS, I64, F64))
def draft_passes(at, requests, state, iteration, ids, drafts, rows, cost):  # type: ignore[no-untyped-def]
    """Adds to an iteration's `cost` what drafting for its rounds takes: a pass per level over the nodes of all decodes."""
    first_row, round_at, _, verify, passes, bounds, of_table, table, numbers = drafts
    carried, own = table[table.shape[0] + it.CARRIED], table[table.shape[0] + it.COST]
    seen = np.full(int64(numbers[N_EXPERTS]), -1, np.int64)
    level, n_rows, mark = 0, 1, 0
    while n_rows > 0:
        n_rows = n_requests = 0
        keys = keys_w = 0.0
        r = state[OLDEST]
        while r >= 0:
            held = input_of(r, at, requests)
            k = round_at[first_row[r] + held]
            if k >= 0 and level == 0:
                numbers[ROUNDS] += 1.0
                numbers[VERIFIED] += verify[k + 1] - verify[k] - 1
            if k >= 0 and passes[k] + level < passes[k + 1]:
                n_requests += 1
                keys += held + 1 + level
                keys_w += min(float(held + 1 + level), numbers[WINDOW_TOKENS])
                for row in range(bounds[passes[k] + level], bounds[passes[k] + level + 1]):
                    rows[n_rows] = row
                    n_rows += 1
            r = requests[r, NEWER]
        if n_rows == 0:
            break
        for m in range(of_table.shape[0]):
            active = chosen = 0.0
            for i in range(n_rows):
                for j in range(ids.shape[2]):
                    e = ids[rows[i], m, j]
                    if e >= 0:
                        chosen += 1.0
                        if seen[e] != mark:
                            active += 1.0
                            seen[e] = mark
            mark += 1
            entries = table[of_table[m], it.N_OF_KIND :]
            entries[0], entries[1], entries[2] = active, chosen, active * numbers[WIDTH]  # ACTIVE, CHOSEN, WEIGHTS of an event
        carried[it.DECODES], carried[it.NODES] = n_requests, n_rows / n_requests - 1.0
        carried[it.KEYS], carried[it.KEYS_W] = keys, keys_w
        iteration(table)
        for i in range(it.N_COST):
            cost[max(i, len(it.PARTS) - 1)] += own[i]  # all its seconds are of part `other`
            numbers[DRAFT_S] += own[i] if i < len(it.PARTS) else 0.0
        level += 1


@dataclass(frozen=True, eq=False)
class Rounds:
    """What a speculative tape drafted: arrays of DRAFTS; drafter, pool, pool_frac, bits (0: weights as loaded) and static as
    capture was told them."""

    round_at: Ints
    n_accepted: Ints
    verify: Ints
    passes: Ints
    bounds: Ints
    drafter: str
    pool: str
    pool_frac: float
    bits: int
    static: str

    @property
    def dense_format(self) -> str | None:
        """Of weights but experts in draft passes; None: as in any other."""
        return next((name for bits, name in _FORMATS.items() if self.bits <= bits), None) if self.static == "slices" else None

    def arrays(self, first_row: Ints, costs: it.IterationCosts) -> tuple[Any, ...]:
        """DRAFTS of a run. costs: of draft passes."""
        n_moe, numbers = len(costs.geometry.moe_layers), np.zeros(N_DRAFTED)
        numbers[N_EXPERTS] = costs.geometry.n_experts
        numbers[WIDTH], numbers[WINDOW_TOKENS] = self._width(costs.expert_format), costs.window
        of_table = np.array([int(np.flatnonzero(costs.moe_of == m)[0]) for m in range(n_moe)], np.int64)
        table = costs.table.copy()
        table[: costs.moe_of.size, it.OTHERS] = costs.layers_before[-1]
        return first_row, self.round_at, self.n_accepted, self.verify, self.passes, self.bounds, of_table, table, numbers

    def held_bytes(self, geometry: Geometry, expert_format: str) -> float:
        """What drafting holds beside the experts: nothing where it reads slices of them, a copy at the drafter's bits else."""
        copied = total_expert_bytes(geometry, expert_format) + static_bytes(geometry, geometry.value_format(expert_format))
        return copied * self._width(expert_format) if self.drafter == "quant" else 0.0

    def outside(self, budget_bytes: float, geometry: Geometry, expert_format: str) -> list[str]:
        """What a run leaves out of the drafts, one sentence each. budget_bytes: room for experts."""
        if self.bounds.size == 1 and self.n_accepted.size and self.drafter != "ngram":
            return [f"drafts of {self.drafter} take no time: the tape has no routing of its draft passes"]
        pool = self.pool_frac * total_expert_bytes(geometry, expert_format) * self._width(expert_format)
        if self.drafter == "elastic" and pool > budget_bytes:
            return [
                f"the drafts' pool of {pool:.3g} B of slices is read as resident, the room for experts is {budget_bytes:.3g} B"
            ]
        return []

    def _width(self, expert_format: str) -> float:
        """Of a drafted expert, as a share of full width."""
        full_bits = 8.0 * bytes_per_value(expert_format)
        return min(1.0, (self.bits or full_bits) / full_bits)


def refuse_drafts(policy: Any, rounds: Rounds | None, who: str, trace_id: str) -> None:
    """Raises ValueError where a tape did not draft so."""
    if rounds is None:
        raise ValueError(f"{who}: tape {trace_id} has no rounds of drafts; capture one with --draft, or leave the draft slot out")
    name = told("draft", policy)[0]
    if name not in ("recorded", rounds.pool):
        raise ValueError(
            f"{who}: tape {trace_id} was drafted with pool {rounds.pool}, and what is accepted under {name} cannot be replayed; "
            f"take draft = recorded, or capture with --draft elastic --pool {name}"
        )


def rounds_of(
    ids: NDArray[np.int16],
    first: Ints,
    moe_layers: tuple[int, ...],
    request_ids: NDArray[np.integer[Any]],
    made_by: Mapping[str, Any],
    tables: Mapping[str, pl.DataFrame],
) -> tuple[NDArray[np.int16], Rounds]:
    """ids with the rows of verified and of drafted nodes behind those of positions, and the rounds. made_by: the manifest's
    `speculation`; tables: of TABLES. Raises ValueError where a round lacks its nodes."""
    keys, order = ["request_id", "round"], ["is_draft", "k", "pass_id", "node"]  # those of verified nodes come first
    rounds = tables["rounds"].group_by(keys).agg(pl.col("n_accepted").first()).sort(keys).with_row_index("k")
    layers = {layer: m for m, layer in enumerate(moe_layers)}
    nodes = tables["node_routing"].join(rounds.select(*keys, "k"), on=keys).with_columns(is_draft=pl.col("phase") == "draft")
    each = nodes.select(*order, "request_id", "position").unique(order).sort(order).with_row_index("row")
    entries = nodes.join(each.select(*order, "row"), on=order).select(
        "row", "expert_ids", m=pl.col("layer").replace_strict(layers), j=pl.int_ranges(pl.col("expert_ids").list.len())
    )
    block = np.full((each.height, *ids.shape[1:]), -1, ids.dtype)
    *at, chosen = (of.to_numpy() for of in entries.explode("expert_ids", "j").select("row", "m", "j", "expert_ids"))
    block[tuple(at)] = chosen
    verified, drafted = each.filter(~pl.col("is_draft")), each.filter("is_draft")
    of_round, every = verified["k"].to_numpy().astype(np.int64), np.arange(rounds.height)
    if (lacking := np.setdiff1d(every, of_round)).size:
        bad = rounds.row(int(lacking[0]), named=True)
        raise ValueError(
            f"request {bad['request_id']}, round {bad['round']}: the tape has no routing of its verified nodes; record it again"
        )
    starts = np.searchsorted(of_round, every)
    request = np.searchsorted(request_ids, verified["request_id"].to_numpy()[starts])
    round_at = np.full(int(first[-1]), -1, np.int64)
    round_at[first[request] + verified["position"].to_numpy()[starts]] = every
    verify = len(ids) + np.append(starts, of_round.size)
    of_pass = drafted.group_by("k", "pass_id", maintain_order=True).len()
    passes = np.searchsorted(of_pass["k"].to_numpy(), np.arange(rounds.height + 1)).astype(np.int64)
    bounds = verify[-1] + np.append(0, np.cumsum(of_pass["len"].to_numpy().astype(np.int64)))
    defaults = {"draft": "", "pool": "all", "pool_frac": 1.0, "bits": 0, "static": "full"}
    drafter, *how = (made_by.get(name, value) for name, value in defaults.items())
    made = Rounds(round_at, rounds["n_accepted"].to_numpy().astype(np.int64), verify, passes, bounds, drafter, *how)
    return np.concatenate((ids, block)), made

"""A tape's decode on one system: experts placed, the kernel run, its counts priced; time, traffic and hits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.clock import Band, StepCost, clock
from tokentape.hw.profile import ENDS
from tokentape.hw.work import Floats, Ints, Work
from tokentape.policies.placement import Capacity, FixedPlacement, importance
from tokentape.replay.cxl_ndp import kernel as k
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting, in_batches
from tokentape.replay.cxl_ndp.system import FETCHED, Setup, System
from tokentape.replay.cxl_ndp.work import Items, Share, by_expert, layer_rows
from tokentape.replay.tokens import Tokens
from tokentape.replay.transformer import steps_of

CHUNK_STEPS = 1024  # counted and priced at once, batch by batch: their numbers stay in the processor's cache
# Parts of a layer-step: all but its experts; the GPU's and the NDP's; activations and weights over the link; what the GPU waits.
PARTS = ("other", "gpu", "ndp", "activation", "transfer", "wait")
PART_OF = {"expert": "gpu", "exchange": "activation", "fetch": "transfer", "prefetch": "transfer"}  # of rows by their kind
MOVED = {"transfer": "link_weight", "activation": "link_activation", "ndp": "ndp"}
# Metric: unit. Times are means of a layer-step; bytes are per generated token, over all layers.
UNITS = {
    "step_s": "s",
    "tokens_per_s": "1/s",
    **dict.fromkeys((f"{part}_s" for part in PARTS), "s"),
    "ndp_gain": "x",
    "hit_frac": "1",
    "moved_per_layer_step": "experts",
    "link_weight_bytes_per_token": "B",
    "link_activation_bytes_per_token": "B",
    "ndp_bytes_per_token": "B",
}


@dataclass(frozen=True, eq=False)
class Placed:
    """Batches and their experts when decoding starts. groups (G, B) sequences; scores (G, L, E) importance by the prompts, whose
    order bits follow; hot (G, L, E): on the GPU; capacity: experts of a layer there."""

    groups: NDArray[np.int64]
    scores: Floats
    hot: NDArray[np.bool_]
    capacity: int


def place(
    routing: CXLNDPRouting, batch: int, hot_experts: int, alpha: float = 0.5, placement: FixedPlacement | None = None
) -> Placed:
    """One placement per batch of `batch` sequences in tape order, from the sums over its members. placement: prefill-guided.

    Raises ValueError for fewer sequences than a batch, and for more hot experts than a layer has.
    """
    groups = in_batches(routing.n_sequences, batch)
    scores = importance(routing.prefill_counts[groups].sum(axis=1), routing.prefill_weights[groups].sum(axis=1), alpha)
    ranked = scores if placement is None else placement.scores(routing.seen(groups))
    return Placed(groups, scores, Capacity(hot_experts).hot(ranked), hot_experts)


@dataclass(frozen=True, eq=False)
class Rest:
    """All but the routed experts of some batches' steps, priced: what systems on one tape and machine have in common. batch (S,):
    sequences that decode. other, outside: seconds of all of it but shared experts, in layers with experts and elsewhere."""

    of: slice
    batch: Ints
    prepared: StepCost
    other: float
    outside: float
    shared: Floats  # (steps, blocks) seconds


@dataclass(frozen=True, eq=False)
class Decoded:
    """seconds, joules: of every step, all batches one after the other. parts: nominal seconds over all layer-steps by PARTS, and
    `outside` of them; ndp_fp16: what the NDP's experts would take at 16 bits. moved: bytes by the metrics' names. counts
    (N_COUNTS,): over all layer-steps. batch (S,): sequences that decode; longest: steps of one; uncounted: see StepCost."""

    made: Setup
    system: System
    seconds: Band
    joules: Band
    parts: Mapping[str, float]
    moved: Mapping[str, float]
    counts: Floats
    batch: Ints
    longest: int
    uncounted: Mapping[str, tuple[float, float]]

    @property
    def n_tokens(self) -> int:
        return int(self.batch.sum())

    @property
    def n_steps(self) -> int:
        """In which at least one sequence decodes, all batches together."""
        return int(self.batch.size)

    @property
    def n_layer_steps(self) -> int:
        return self.n_steps * len(self.made.geometry.moe_layers)

    @property
    def step_s(self) -> tuple[float, float, float]:
        """Mean of a step through the model: nominal, favourable and worst."""
        value, low, high = (float(of.sum()) / max(1, self.n_steps) for of in self.seconds)
        return value, low, high

    @property
    def layers_s(self) -> float:
        """Of all layer-steps."""
        return float(self.seconds.value.sum()) - self.parts["outside"]

    def metrics(self) -> dict[str, float]:
        """By name, UNITS. Raises ValueError where nothing decodes."""
        if not self.n_tokens:
            raise ValueError("no sequence of this tape decodes; record or draw one with output tokens")
        parts, counts = self.parts, self.counts
        n_moved = counts[k.MIGRATED] * bool(self.made.machine.roles.expert_cache)
        n_moved += counts[k.AWAY] if self.made.elsewhere(self.system) == FETCHED else 0.0
        return {
            "step_s": self.layers_s / self.n_layer_steps,
            "tokens_per_s": self.n_tokens / float(self.seconds.value.sum()),
            **{f"{name}_s": parts[name] / self.n_layer_steps for name in PARTS},
            "ndp_gain": parts["ndp_fp16"] / parts["ndp"] if parts["ndp"] else float("nan"),
            "hit_frac": float(counts[k.HITS] / (counts[k.HITS] + counts[k.ON_AWAY])),
            "moved_per_layer_step": float(n_moved) / self.n_layer_steps,
            **{f"{name}_bytes_per_token": n_bytes / self.n_tokens for name, n_bytes in self.moved.items()},
        }


def refuse_other_model(routing: CXLNDPRouting, made: Setup) -> None:
    """Raises ValueError, with both values, where the tape's experts, top k or layers are not the model's."""
    routing.refuse_other_model(made.geometry.n_experts, made.geometry.top_k, made.name)
    if routing.n_layers != len(made.geometry.moe_layers):
        raise ValueError(
            f"tape {routing.trace_id} has {routing.n_layers} MoE layers, {made.name} has {len(made.geometry.moe_layers)}; "
            "give its own"
        )


def rest_of(made: Setup, routing: CXLNDPRouting, placed: Placed, ends: Sequence[str] = ENDS) -> tuple[Rest, ...]:
    """Of all steps of the batches."""
    n_at_once = max(1, CHUNK_STEPS // max(1, routing.n_steps))
    alive = (routing.n_decode[placed.groups][:, :, None] > np.arange(routing.n_steps)).sum(axis=1)
    parts = (slice(first, first + n_at_once) for first in range(0, len(alive), n_at_once))
    return tuple(rest_of_steps(made, alive[of][alive[of] > 0], ends, of) for of in parts if alive[of].any())


def rest_of_steps(made: Setup, batch: Ints, ends: Sequence[str] = ENDS, of: slice = slice(None)) -> Rest:
    """Of steps in which so many sequences decode."""
    blocks, shape = made.blocks, (batch.size, made.blocks.n)
    alike = batch[:1] if (batch == batch[:1]).all() else batch  # one step stands for them all
    work = steps_of(made.geometry, made.machine, Tokens(decodes=alike, context=made.context_tokens), (), blocks)
    prepared = clock(work, made.machine, made.profile, made.fits, ends=ends)
    seconds = prepared.rows_s
    priced = [(rows.kind, seconds[id(rows)]) for rows in work.rows if id(rows) in seconds]
    shared = np.broadcast_to(sum((of for kind, of in priced if kind == "shared"), np.zeros((1, blocks.n))), shape)
    by_block = sum((np.broadcast_to(of, shape).sum(axis=0) for kind, of in priced if kind != "shared"), np.zeros(blocks.n))
    other = float(by_block[blocks.moe].sum())
    return Rest(of, batch, prepared, other, float(by_block.sum()) - other, shared)


def replay(
    routing: CXLNDPRouting,
    placed: Placed,
    made: Setup,
    system: System,
    bits: NDArray[np.integer] | None = None,
    rest: Sequence[Rest] = (),
    ends: Sequence[str] = ENDS,
) -> Decoded:
    """Every layer-step of every batch. bits: (G, L, E) of the NDP's experts (policies.bits.assign); None: all of system.bits.
    rest: `rest_of` the same arguments, where several systems are replayed. ends: of the machine's ranges.

    Exact and deterministic. Raises ValueError for a tape of another model.
    """
    refuse_other_model(routing, made)
    widths = np.full(placed.hot.shape, system.bits) if bits is None else bits
    start, blocks, of_steps = placed.hot & system.starts_placed, made.blocks, rest or rest_of(made, routing, placed, ends)
    parts, moved = dict.fromkeys((*PARTS, "outside"), 0.0), dict.fromkeys(MOVED.values(), 0.0)
    counts, by_tokens = np.zeros(k.N_COUNTS), np.zeros(placed.groups.shape[1] + 1)
    bands: list[tuple[Band, Band]] = []
    cost = None
    for steps in of_steps:
        of, groups = steps.of, placed.groups[steps.of]
        where = start[of], placed.capacity, widths[of], blocks.moe, blocks.n
        counted, hot, away = k.count(routing, groups, system.reactive, *where)
        counts += counted.sum(axis=(1, 2))
        by_tokens += np.bincount(away.tokens, away.times, by_tokens.size)
        on_gpu = Share(counted[k.HOT], counted[k.HITS], counted[k.HOT], (hot,))
        elsewhere = Share(counted[k.AWAY], counted[k.ON_AWAY], counted[k.READS], (away,))
        rows = layer_rows(made, system, on_gpu, elsewhere, counted[k.MIGRATED])
        work = Work(n_steps=steps.batch.size, n_blocks=blocks.n, rows=rows)
        cost = clock(work, made.machine, made.profile, made.fits, steps.prepared, ends)
        bands.append((cost.seconds, cost.joules))
        by_part = {"gpu": steps.shared, "ndp": np.zeros(1), "activation": np.zeros(1), "transfer": np.zeros(1)}
        for row in rows:
            seconds, name = cost.rows_s.get(id(row)), "ndp" if row.engine == "near_compute" else PART_OF[row.kind]
            by_part[name] = by_part[name] if seconds is None else by_part[name] + seconds
            if name in MOVED:
                moved[MOVED[name]] += float((row.bytes * np.asarray(row.times)).sum())
        by_part["wait"] = np.maximum(0.0, by_part["activation"] + by_part["ndp"] - by_part["gpu"])
        for name, taken in by_part.items():
            parts[name] += float(taken.sum())
        parts["other"] += steps.other
        parts["outside"] += steps.outside
    parts["ndp_fp16"] = _at_fp16(made, by_tokens) if parts["ndp"] else 0.0
    batch = np.concatenate([np.zeros(0, np.int64), *(steps.batch for steps in of_steps)])
    assert counts[k.HITS] + counts[k.ON_AWAY] == batch.sum() * routing.n_layers * routing.top_k  # every token-expert is somewhere
    whole, energy = (_joined([of[index] for of in bands]) for index in range(2))
    if batch.size:
        made.profile.refuse_no_time(float(whole.value.sum()))
    longest = int(routing.n_decode[placed.groups].max())
    return Decoded(made, system, whole, energy, parts, moved, counts, batch, longest, cost.uncounted if cost else {})


def _joined(bands: Sequence[Band]) -> Band:
    return Band(*(np.concatenate(of) for of in zip(Band(*np.zeros((3, 0))), *bands, strict=True)))


def _at_fp16(made: Setup, times: Floats) -> float:
    """Seconds that the NDP's experts would take at 16 bits. times (n,): experts of so many tokens."""
    items = Items(np.zeros(times.size, np.int64), np.arange(times.size), times, times).at_fp16()
    row = by_expert(made, items, "near_compute", False, "decode")
    cost = clock(Work(n_steps=1, n_blocks=1, rows=(row,)), made.machine, made.profile, ends=("value",))
    return float(cost.rows_s[id(row)].sum()) if id(row) in cost.rows_s else 0.0

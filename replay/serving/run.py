"""The serving engine: requests through a scheduler on a machine, iteration by iteration (Layered Prefill). Or two in series: one
processes prompts, the other decodes, and a request's KV cache moves between them.

One engine runs iterations back to back. An iteration gives every decoding request one token and may carry prefill; schedulers
differ only in the prefill work they choose. The engine idles when nothing is queued or running; the clock then jumps to the next
arrival. Deterministic: equal inputs give equal results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokentape.hw.work import Floats, Ints
from tokentape.policies.kernels import zeros_of
from tokentape.policies.serving import BatchRule, Disaggregated, Scheduler, Speculation
from tokentape.replay.serving import kernel as k
from tokentape.replay.serving.gaps import GAP_SQUARES, GAP_SUM_S, N_BINS, percentiles_s
from tokentape.replay.serving.iteration import COST, EXPERT_BYTES, N_COST, N_PLACES, PARTS, IterationCosts
from tokentape.replay.serving.pool import BEFORE, N_POOL, OFFSET, PARENT, ROOT, SIZE, THERE, put_last
from tokentape.replay.serving.state import CACHED, N_REQUEST, N_RESTARTS, N_STATE, OUTPUT, PROMPT, TARGET
from tokentape.replay.serving.workload import Requests
from tokentape.replay.system.drafts import NO_DRAFTS
from tokentape.replay.system.kv import no_kv
from tokentape.warehouse.model_sizes import kv_layer_bytes_per_token

if TYPE_CHECKING:
    from tokentape.replay.serving.client import Client
    from tokentape.replay.system.experts import ExpertSlots
    from tokentape.replay.system.kv import KVSlots


# Fields of a run, in the order of what the kernel fills: by request, of the cost, counts.
_BY_REQUEST = ("started_s", "first_token_s", "finish_s", "largest_gap_s", "n_restarts", "n_cached_tokens")

_OF_COST = ("expert_bytes", "j_of_bytes", "j_of_ops")
_COUNTED = ("n_iterations", "n_decoded", "n_prefilled", "n_lost_tokens", "n_accepted")


@dataclass(frozen=True)
class Limits:
    """max_seqs: requests that decode or are in prefill; kv_blocks: of block_tokens each (replay/serving/memory.py tells how many
    fit a machine), None: memory does not bind. schedules_ahead: the batch of an iteration is fixed when the one before it starts
    (vLLM's async scheduling, its default from 0.14 on): a request waits for the rest of one iteration and for one more, and so
    does what one that ends held. keeps: a prompt finds the blocks of prefixes that it shares with others, and a request that lost
    its KV its own, as long as no other has taken them (vLLM's prefix caching); fills: blocks that are not full are taken before
    others (from 0.24 on). fits_whole: a prompt is admitted where blocks for all of it are free (from 0.19 on), else where those
    of its first slice are. windowed: blocks of layers with a window, which a request has of no more tokens than that, for each
    block of the others, in the same memory (vLLM's hybrid one): kv_blocks is of requests that are shorter; has_states: those
    layers keep a state, as large as such a window from the first token on. n_engines: as many as these, each on its own, that
    take the requests in turn."""

    max_seqs: int = 256
    kv_blocks: int | None = None
    block_tokens: int = 16
    schedules_ahead: bool = False
    keeps: bool = False
    fills: bool = True
    fits_whole: bool = True
    windowed: int = 0
    window_tokens: int = 0
    has_states: bool = False
    n_engines: int = 1

    def __post_init__(self) -> None:
        for name in ("max_seqs", "kv_blocks", "block_tokens", "n_engines"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, found {value}")

    def numbers(self) -> Ints:
        """(10,) the fields but `n_engines`, in their order, as the kernel takes them."""
        return np.array([of or 0 for of in astuple(self)[:-1]], np.int64)


@dataclass(frozen=True, eq=False)
class ServingRun:
    """What a run did. Per request (n,), seconds: queued_s, when the engine has it (a client sends it sooner), started_s,
    first_token_s, finish_s, largest_gap_s; n_restarts; n_cached_tokens, of its prompt, found in the KV memory at its start.

    end_s: last finish; busy_s: time in iterations, of several engines the mean; seconds_of: by part of the iteration.
    expert_bytes: routed experts read, whole, all devices; j_of_bytes, j_of_ops: what moving and computing took. gaps: histogram
    of pooled times between tokens, gap_sums: of them and their squares; n_decoded: decodes over all iterations; n_accepted:
    drafts accepted in them; n_lost_tokens: processed again after losing their KV. iterations: series by name, where asked.
    ledger: (object, what) -> sum over the run, where the costs keep one: seconds, joules, and seconds by resource.
    """

    requests: Requests
    cost: IterationCosts
    queued_s: Floats
    started_s: Floats
    first_token_s: Floats
    finish_s: Floats
    largest_gap_s: Floats
    n_restarts: Ints
    n_cached_tokens: Ints
    end_s: float
    busy_s: float
    seconds_of: dict[str, float]
    expert_bytes: float
    j_of_bytes: float
    j_of_ops: float
    n_iterations: int
    n_decoded: int
    n_prefilled: int
    n_lost_tokens: int
    n_accepted: int
    gap_sums: Floats
    gaps: Ints = field(repr=False)
    iterations: dict[str, NDArray[Any]] = field(repr=False)
    ledger: dict[tuple[str, str], float] = field(repr=False)

    @property
    def ttft_s(self) -> Floats:
        """(n,) time from arrival to the first token."""
        return self.first_token_s - self.requests.arrival_s

    @property
    def e2e_s(self) -> Floats:
        """(n,) time from arrival to the last token."""
        return self.finish_s - self.requests.arrival_s

    @property
    def wall_s(self) -> float:
        """From the first arrival to the last token."""
        return self.end_s - float(self.requests.arrival_s[0])

    @property
    def gap_mean_s(self) -> float:
        """Of all times between tokens, pooled; NaN where there are none."""
        return float(self.gap_sums[GAP_SUM_S] / (self.gaps.sum() or np.nan))

    @property
    def gap_std_s(self) -> float:
        return float(np.sqrt(np.maximum(self.gap_sums[GAP_SQUARES] / (self.gaps.sum() or np.nan) - self.gap_mean_s**2, 0.0)))

    def gap_percentiles_s(self, q: ArrayLike) -> Floats:
        """Percentiles (0 to 100, any shape) of all times between tokens, pooled; within 0.025 %."""
        return percentiles_s(self.gaps, q)

    @property
    def joules_of(self) -> dict[str, float]:
        """Energy by part: static power over the wall time, bytes moved, operations. Their sum is the run's energy."""
        return {"static": self.cost.background_w * self.wall_s, "bytes": self.j_of_bytes, "ops": self.j_of_ops}


def serve(
    requests: Requests,
    scheduler: Scheduler,
    cost: IterationCosts,
    limits: Limits | None = None,
    *,
    record: bool = False,
    seed: int = 0,
    slots: ExpertSlots | None = None,
    client: Client | None = None,
) -> ServingRun:
    """Serves all requests from an empty engine to the end, also where they arrive faster than they can be served.

    record: keep every iteration. seed: of the drafts that are accepted, where the costs have a speculation. slots: the experts
    that a tape recorded for these requests, where the costs are of events (replay/system/experts.py). client: sends them, and
    times are from then on.
    Raises ValueError naming the request whose KV can never fit, a scheduler that does not fit the model, and for iterations of
    several engines.
    """
    rule, limits = rule_of(scheduler, cost.geometry.n_layers), limits or Limits()
    queued = client.handed_over(requests) if client else requests
    if limits.n_engines == 1:
        return replace(run_rule(queued, rule, cost, limits, record, seed, slots), requests=requests)
    if record:
        raise ValueError(f"iterations are recorded of one engine, and these are {limits.n_engines} replicas, each on its own")
    turns = [np.arange(i, len(queued), limits.n_engines) for i in range(min(limits.n_engines, len(queued)))]
    seeds = [seed * limits.n_engines + i for i in range(len(turns))]  # each its own draws
    runs = [run_rule(queued.taken(of), rule, cost, limits, seed=own) for of, own in zip(turns, seeds, strict=True)]
    return replace(_side_by_side(queued, turns, runs, limits), requests=requests)


def rule_of(scheduler: Scheduler, n_layers: int) -> BatchRule:
    """Of an engine that stands alone. Raises ValueError where its prompts come processed: no first token would have a time."""
    if (rule := scheduler.rule(n_layers)).starts_decoding:
        raise ValueError(f"{type(scheduler).__name__}: starts_decoding is for the second of two engines in series; leave it out")
    return rule


def run_rule(
    requests: Requests,
    rule: BatchRule,
    cost: IterationCosts,
    limits: Limits,
    record: bool = False,
    seed: int = 0,
    slots: ExpertSlots | None = None,
    kv: KVSlots | None = None,
) -> ServingRun:
    """As `serve`, for a rule. Where the rule's requests come already processed, first_token_s is 0 and theirs to fill. slots:
    what a system's experts do, where the costs are of events; kv: what it keeps of keys and values."""
    n = len(requests)
    speculation = cost.speculation or Speculation(0, ())
    n_nodes = slots.n_nodes if slots is not None else speculation.n_nodes
    _refuse_what_never_fits(requests, rule, limits, n_nodes)
    columns = np.zeros((n, N_REQUEST), np.int64)
    columns[:, PROMPT] = columns[:, TARGET] = requests.n_prompt_tokens
    columns[:, OUTPUT] = requests.n_output_tokens
    pool = _pool(requests, limits)
    assert cost.events == (slots is not None), "costs of events go with the experts' slots"
    times, histogram, sums = np.zeros((4, n)), np.zeros(N_BINS, np.int64), np.zeros(2)
    totals, counts = np.zeros(k.N_TOTALS), np.zeros(k.N_COUNTS, np.int64)
    n_recorded = run_rule(requests, rule, cost, limits, seed=seed, slots=slots, kv=kv).n_iterations if record else 0
    recorded, recorded_n = np.zeros((n_recorded, len(k.RECORD_TIMES))), np.zeros((n_recorded, len(k.RECORD_COUNTS)), np.int64)
    table = cost.table.copy()
    engine = k.run_alone if slots is None else k.run_engine
    n_open, n_tokens = min(limits.max_seqs, n), int(requests.n_output_tokens.max()) + 2
    sizes = (N_STATE, n_open, n_open, N_PLACES, 1, n_tokens, n_tokens, n_tokens, cost.window + 1, limits.block_tokens)
    scratch = zeros_of(k.SCRATCH, *sizes)
    scratch[7][:] = -1
    drafts: tuple[Any, ...] = NO_DRAFTS
    of_slots: tuple[Any, ...] = (None,) * 20
    if slots is not None:
        drafts, draft_iteration = slots.drafts()
        of_slots = slots.arguments(n_recorded, draft_iteration, kv.arguments(n_recorded) if kv else no_kv())
    engine(
        np.ascontiguousarray(requests.arrival_s, np.float64),
        columns,
        np.append(rule.numbers(), (cost.window, speculation.n_nodes, cost.profile.by_middle, cost.machine.data_parallel)),
        rule.step_numbers(),
        limits.numbers(),
        speculation.chances(),
        seed,
        *(cost.iteration, table, cost.layers_before, cost.cov_prefill, cost.cov_decode),
        speculation.draft_s,
        drafts,
        *(times, histogram, sums, totals, counts, recorded, recorded_n, scratch, pool),
        *of_slots,
    )
    cost.profile.refuse_no_time(float(totals[k.BUSY_S]))
    handed_over = n if rule.starts_decoding else 0
    to_process = int((requests.n_prompt_tokens - columns[:, CACHED]).sum()) * (not handed_over)
    assert counts[k.N_PREFILLED] == to_process + counts[k.N_LOST], "a prompt token was lost or processed twice"
    assert counts[k.N_EMITTED] == requests.n_output_tokens.sum() - handed_over, "an output token was lost or made twice"
    by_name: dict[str, Any] = dict(zip(_BY_REQUEST, (*times, *columns[:, [N_RESTARTS, CACHED]].T.copy()), strict=True))
    by_name |= dict(zip(_OF_COST, totals[EXPERT_BYTES:N_COST].tolist(), strict=True))
    by_name |= dict(zip(_COUNTED, counts[: k.N_EMITTED].tolist(), strict=True))
    series = zip((*k.RECORD_TIMES, *k.RECORD_COUNTS), (*recorded.T, *recorded_n.T), strict=True)
    return ServingRun(
        requests=requests,
        cost=cost,
        queued_s=requests.arrival_s,
        **by_name,
        end_s=float(totals[k.NOW]),
        busy_s=float(totals[k.BUSY_S]),
        seconds_of=dict(zip(PARTS, totals[: len(PARTS)].tolist(), strict=True)),
        gap_sums=sums,
        gaps=histogram,
        iterations=dict(series) if record else {},
        ledger=dict(zip(cost.ledger, table[COST, N_COST : N_COST + len(cost.ledger)].tolist(), strict=True)),
    )


def _side_by_side(requests: Requests, turns: Sequence[Ints], runs: Sequence[ServingRun], limits: Limits) -> ServingRun:
    """Runs of engines as one, without iterations. turns: the requests of each."""
    summed, back = (*_OF_COST, *_COUNTED, "gaps", "gap_sums"), np.argsort(np.concatenate(turns))
    of_all: dict[str, Any] = {name: sum(getattr(run, name) for run in runs) for name in summed}
    of_all |= {name: np.concatenate([getattr(run, name) for run in runs])[back] for name in _BY_REQUEST}
    of_all["busy_s"] = sum(run.busy_s for run in runs) / limits.n_engines
    of_all["seconds_of"] = {part: sum(run.seconds_of[part] for run in runs) / limits.n_engines for part in PARTS}
    return replace(runs[0], requests=requests, queued_s=requests.arrival_s, end_s=max(run.end_s for run in runs), **of_all)


def _pool(requests: Requests, limits: Limits) -> Ints:
    """(1 + prefixes + n, N_POOL) the KV memory as `pool.py` has it, all blocks free; empty where nobody looks for any."""
    if not limits.keeps:
        return np.zeros((0, N_POOL), np.int64)
    parent, end, is_there = requests.prefixes.T
    m, blocks = len(parent), end // limits.block_tokens
    pool = np.zeros((m + len(requests), N_POOL), np.int64)
    pool[:, PARENT] = np.append(parent, requests.prefix)
    pool[:, OFFSET] = blocks[pool[:, PARENT]]
    pool[:m, SIZE] = blocks - pool[:m, OFFSET]
    n_blocks, there = (limits.kv_blocks or 2**60) * (1 + limits.windowed), np.flatnonzero(is_there)
    fitting = there[np.cumsum(pool[there, SIZE]) <= n_blocks]
    pool[fitting, THERE] = pool[fitting, SIZE]
    pool[ROOT, BEFORE] = n_blocks - pool[fitting, THERE].sum()
    for row in fitting[::-1]:  # shorter ones last, as requests leave them
        put_last(row, pool)
    return pool


def _refuse_what_never_fits(requests: Requests, rule: BatchRule, limits: Limits, n_nodes: int) -> None:
    """Raises ValueError naming the first request whose KV needs more blocks than there are."""
    if limits.kv_blocks is None:
        return
    tokens = requests.n_prompt_tokens + requests.n_output_tokens - 1 + n_nodes * (requests.n_output_tokens > 1)
    blocks = -(-tokens // limits.block_tokens)
    largest = max(rule.budget_tokens, n_nodes) if rule.may_split else tokens
    sliced = 0 if limits.has_states else np.minimum(largest, tokens)  # all of them where it comes back
    most = -(-(limits.window_tokens + sliced) // limits.block_tokens) + (not limits.has_states)  # a window begins within a block
    in_window = most if limits.has_states else np.minimum(blocks, most)
    needed = -(-(blocks + limits.windowed * in_window) // (1 + limits.windowed))
    if needed.max() > limits.kv_blocks:
        first = int(np.argmax(needed > limits.kv_blocks))
        raise ValueError(
            f"request {first}: its {requests.n_prompt_tokens[first]} prompt and {requests.n_output_tokens[first]} output tokens "
            f"need {needed[first]} KV blocks of {limits.block_tokens}, kv_blocks is {limits.kv_blocks}"
        )


@dataclass(frozen=True, eq=False)
class DisaggregatedRun:
    """Both engines' runs. finish_s (n,): of the requests as they came; decode: None where all ask for one token.

    Times between tokens are those of the decode engine, between its iterations: the wait from the first token to the second, with
    the transfer, is not among them.
    """

    prefill: ServingRun
    decode: ServingRun | None
    finish_s: Floats


def serve_disaggregated(
    requests: Requests,
    scheduler: Disaggregated,
    prefill_cost: IterationCosts,
    decode_cost: IterationCosts,
    limits: Limits | None = None,
    seed: int = 0,
) -> DisaggregatedRun:
    """Serves all requests; the costs are those of the two machines. A request enters decode at its first token + the transfer.

    seed: of accepted drafts; a request is told apart by its place in the order of the transfers.
    """
    geometry, limits = prefill_cost.geometry, limits or Limits()
    first_only = replace(requests, n_output_tokens=np.ones(len(requests), np.int64))
    prefill = run_rule(first_only, scheduler.prefill_rule(geometry.n_layers), prefill_cost, limits)
    state_bytes = geometry.state_tokens * kv_layer_bytes_per_token(geometry.alike(False), "bf16")
    layers = [(geometry.windows_by_layer[layer] or np.inf, geometry.of_layer(layer)) for layer in geometry.attending]
    kept = [np.minimum(requests.n_prompt_tokens, most) * kv_layer_bytes_per_token(of, "bf16") for most, of in layers]
    kept_bytes = np.sum(kept, axis=0) + len(geometry.state_layers) * state_bytes
    there_s = prefill.first_token_s + kept_bytes / scheduler.kv_bytes_per_s
    finish_s = prefill.finish_s.copy()
    goes_on = np.flatnonzero(requests.n_output_tokens > 1)
    order = goes_on[np.argsort(there_s[goes_on], kind="stable")]
    decode = None
    if order.size:
        moved = Requests(there_s[order], requests.n_prompt_tokens[order], requests.n_output_tokens[order], origin=requests.origin)
        decode = run_rule(moved, scheduler.decode_rule(geometry.n_layers), decode_cost, limits, seed=seed)
        finish_s[order] = decode.finish_s
    return DisaggregatedRun(prefill, decode, finish_s)

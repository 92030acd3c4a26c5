"""Keys and values in the loop: what a KV policy keeps of every recorded request, and the room that it shares with the experts.

What is kept of a request does not depend on the schedule, so it is a track: computed once per tape and policy by the KV engine
(replay/kv), and read by position. The room is a ledger of one tier: experts are elastic between a floor and all of it, keys and
values and layered prefill's hidden states evict them, and where that is not enough a cut prompt, or the newest decode, loses
its KV.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.rates import at
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats
from tokentape.policies.kernels import F64, F64_2D, F64_3D, I64, I64_2D, float64, int64, kernel, total, tuple_of, void
from tokentape.policies.kv.quest import PAGE_TOKENS, Quest
from tokentape.policies.kv.recompute import PAIRS, X_TOKENS
from tokentape.policies.kv.rule import KVPolicy
from tokentape.policies.kv.storage import STORAGES, QuaRot
from tokentape.policies.kv.streaming import Full, Streaming
from tokentape.policies.protocol import CACHE
from tokentape.policies.serving import BatchRule
from tokentape.policies.slots import OPTIONS, System
from tokentape.replay.kv.replay import kept_of, widths_of
from tokentape.replay.serving import state as st
from tokentape.replay.serving.workload import Requests
from tokentape.replay.system.events import SHRINKS
from tokentape.replay.system.recorded import Recorded
from tokentape.replay.transformer import ACTIVATION, kv_token_bytes
from tokentape.warehouse.formats import bytes_per_value
from tokentape.warehouse.geometry import Geometry

if TYPE_CHECKING:
    from tokentape.replay.serving.run import Limits
    from tokentape.replay.system.experts import ExpertSlots

# Entries of `numbers` (N_NUMBERS,). ROOM: bytes that experts and KV share, 0: they do not. Bytes of a token's KV in all layers,
# in those without and with a window; of its hidden state, 0 where it does not outlive an iteration; what a prompt's token is
# admitted by, and how many of them fit beside the experts' floor. REFRESHED: most bytes of KV that lie where memory is refreshed.
# Then what the run makes: KV now and at its peak, bytes that decodes read, refreshed bytes x seconds.
ROOM, TOKEN, PER_CONTEXT, PER_CONTEXT_W, HIDDEN, UNIT, FITTING, REFRESHED, HELD, PEAK, READ, BYTE_S, N_NUMBERS = range(13)
# Columns of a track, and of a layer's row of the cost's table: what a decode reads in keys and values of whole tokens, the tokens
# that it attends to (means over the KV heads), those whose layer input is multiplied anew.
N_TRACK = 3
# Columns of the recorded iterations: bytes of KV, of hidden states, of room for experts, of experts that lie in it beforehand.
N_OF_ITERATION = 4

# numbers; track (rows, layers, N_TRACK) of the tape, or empty; bytes (rows,) in all layers that are held, and that are read;
# first_row (n,) of a request; of_iteration (i, N_OF_ITERATION).
KV = tuple_of(F64, F64_3D, F64, F64, I64, F64_2D)


@kernel(float64(int64, I64_2D, I64, KV), allocates=False)
def _held(at, requests, state, kv):  # type: ignore[no-untyped-def]
    """Bytes of the decodes' KV in iteration `at`, its own tokens included."""
    numbers, track, held, _, first_row, _ = kv
    if track.shape[0] == 0:
        return state[st.CONTEXT] * numbers[PER_CONTEXT] + state[st.CONTEXT_W] * numbers[PER_CONTEXT_W]
    n_bytes = 0.0
    r = state[st.OLDEST]
    while r >= 0:
        n_bytes += held[first_row[r] + st.input_of(r, at, requests)]
        r = requests[r, st.NEWER]
    return n_bytes


@kernel(float64(int64, I64_2D, I64, I64, int64, KV), allocates=False)
def _others(hidden, requests, state, members, n_members, kv):  # type: ignore[no-untyped-def]
    """Bytes of drafts' KV, of prompts in flight, whole, and of the hidden states of so many tokens."""
    tokens = state[st.N_NODES]
    for i in range(n_members):
        tokens += requests[members[i], st.TARGET]
    r = state[st.PARTIAL]
    while r >= 0:
        tokens += requests[r, st.TARGET]
        r = requests[r, st.REQUEUED_NEXT]
    return tokens * kv[0][TOKEN] + hidden * kv[0][HIDDEN]


@kernel(int64(int64, int64, int64, I64_2D, I64, I64, int64, KV), allocates=False)
def reserve(needed, at, hidden, requests, state, members, n_members, kv):  # type: ignore[no-untyped-def]
    """Room that iteration `at` takes before a batch is formed, in prompt tokens; state[FREE] is then all of it. `needed` where KV
    has its own room. hidden: tokens of a batch between its first and last group of layers."""
    numbers = kv[0]
    if numbers[ROOM] == 0.0:
        return needed
    state[st.FREE] = int64(numbers[FITTING])
    n_bytes = _held(at, requests, state, kv) + _others(hidden, requests, state, members, n_members, kv)
    return int64(np.ceil(n_bytes / numbers[UNIT]))


@kernel(void(int64, int64, I64_2D, I64, I64, int64, F64_2D, int64, SHRINKS, CACHE, KV), allocates=False)
def serve_kv(at, hidden, requests, state, members, n_members, table, first, shrink, cache, kv):  # type: ignore[no-untyped-def]
    """The KV of iteration `at`: experts give way to it, and entries of `table`, from `first` on, say what decodes read."""
    capacity = cache.capacity
    numbers, track, _, reads, first_row, of_iteration = kv
    read = _held(at, requests, state, kv)
    held = read + _others(0, requests, state, members, n_members, kv)
    numbers[HELD], numbers[PEAK] = held, max(numbers[PEAK], held)
    if numbers[ROOM] > 0.0:
        for c in range(capacity.shape[0]):
            capacity[c] = int64(numbers[ROOM] - held - hidden * numbers[HIDDEN]) // capacity.shape[0]
        shrink(cache)
    if track.shape[0] > 0:
        read = 0.0
        for layer in range(track.shape[1]):
            table[layer, first : first + N_TRACK] = 0.0
        r = state[st.OLDEST]
        while r >= 0:
            row = first_row[r] + st.input_of(r, at, requests)
            read += reads[row]
            for layer in range(track.shape[1]):
                for i in range(N_TRACK):
                    table[layer, first + i] += track[row, layer, i]
            r = requests[r, st.NEWER]
    numbers[READ] += read
    if at < of_iteration.shape[0]:
        of_iteration[at, 0], of_iteration[at, 1] = held, hidden * numbers[HIDDEN]
        of_iteration[at, 2], of_iteration[at, 3] = total(capacity), total(cache.used)


def no_kv() -> tuple[Any, ...]:
    """Of a run whose keys and values nothing decides, as type KV says."""
    return np.zeros(N_NUMBERS), np.zeros((0, 0, N_TRACK)), *np.zeros((2, 0)), np.zeros(0, np.int64), np.zeros((0, N_OF_ITERATION))


@dataclass(eq=False)
class KVSlots:
    """What a system keeps of keys and values for `requests` of a tape. end: of the machine's ranges. room_bytes: of the
    residency, floor_bytes: of it for experts alone, where KV shares it (`share`). by_profile: tiers that the cost profile
    refreshes by what they hold."""

    recorded: Recorded
    requests: Requests
    system: System
    machine: HardwareSpec
    rule: BatchRule
    end: str = "value"
    room_bytes: int = 0
    floor_bytes: int = 0
    by_profile: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.system.sliced is not None and self.system.flag("residency", "share_kv"):
            raise ValueError(f"system {self.system.name}: SliceMoE's slices keep their room; leave residency.share_kv out")
        self.track = track_of(self.recorded, self.system)

    @property
    def kv_frac(self) -> float:
        """Bytes of what is kept over those of 16-bit keys and values."""
        return bits_of(self.system, self.recorded.geometry.head_dim) / 16.0

    @property
    def tier(self) -> str:
        """Where keys and values lie first."""
        return self.machine.roles.kv_cache or self.machine.roles.kv_home

    @property
    def shares(self) -> bool:
        """KV and experts have one room: it is asked for, and both lie in one tier."""
        return self.system.flag("residency", "share_kv") and self.tier == self.machine.roles.expert_cache

    @property
    def refresh_w_per_byte(self) -> float:
        """Of what is held where memory is refreshed, at the system's intervals; without a policy at the machine's, where the
        profile goes by what is held, else 0. Raises ValueError for an interval that is not above 0."""
        tier, policy = self.machine.tiers[self.tier], self.system.refresh
        if policy is None or tier.refresh_j is None:
            return tier.refresh_w(self.end) / tier.capacity_bytes.value * (self.tier in self.by_profile)
        mean_us = policy.harmonic_mean_us
        if not (isinstance(mean_us, float | int) and mean_us * 1e-6 > 0.0):
            raise ValueError(f"{type(policy).__name__}.harmonic_mean_us is {mean_us!r}; it must be a number of us above 0")
        return float(at(tier.refresh_j, self.end) / tier.capacity_bytes.value / (mean_us * 1e-6))

    @property
    def replaced_w(self) -> float:
        """Refresh of a whole tier, in place of which only what is held is refreshed."""
        tier = self.machine.tiers[self.tier]
        return tier.refresh_w(self.end) * self.machine.n_devices if self.refresh_w_per_byte else 0.0

    @property
    def refresh_j(self) -> float:
        """Of the run."""
        return float(self.numbers[BYTE_S]) * self.refresh_w_per_byte

    def share(self, slots: ExpertSlots, limits: Limits) -> Limits:
        """Takes the residency's room for both, where asked; limits then are KV blocks of one token. The floor of experts is one
        layer's largest event. Raises ValueError naming a request that never fits beside it."""
        self.room_bytes = slots.budget_bytes
        if not self.shares:
            return limits
        geometry, requests = self.recorded.geometry, self.requests
        longest = np.sort(requests.n_prompt_tokens)[-limits.max_seqs :]
        batch = min(longest.sum(), max(longest[-1], self.rule.budget_tokens * self.machine.data_parallel))
        tokens = longest.size + int(batch)
        caches = len(slots.sizes) if self.system.option("residency", "scope") == "per-layer" else 1
        n_floor = max(min(geometry.n_experts, geometry.top_k * tokens), geometry.top_k * caches)
        self.floor_bytes = n_floor * max(slots.sizes)
        n_tokens, needed = int(self._numbers()[FITTING]), requests.n_prompt_tokens + requests.n_output_tokens - 1
        if needed.max() > n_tokens:
            first = int(np.argmax(needed > n_tokens))
            raise ValueError(
                f"system {self.system.name}, request {first}: keys and values of its {needed[first]} tokens never fit; beside a "
                f"layer's largest event of experts ({self.floor_bytes} B) residency.budget {self.room_bytes} B leaves room for "
                f"{n_tokens}; give more, or share_kv = false"
            )
        return replace(limits, kv_blocks=n_tokens, block_tokens=1)

    def arguments(self, n_iterations: int) -> tuple[Any, ...]:
        """Of a run that starts now, as type KV says. n_iterations: that are recorded."""
        self.numbers, self.of_iteration = self._numbers(), np.zeros((n_iterations, N_OF_ITERATION))
        first = self.recorded.first[:-1][self.requests.tape_request]
        track = np.zeros((0, 0, N_TRACK)) if self.track is None else self.track
        of_first, others = self._layer_bytes([self.recorded.geometry.of_layer(layer) for layer in range(track.shape[1])])
        reads = (track[:, :, 0] * others).sum(axis=1) * of_first
        held = reads if self.track is None else (held_of(self.recorded, self.system.kv, track) * others).sum(axis=1) * of_first
        return self.numbers, track, held, reads, first, self.of_iteration

    def _layer_bytes(self, alike: list[Geometry]) -> tuple[float, Floats]:
        """A token's keys and values in a layer like the first of these, on all that share it, and those of each over it."""
        found = np.array([self.kv_frac * kv_token_bytes(of, self.machine) * self.machine.tensor_parallel for of in alike])
        return (float(found[0]), found / (found[0] or 1.0)) if found.size else (0.0, found)

    def _numbers(self) -> Floats:
        geometry, made = self.recorded.geometry, np.zeros(N_NUMBERS)
        windows = np.array([window for window, _ in geometry.caches])
        of_first, others = self._layer_bytes([of for _, of in geometry.caches])
        of_attending, each = self._layer_bytes([geometry.of_layer(layer) for layer in geometry.attending])
        made[TOKEN] = each.sum() * of_attending
        made[PER_CONTEXT], made[PER_CONTEXT_W] = others[windows == 0].sum() * of_first, others[windows > 0].sum() * of_first
        is_layered = max(groups for _, groups in self.rule.steps) > 1
        made[HIDDEN] = geometry.hidden * bytes_per_value(ACTIVATION) * is_layered
        made[UNIT] = made[TOKEN] + made[HIDDEN]
        if self.shares:
            made[ROOM], made[FITTING] = self.room_bytes, max(0.0, (self.room_bytes - self.floor_bytes) // made[UNIT])
        tier = self.machine.tiers[self.tier]
        made[REFRESHED] = tier.capacity_bytes.value * self.machine.n_devices if tier.refresh_j else 0.0
        return made

    def outside(self, n_restarts: int) -> list[str]:
        """What the run could not do as asked, one sentence each."""
        found = []
        if self.system.flag("residency", "share_kv") and not self.shares:
            found.append(
                f"{self.machine.name} keeps keys and values in {self.tier}, not beside cached experts: nothing is shared"
            )
        if self.system.refresh is not None and not self.refresh_w_per_byte:
            found.append(f"{self.machine.name} has no memory to refresh where keys and values lie")
        if self.track is not None and n_restarts:
            found.append(f"{n_restarts} restarts read what was kept at their positions: no tape holds scores of a prompt so long")
        return found


def bits_of(system: System, head_dim: int) -> float:
    """Of a kept key's or value's number. Raises ValueError for a storage that does not exist, and for options without effect."""
    storage, bits = system.option("kv", "storage"), system.option("kv", "bits")
    if system.option("kv", "rate") or system.flag("kv", "resample"):
        raise ValueError(f"system {system.name}: bits are lost inside a model only; leave kv.rate and kv.resample out")
    if storage not in STORAGES:
        raise ValueError(f"system {system.name}: kv.storage {storage!r} is unknown; choose {', '.join(STORAGES)}")
    if storage != "quarot":
        if bits != OPTIONS["kv"]["bits"]:
            raise ValueError(f"system {system.name}: kv.bits {bits} goes with kv.storage = quarot, not with {storage}")
        return 16.0
    if not bits.isdigit():
        raise ValueError(f"system {system.name}: kv.bits {bits!r} must be a whole number of bits, 1 to 8")
    return QuaRot(int(bits)).bits_per_value(head_dim)


def _seen(recorded: Recorded) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Tokens (rows,) up to each row's own, those of them (rows, layers) that its layers see, and the layers' windows, 0: none."""
    windows = np.array(recorded.geometry.windows_by_layer)
    seen = np.concatenate([np.arange(1.0, n + 1) for n in recorded.n_inputs])
    whole = np.minimum(seen[:, None], np.where(windows > 0, windows, np.inf))
    whole[:, list(recorded.geometry.without_mixing)] = 0.0
    return seen, whole, windows


def held_of(recorded: Recorded, policy: KVPolicy, track: Floats) -> Floats:
    """(rows, layers) keys and values that lie in memory, of whole tokens: what is read, unless pages of all of them are."""
    whole = _seen(recorded)[1]
    if not policy.reads_pages:
        return np.asarray(track[:, :, 0])
    whole[:, list(recorded.geometry.attending)] += np.ceil(whole / PAGE_TOKENS)[:, list(recorded.geometry.attending)]
    return whole


def track_of(recorded: Recorded, system: System) -> Floats | None:
    """(rows, layers, N_TRACK) of what the system's KV policy has decodes read, its own token included; None where all is. Raises
    ValueError for a policy that ranks by attention on a tape without."""
    policy = system.kv
    if policy is None or isinstance(policy, Full):
        return None
    if policy in recorded.tracks:
        return recorded.tracks[policy]
    geometry, seen, whole, windows = recorded.geometry, *_seen(recorded)
    track = np.zeros((seen.size, geometry.n_layers, N_TRACK))
    track[:, :, :2] = whole[:, :, None]
    decoded = ~recorded.is_prompt
    if isinstance(policy, Quest):
        for layer in (layer for layer in geometry.attending if layer >= policy.dense_layers):
            n_read, n_scored = policy.reads(seen[decoded].astype(np.int64), int(windows[layer]))
            track[decoded, layer, :2] = (n_read + n_scored)[:, None]
    elif policy.weigh is Streaming.weigh:
        for layer in geometry.attending:
            track[decoded, layer, :2] = np.minimum(whole[decoded, layer], policy.limits[0] + 1.0)[:, None]
    elif recorded.attention is None:
        raise ValueError(
            f"system {system.name}: {type(policy).__name__} ranks tokens by attention, and tape {recorded.trace_id} holds none; "
            "record it with --attention full, or take kv = streaming"
        )
    else:
        logged, widths = kept_of(recorded.attention, policy), widths_of(recorded.attention, "physical")
        for request, n_prompt, first, last in zip(
            recorded.request_ids.tolist(), recorded.n_prompt, recorded.first, recorded.first[1:], strict=False
        ):
            n_steps = last - first - n_prompt
            kept = logged.get(request, np.full((0, len(geometry.attending), 5), -1))[n_prompt - 1 :][:n_steps]
            if len(kept) < n_steps or np.any(kept < 0):
                raise ValueError(
                    f"tape {recorded.trace_id}: request {request} lacks attention of some of its {n_steps} decoded tokens; "
                    "record it again with --attention full, or take kv = streaming"
                )
            as_x, as_kv = widths.bytes_of(kept)
            read = (as_x + as_kv) / (widths.head_bytes * widths.n_heads)
            own = np.stack([read + 1.0, kept[:, :, PAIRS] / widths.n_heads + 1.0, kept[:, :, X_TOKENS]], axis=-1)
            track[first + n_prompt : last, list(geometry.attending)] = own
    recorded.tracks[policy] = track
    return track

"""Time and energy of decode steps on Kelle's systems: their decisions as rows of work, priced by the clock under a cost profile.

Weights are 8 bits, activations and KV 16. What the paper counts of the rows, and what of them waits for what, stands in
hw/profiles/kelle.toml. Not counted: the time of refresh, which the paper hides. Where the paper speaks of dense models, a mixture
of experts reads the experts that its batch chooses.

A popular token is held once for all heads, in the smaller of two forms: its layer input, from which K and V are recomputed, or,
where KV heads are few, K and V themselves. Other tokens are held by every head that keeps them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tokentape.hw.clock import BACKGROUND, StepCost, background_w, clock
from tokentape.hw.held import by_tier
from tokentape.hw.profile import Profile
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats, Rows, Values
from tokentape.hw.work import Work as Counted
from tokentape.replay.kelle.systems import Accounting, System, Work
from tokentape.replay.tokens import Tokens, blocks_of
from tokentape.replay.transformer import WEIGHTS as READ
from tokentape.replay.transformer import rebuilt_of, resident, staged, steps_of, weight_bytes
from tokentape.warehouse.geometry import Geometry

INPUT_BYTES = 2  # of an element of a layer input
SCORE_BYTES = 0.5  # 4 bits (section 5.3)
WEIGHTS = "int8"
PARTS = ("dram_j", "weight_sram_j", "kv_j", "refresh_j", "array_j", "leakage_j")
Asked = tuple[System, Work]
Held = Callable[[Floats], tuple[Floats, Floats]]  # what is held once, by the share of tokens kept: Shares.once
PROJECTIONS = {"baseline": "QKV", "kelle": "KQV"}  # in the order of the schedules, before the passes over the kept K and V
_BACKGROUND = {"static": "array_j", "leakage": "leakage_j", "refresh": "refresh_j"}


@dataclass(frozen=True)
class Step:
    """A decode step of the batch. joules: by part; kv_read_bytes: from the chip or DRAM, kv_dram_bytes of them from DRAM."""

    seconds: float
    joules: dict[str, float]
    weight_bytes: float
    kv_read_bytes: float
    kv_dram_bytes: float
    overflow_bytes: float
    is_feasible: bool
    notes: tuple[str, ...] = ()

    @property
    def energy_j(self) -> float:
        """Of all parts."""
        return sum(self.joules.values())


def decode_steps(geometry: Geometry, asked: Sequence[Asked], held: Held, profile: Profile, accounting: Accounting) -> list[Step]:
    """Of a model on systems of one machine; each is the mean over its lengths. held: by those that recompute."""
    machine, made = asked[0][0].machine, step_rows(geometry, asked, held, accounting)
    cost, far = clock(made, machine, profile, ends=("value",)), bytes_of(made, "kv_read", "kv_home")
    profile.refuse_no_time(float(cost.seconds.value.min()))
    by_step = {
        "seconds": cost.seconds.value,
        "weight_bytes": made.total(weight_bytes(made)),
        "kv_read_bytes": bytes_of(made, "kv_read", "kv_cache") + far,
        "kv_dram_bytes": far,
        **joules_of(cost, machine),
    }
    by_step["refresh_j"] = by_step["refresh_j"] + transient_j(geometry, asked, cost, machine, accounting)
    means = {name: values.reshape(len(asked), -1).mean(axis=1).tolist() for name, values in by_step.items()}
    steps, experts = [], len(geometry.moe_layers) * geometry.n_experts * geometry.expert_params
    absent = () if machine.roles.kv_cache else (f"no KV memory: keys and values lie in {machine.roles.kv_home}",)
    weights = {"weights_home": geometry.non_expert_params, "expert_home": experts}
    for i, (system, work) in enumerate(asked):
        kept = min(work.n_tokens, budget_of(system, work))  # at their most
        held_bytes = weights | {"kv_home": work.batch * kept_bytes(geometry, accounting, kept, work.kv_bits)}
        overflow_bytes = sum(max(0.0, sum(what.values()) - room) for room, what in by_tier(machine, held_bytes).values())
        overflow = (f"dram_overflow: {overflow_bytes / 1e9:.1f} GB more than the DRAM holds",) if overflow_bytes else ()
        steps.append(
            Step(
                joules={part: means[part][i] for part in PARTS},
                **{name: values[i] for name, values in means.items() if name not in PARTS},
                overflow_bytes=overflow_bytes,
                is_feasible=not (accounting.must_fit_dram and overflow_bytes),
                notes=(*_nothing_once(geometry, system, work, accounting), *absent, *overflow),
            )
        )
    return steps


def step_rows(geometry: Geometry, asked: Sequence[Asked], held: Held, accounting: Accounting) -> Counted:
    """Rows of the steps."""
    machine = asked[0][0].machine
    lengths = accounting.lengths([work for _, work in asked]).ravel()
    told = []
    for system, work in asked:
        shares = system.recomputes and not _nothing_once(geometry, system, work, accounting)
        budget = budget_of(system, work)
        scores = system.scans * work.batch * geometry.n_heads * kept_tokens(geometry, min(work.n_tokens, budget), accounting)
        told.append((work.batch, work.kv_bits / 16, budget, shares, scores))  # scores: what a scan in software reads
    batch, bits, budget, shares, scores = np.repeat(np.array(told, float), accounting.n_lengths, axis=0).T
    n_kept, once = np.minimum(lengths, budget), once_elements(geometry)
    pairs, tokens_once = (shares * of for of in held(n_kept / np.maximum(lengths, 1.0)))
    all_elements = kv_elements(geometry, accounting)
    stored = bits * (1.0 - pairs) + tokens_once * once * np.where(once < geometry.hidden, bits, 1.0) / all_elements
    tokens = Tokens(decodes=batch, context=lengths, budget=budget, kv_frac=kv_frac(geometry, accounting) * stored)
    elements = batch * kept_tokens(geometry, n_kept, accounting) * all_elements
    made = rows_of(geometry, machine, tokens, accounting)
    is_written = not (asked[0][0].is_edram and accounting.streamed_bypasses_edram)
    passing = fed(machine, made, bytes_of(made, "kv_read", "kv_home"), elements, is_written)
    rows = [*made.rows, passing, *_scan(machine, made, scores)]
    if accounting.charges_recompute and once == geometry.hidden and np.any(tokens_once):
        blocks = blocks_of(seen(geometry, accounting))
        most = np.where(blocks.windows > 0, blocks.windows, np.inf)[blocks.attending]
        anew = (batch * tokens_once)[:, None] * np.minimum(n_kept[:, None], most)
        rows.append(rebuilt_of(geometry, machine, anew, blocks.attending))
    rows += inputs(machine, made)
    return replace(made, rows=tuple(rows), held_bytes={"kv_cache": elements * bits * 2})


def inputs(machine: HardwareSpec, work: Counted) -> tuple[Rows, ...]:
    """What a systolic array reads of 16-bit inputs: one for every column of weights, or of keys and values, that it meets."""
    columns = machine.compute.n_columns
    if not machine.roles.activations or columns is None:
        return ()
    macs = sum(work.by_cell(rows, rows.ops) for rows in work.rows if rows.kind in (*READ, "kv_read")) / 2.0
    n_bytes = INPUT_BYTES * macs / columns.value
    told, at = "inputs into the array", np.arange(work.n_blocks)
    return (Rows(kind="activations", name=told, tier="activations", blocks=at, bytes=n_bytes),)


def transient_j(
    geometry: Geometry, asked: Sequence[Asked], cost: StepCost, machine: HardwareSpec, accounting: Accounting
) -> Floats:
    """(S,) joules of refreshing what is alive of a layer's data, where the profile does that: every tensor's bytes for as long as
    it lives in the placed step."""
    tier = machine.tiers.get(cost.profile.refresh["transient"].tier) if "transient" in cost.profile.refresh else None
    if tier is None:
        return np.zeros(cost.seconds.value.size)
    n, batch = accounting.n_lengths, np.repeat([work.batch for _, work in asked], accounting.n_lengths)
    alive, schedules = np.zeros(batch.size), np.array(["kelle" if system.schedules else "baseline" for system, _ in asked])
    for schedule in np.unique(schedules):
        is_its = np.repeat(schedules == schedule, n)
        for tensor, (_, seconds) in lives(geometry, cost, schedule).items():
            alive += is_its * batch * _width(geometry, tensor, kv_elements(geometry, accounting)) * INPUT_BYTES * seconds
    seconds = cost.seconds.value
    return np.asarray(background_w(machine, cost.profile, held_bytes={"transient": alive / seconds})["refresh"] * seconds)


def lives(geometry: Geometry, cost: StepCost, schedule: str) -> dict[str, tuple[Floats, Floats]]:
    """By tensor (X, the layer's input, and Q, K, V): when it is made and how long it lives, (S,) seconds of all layers together.

    Section 6: three projections, by the schedule's order, then K and V of the kept tokens pass. X lives until the last
    projection, Q and K until K has passed, V until V has; Kelle consumes the new token's K and V as they come. A projection takes
    its weights' part of the placed step, a pass half of the keys' and values'."""
    placed, total = cost.at_end["value"], cost.work.total
    of_weights, of_kv = (
        sum((total(values) for lane in lanes for values in placed.parts(lane).values()), np.zeros(1))
        for lanes in (("w", "stage"), ("kv", "chip", "through", "beside", "recompute"))
    )
    inputs, kv = geometry.hidden * geometry.n_layers, geometry.kv_elements_per_token_layer
    read, per_pass, now = total(weight_bytes(cost.work)), of_kv / 2, np.zeros(cost.work.n_steps)
    made = {"X": now}
    for tensor in PROJECTIONS[schedule]:
        now = now + of_weights * (inputs * _width(geometry, tensor, kv)) / read
        made[tensor] = now
    ends = {"X": now, "Q": now + per_pass, "K": now + per_pass, "V": now + 2 * per_pass}
    if schedule == "kelle":
        ends |= {tensor: made[tensor] for tensor in "KV"}
    return {tensor: (made[tensor], ends[tensor] - made[tensor]) for tensor in "XQKV"}


def _width(geometry: Geometry, tensor: str, kv_elements: int) -> float:
    """Elements of a token in X, Q, K or V."""
    return {"X": geometry.hidden, "Q": geometry.n_heads * geometry.head_dim}.get(tensor, kv_elements / 2)


def once_elements(geometry: Geometry) -> int:
    """Of a token that is held once for all heads in a layer: its input, or its keys and values where those are fewer."""
    return min(geometry.hidden, geometry.kv_elements_per_token_layer)


def prefill(geometry: Geometry, system: System, work: Work, profile: Profile, accounting: Accounting) -> tuple[float, float]:
    """Seconds and joules of the batch's prompts. The paper has no model of them: all of this is assumed, and reported only.

    Weights stream once for all of them; activations stay on the chip; attention is causal; kept KV that does not fit on the chip
    is written to DRAM. Work and transfers run side by side."""
    machine, n_prompt, budget = system.machine, work.n_context_tokens, budget_of(system, work)
    frac = kv_frac(geometry, accounting) * work.kv_bits / 16
    tokens = Tokens(prompt=work.batch * n_prompt, prompts=work.batch, budget=budget, kv_frac=frac)
    made = rows_of(geometry, machine, tokens, accounting)
    held = {"kv_cache": work.batch * kept_bytes(geometry, accounting, min(n_prompt, budget), work.kv_bits), "transient": np.inf}
    through = fed(machine, made, bytes_of(made, "kv_write", "kv_home"), np.zeros(1), is_written=False)
    rows = tuple(replace(one, phase="prefill") for one in (*made.rows, through))
    cost = clock(replace(made, rows=rows, held_bytes=held), machine, profile, ends=("value",))
    return float(cost.seconds.value[0]), float(cost.joules.value[0])


def rows_of(geometry: Geometry, machine: HardwareSpec, tokens: Tokens, accounting: Accounting) -> Counted:
    """The transformer's rows, experts as the step's tokens choose them."""
    geometry = seen(geometry, accounting)
    blocks, n_tokens = blocks_of(geometry), np.atleast_1d(np.asarray(tokens.decodes) + tokens.prompt)[:, None]
    active = geometry.n_experts * (1.0 - (1.0 - geometry.top_k / max(1, geometry.n_experts)) ** n_tokens)
    experts = resident(geometry, machine, blocks, n_tokens, active, WEIGHTS)
    return staged(steps_of(geometry, machine, tokens, experts, blocks, WEIGHTS), machine)


def fed(machine: HardwareSpec, work: Counted, far_bytes: Floats, elements: Floats, is_written: bool) -> Rows:
    """Keys and values on their way into the array: those from DRAM pass through the KV memory, or beside its cells."""
    is_there = bool(machine.roles.kv_cache)
    return Rows(
        kind="feed",
        name="keys and values into the array",
        tier="kv_cache" if is_there else "",
        target="kv_cache" if is_there and is_written else "",
        engine="main",
        blocks=np.array([work.n_blocks - 1]),
        bytes=far_bytes[:, None] if is_there else 0.0,
        count=elements[:, None],
    )


def bytes_of(work: Counted, kind: str, tier: str) -> Floats:
    """(S,) of rows of a kind in a tier."""
    found = (work.total(work.by_cell(rows, rows.bytes)) for rows in work.rows if rows.kind == kind and rows.tier == tier)
    return sum(found, np.zeros(work.n_steps))


def joules_of(cost: StepCost, machine: HardwareSpec) -> dict[str, Floats]:
    """By part, in the order of PARTS: what is neither a memory of the chip nor computed is the DRAM's."""
    roles, background = machine.roles, _BACKGROUND
    on_chip = {f"tiers.{roles.stage}": "weight_sram_j", f"engines.{roles.main}": "array_j"}
    on_chip |= {f"tiers.{tier}": "kv_j" for tier in (roles.kv_cache, roles.activations)}
    found = dict.fromkeys(PARTS, np.zeros(cost.seconds.value.size))
    for part, band in (cost.joules_of | cost.background_of).items():
        name = background.get(part) or on_chip.get(part, "dram_j")
        found[name] = found[name] + (0.0 if part == BACKGROUND else band.value)
    return found


def kv_elements(geometry: Geometry, accounting: Accounting) -> int:
    """Elements that a token caches in a layer: K and V, or the latent of latent attention, which has no heads to miscount."""
    if accounting.true_gqa or geometry.kv_lora_rank:
        return geometry.kv_elements_per_token_layer
    return 2 * geometry.n_heads * geometry.head_dim


def kv_frac(geometry: Geometry, accounting: Accounting) -> float:
    """Elements that are counted over those that the model caches."""
    return kv_elements(geometry, accounting) / geometry.kv_elements_per_token_layer


@lru_cache
def seen(geometry: Geometry, accounting: Accounting) -> Geometry:
    """With its sliding windows, or as if it had none."""
    return geometry.without_windows() if geometry.sliding_windows and not accounting.cuts_windows else geometry


def kept_tokens(geometry: Geometry, n_kept: Values, accounting: Accounting) -> Floats:
    """Of a request that keeps so many, over all layers: those with a window show no more, a state is as large as some."""
    windows = _windows(seen(geometry, accounting)).items()
    return np.asarray(sum(n * np.minimum(n_kept, window or np.inf) for window, n in windows))


@lru_cache
def _windows(geometry: Geometry) -> Counter[int]:
    """How many caches show so many tokens; 0: all."""
    return Counter(window for window, _ in geometry.caches)


def kept_bytes(geometry: Geometry, accounting: Accounting, n_kept: float, kv_bits: float = 16.0) -> float:
    """Of so many tokens of a request, all layers. Scales of quantised elements are not counted."""
    return float(kept_tokens(geometry, n_kept, accounting)) * kv_elements(geometry, accounting) * kv_bits / 8


def budget_of(system: System, work: Work) -> float:
    """Tokens that the system keeps of a request."""
    return float(work.budget_tokens) if system.evicts and work.budget_tokens else np.inf


def _nothing_once(geometry: Geometry, system: System, work: Work, accounting: Accounting) -> tuple[str, ...]:
    """Why a system that recomputes does not: neither form of a token is smaller than K and V of all heads as they are counted."""
    elements, once = kv_elements(geometry, accounting), once_elements(geometry)
    once_bits = work.kv_bits if once < geometry.hidden else 8 * INPUT_BYTES
    if once * once_bits < elements * work.kv_bits or not system.recomputes:
        return ()
    return (f"no recomputation: a layer input of {geometry.hidden} elements is no smaller than K and V of {elements}",)


def _scan(machine: HardwareSpec, work: Counted, scores: Floats) -> tuple[Rows, ...]:
    """Scores read one by one for the least, which waits for nothing else (assumed)."""
    if not scores.any():
        return ()
    tier = "kv_cache" if machine.roles.kv_cache else "kv_home"
    last, n = np.array([work.n_blocks - 1]), scores[:, None]
    return (Rows(kind="scan", name="scores", tier=tier, engine="main", blocks=last, bytes=SCORE_BYTES * n, count=n),)

"""Time and energy of decode steps on Kelle's systems: their decisions as rows of work, priced by the clock under a cost profile.

Weights are 8 bits, activations and KV 16. What the paper counts of the rows, and what of them waits for what, stands in
hw/profiles/kelle.toml. Not counted: the time of refresh, which the paper hides. Where the paper speaks of dense models, a mixture
of experts reads the experts that its batch chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from tokentape.hw.clock import BACKGROUND, StepCost, clock
from tokentape.hw.profile import Profile
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats, Rows, stacked
from tokentape.hw.work import Work as Counted
from tokentape.replay.kelle.systems import PAPER, Accounting, System, Work
from tokentape.replay.transformer import Tokens, blocks_of, resident, staged, steps_of, weight_bytes
from tokentape.warehouse.geometry import Geometry

INPUT_BYTES = 2  # of an element of a layer input
SCORE_BYTES = 0.5  # 4 bits (section 5.3)
WEIGHTS = "int8"
PARTS = ("dram_j", "weight_sram_j", "kv_j", "refresh_j", "array_j", "leakage_j")
Asked = tuple[Geometry, System, Work]
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


def decode_step(
    geometry: Geometry, system: System, work: Work, recomputed_frac: float, profile: Profile, accounting: Accounting = PAPER
) -> Step:
    """One decode step of the batch."""
    return decode_steps([(geometry, system, work)], recomputed_frac, profile, accounting)[0]


def decode_steps(asked: Sequence[Asked], recomputed_frac: float, profile: Profile, accounting: Accounting = PAPER) -> list[Step]:
    """Of systems on one machine under one profile, those of a model together; each is the mean over its lengths. recomputed_frac:
    of the KV reads, by those that recompute."""
    machine = asked[0][1].machine
    made = stacked([_rows(list(of), recomputed_frac, accounting) for _, of in groupby(asked, key=lambda one: id(one[0]))])
    cost, far = clock(made, machine, profile, ends=("value",)), bytes_of(made, "kv_read", "kv_home")
    by_step = {
        "seconds": cost.seconds.value,
        "weight_bytes": made.total(weight_bytes(made)),
        "kv_read_bytes": bytes_of(made, "kv_read", "kv_cache") + far,
        "kv_dram_bytes": far,
        **joules_of(cost, machine),
    }
    means = {name: values.reshape(len(asked), -1).mean(axis=1).tolist() for name, values in by_step.items()}
    roles, steps = machine.roles, []
    absent = () if roles.kv_cache else (f"no KV memory: keys and values lie in {roles.kv_home}",)
    for i, one in enumerate(asked):
        overflow_bytes = _overflow_bytes(*one, accounting)
        overflow = (f"dram_overflow: {overflow_bytes / 1e9:.1f} GB more than the DRAM holds",) if overflow_bytes else ()
        steps.append(
            Step(
                joules={part: means[part][i] for part in PARTS},
                **{name: values[i] for name, values in means.items() if name not in PARTS},
                overflow_bytes=overflow_bytes,
                is_feasible=not (accounting.must_fit_dram and overflow_bytes),
                notes=(*_no_recomputation(*one, recomputed_frac, accounting), *absent, *overflow),
            )
        )
    return steps


def _rows(asked: Sequence[Asked], recomputed_frac: float, accounting: Accounting) -> Counted:
    """Rows of steps of one model."""
    geometry, machine = asked[0][0], asked[0][1].machine
    lengths = accounting.lengths([work for *_, work in asked]).ravel()
    told = []
    for _, system, work in asked:
        recomputes = system.recomputes and not _no_recomputation(geometry, system, work, recomputed_frac, accounting)
        told.append((work.batch, work.kv_bits / 16, budget_of(system, work), recomputes, _scores(geometry, system, work)))
    batch, bits, budget, recomputes, scores = np.repeat(np.array(told), accounting.n_lengths, axis=0).T
    share = recomputed_frac * recomputes
    charged = share if accounting.charges_recompute else 0.0 * share
    frac = kv_frac(geometry, accounting) * bits * (1.0 - (share - charged))
    tokens = Tokens(decodes=batch, context=lengths, budget=budget, kv_frac=frac, recomputed=charged)
    elements = batch * np.minimum(tokens.context, budget) * geometry.n_layers * kv_elements(geometry, accounting)
    made = rows_of(geometry, machine, tokens, accounting)
    is_written = not (asked[0][1].is_edram and accounting.streamed_bypasses_edram)
    passing = fed(machine, made, bytes_of(made, "kv_read", "kv_home"), elements, is_written)
    held = {"kv_cache": elements * bits * 2, "transient": np.inf}
    return replace(made, rows=(*made.rows, passing, *_scan(machine, made, scores)), held_bytes=held)


def prefill(
    geometry: Geometry, system: System, work: Work, profile: Profile, accounting: Accounting = PAPER
) -> tuple[float, float]:
    """Seconds and joules of the batch's prompts. The paper has no model of them: all of this is assumed, and reported only.

    Weights stream once for all of them; activations stay on the chip; attention is causal; kept KV that does not fit on the chip
    is written to DRAM. Work and transfers run side by side."""
    machine, n_prompt, budget = system.machine, work.n_context_tokens, budget_of(system, work)
    frac = kv_frac(geometry, accounting) * work.kv_bits / 16
    tokens = Tokens(prompt=work.batch * n_prompt, prompts=work.batch, budget=budget, kv_frac=frac)
    made = rows_of(geometry, machine, tokens, accounting)
    kept_bytes = work.batch * min(n_prompt, budget) * kv_bytes_per_token(geometry, accounting, work.kv_bits)
    through = fed(machine, made, bytes_of(made, "kv_write", "kv_home"), np.zeros(1), is_written=False)
    rows = tuple(replace(one, phase="prefill") for one in (*made.rows, through))
    cost = clock(
        replace(made, rows=rows, held_bytes={"kv_cache": kept_bytes, "transient": np.inf}), machine, profile, ends=("value",)
    )
    return float(cost.seconds.value[0]), float(cost.joules.value[0])


def rows_of(geometry: Geometry, machine: HardwareSpec, tokens: Tokens, accounting: Accounting) -> Counted:
    """The transformer's rows, experts as the step's tokens choose them."""
    if geometry.sliding_windows and not accounting.cuts_windows:
        geometry = geometry.model_copy(update={"sliding_windows": ()})
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
    on_chip = {f"tiers.{roles.stage}": "weight_sram_j", f"tiers.{roles.kv_cache}": "kv_j", f"engines.{roles.main}": "array_j"}
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


def kv_bytes_per_token(geometry: Geometry, accounting: Accounting, kv_bits: float = 16.0) -> float:
    """Of a token, all layers. Scales of quantised elements are not counted."""
    return geometry.n_layers * kv_elements(geometry, accounting) * kv_bits / 8


def budget_of(system: System, work: Work) -> float:
    """Tokens that the system keeps of a request."""
    return float(work.budget_tokens) if system.evicts and work.budget_tokens else np.inf


def _no_recomputation(
    geometry: Geometry, system: System, work: Work, recomputed_frac: float, accounting: Accounting
) -> tuple[str, ...]:
    """Why there is none: what is charged is left out where a layer input is no smaller than K and V."""
    if not (accounting.charges_recompute and system.recomputes and recomputed_frac):
        return ()
    elements = kv_elements(geometry, accounting)
    if geometry.hidden * INPUT_BYTES < elements * work.kv_bits / 8:
        return ()
    return (f"no recomputation: a layer input of {geometry.hidden} elements is no smaller than K and V of {elements}",)


def _scores(geometry: Geometry, system: System, work: Work) -> float:
    """What a scan in software reads in a step: the kept scores of every head."""
    return system.scans * work.batch * geometry.n_layers * geometry.n_heads * min(work.n_tokens, budget_of(system, work))


def _scan(machine: HardwareSpec, work: Counted, scores: Floats) -> tuple[Rows, ...]:
    """Scores read one by one for the least, which waits for nothing else (assumed)."""
    if not scores.any():
        return ()
    tier = "kv_cache" if machine.roles.kv_cache else "kv_home"
    last, n = np.array([work.n_blocks - 1]), scores[:, None]
    return (Rows(kind="scan", name="scores", tier=tier, engine="main", blocks=last, bytes=SCORE_BYTES * n, count=n),)


def _overflow_bytes(geometry: Geometry, system: System, work: Work, accounting: Accounting) -> float:
    """Of weights and of keys and values at their most, what their memories have no room for."""
    machine, roles, held = system.machine, system.machine.roles, dict[str, float]()
    kept = work.batch * min(work.n_tokens, budget_of(system, work))
    for name, n_bytes in (
        (roles.weights_home, geometry.non_expert_params),
        (roles.expert_home, len(geometry.moe_layers) * geometry.n_experts * geometry.expert_params),
        (roles.kv_home, kept * kv_bytes_per_token(geometry, accounting, work.kv_bits)),
    ):
        held[name] = held.get(name, 0.0) + n_bytes
    rooms = (machine.tiers[name].capacity_bytes.value * machine.n_devices for name in held)
    return sum(max(0.0, n_bytes - room) for n_bytes, room in zip(held.values(), rooms, strict=True))

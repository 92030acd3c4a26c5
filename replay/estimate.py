"""One step of a serving engine without a tape of it: a batch of decodes, and a prompt's slice, priced on a machine.

On a GPU with fitted constants, times are those of the operator models (hw/operators); elsewhere an operation takes the longer of
its bytes and its operations at the machine's reached rates, and what starting its kernel takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from tokentape.hw import profile as profiles
from tokentape.hw.calibrate import Fit, of_others
from tokentape.hw.clock import StepCost, clock
from tokentape.hw.held import overfull
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Work
from tokentape.replay.operations import operations_of
from tokentape.replay.passes import beyond, floats_on_integers, of_roofline
from tokentape.replay.tokens import Tokens, blocks_of
from tokentape.replay.transformer import ACTIVATION, resident, steps_of
from tokentape.warehouse.formats import value_bytes
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.model_sizes import kv_bytes, other_bytes


@dataclass(frozen=True, eq=False)
class Estimate:
    """The step's work and cost, and what of it lies outside the range its costs were fitted on, one sentence each."""

    machine: HardwareSpec
    work: Work
    cost: StepCost
    outside: tuple[str, ...]

    def operations(self) -> pl.DataFrame:
        """The operations on one device, in the order they run, layer by layer."""
        return operations_of(self.work, self.cost, self.machine)


def estimate(
    geometry: Geometry,
    machine: HardwareSpec,
    load: Tokens,
    active_experts: float,
    fits: Mapping[str, Fit] | None = None,
    weight_format: str = ACTIVATION,
    profile: str = profiles.PHYSICAL,
    kv_format: str = ACTIVATION,
) -> Estimate:
    """One step. load: decodes, the tokens that each attends to, and those of one prompt from its start. active_experts: distinct
    routed experts per MoE layer, from a tape or a closed form; not used by dense models. fits: constants of this machine's
    operators; without those of a format the roofline. Raises ValueError for no tokens, and for a format or geometry it cannot
    cost."""
    if min(load.decodes, load.prompt) < 0 or not load.decodes + load.prompt:
        raise ValueError(f"a step needs decodes or prompt tokens, got batch {load.decodes} and {load.prompt} prompt tokens")
    if load.decodes and load.context < 1:
        raise ValueError(f"context_tokens must count the token itself, got {load.context}")
    blocks, n_tokens = blocks_of(geometry, by_layer=True), np.array([[float(load.decodes + load.prompt)]])
    experts = resident(geometry, machine, blocks, n_tokens, active_experts, weight_format)
    work = steps_of(geometry, machine, load, experts, blocks, weight_format, kv_format)
    cost = clock(work, machine, profiles.load(profile), fits)
    timed = [fits[rows.operator] for rows in work.rows if rows.operator in fits] if fits else []
    outside = (
        *overfull(machine, _held(geometry, machine, load, weight_format, kv_format)),
        *(floats_on_integers(machine, weight_format) if geometry.moe_layers else ()),
        *((*of_others(machine, timed), *of_roofline(work, fits), *beyond(work, fits)) if fits else ()),
    )
    return Estimate(machine, work, cost, tuple(dict.fromkeys(outside)))


def _held(geometry: Geometry, machine: HardwareSpec, load: Tokens, weight_format: str, kv_format: str) -> dict[str, float]:
    """Bytes by role: all experts where the step reads them."""
    experts = value_bytes(len(geometry.moe_layers) * geometry.n_experts * geometry.expert_params, weight_format)
    requests = ((load.decodes, load.context), (1, load.prompt))
    kv = sum(float(n) * kv_bytes(geometry, int(tokens), kv_format, machine.tensor_parallel) for n, tokens in requests)
    return {
        "weights_home": other_bytes(geometry, weight_format, ACTIVATION) * machine.data_parallel,
        "expert_cache" if machine.roles.expert_cache else "expert_home": experts,
        "kv_home": kv,
    }

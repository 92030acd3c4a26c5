"""What one decode token of sliced serving costs in closed form, by the paper's profile."""

from __future__ import annotations

import numpy as np

from tokentape.hw import profile as profiles
from tokentape.hw.clock import StepCost, clock
from tokentape.hw.spec import HardwareSpec
from tokentape.replay.passes import fetched
from tokentape.replay.tokens import Tokens, blocks_of
from tokentape.replay.transformer import experts_of, steps_of
from tokentape.warehouse.geometry import Geometry

PROFILE = "slicemoe"
OTHER_FORMAT = "int8"  # everything but the experts (SliceMoE section 2)


def decode_cost(
    geometry: Geometry,
    machine: HardwareSpec,
    read_bytes: float,
    missed_bytes: float,
    n_fetches: float,
    profile: str = PROFILE,
    context_tokens: int = 1,
) -> StepCost:
    """One decode token. read_bytes: of experts, all layers, what is fetched first included; n_fetches: of a layer."""
    blocks, n = blocks_of(geometry, by_layer=True), max(1, len(geometry.moe_layers))
    one, k = np.ones((1, 1)), geometry.top_k
    experts = experts_of(geometry, machine, blocks, one, k * one, k * one, read_bytes / n * one)
    missing = fetched(machine, blocks, missed_bytes / n * one, n_fetches * one, is_ahead=False)
    work = steps_of(geometry, machine, Tokens(decodes=1.0, context=context_tokens), (*missing, *experts), blocks, OTHER_FORMAT)
    return clock(work, machine, profiles.load(profile))

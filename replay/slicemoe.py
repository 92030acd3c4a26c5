"""SliceMoE: a decode token in closed form by the paper's profile, and the miss rates that published gains imply (section 5)."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tokentape.hw import profile as profiles
from tokentape.hw.clock import StepCost, clock
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats
from tokentape.policies.sliced import SlicedCache
from tokentape.replay.passes import fetched
from tokentape.replay.system.routes import slices_of
from tokentape.replay.tokens import Tokens, blocks_of
from tokentape.replay.transformer import experts_of, steps_of
from tokentape.warehouse.geometry import Geometry

PROFILE = "slicemoe"
OTHER_FORMAT = "int8"  # everything but the experts (SliceMoE section 2)
MISSES = ("baseline_miss_frac", "ours_miss_frac")  # columns of what two gains imply
LSB_FRACS = (0.0, 0.05, 0.1, 0.15)  # of accesses that read the LSB slice; the paper does not say how many do


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


def token_cost(
    geometry: Geometry,
    hardware: HardwareSpec,
    cache: SlicedCache,
    lsb_frac: float,
    miss_frac: float = 0.0,
    profile: str = PROFILE,
    context_tokens: int = 1,
) -> StepCost:
    """Cost of one decode token (arrays of one): lsb_frac of its accesses read the LSB slice too.

    miss_frac: Flash bytes / (accesses x high-bit expert bytes). Fetches block.
    """
    n_accesses, (msb, lsb) = len(geometry.moe_layers) * geometry.top_k, slices_of(geometry, cache)
    read, missed = n_accesses * (msb + lsb_frac * lsb), miss_frac * n_accesses * (msb + lsb)
    return decode_cost(geometry, hardware, read, missed, float(missed > 0), profile, context_tokens)


def operating_points(
    pairs: Iterable[Mapping[str, Any]], geometries: Mapping[str, Geometry], machine: HardwareSpec, cache: SlicedCache
) -> list[dict[str, Any]]:
    """Rows of `operating_points`: of every pair of gains and model, one per share of accesses that read the LSB slice. pairs:
    their other columns.

    Of slicing, the baseline reads whole experts; of warm-ups, both sides read the same share. A pair that fixes no two miss
    rates (equal gains) has no rows.
    """
    rows = []
    for pair in pairs:
        for lsb_frac in LSB_FRACS:
            shares = {"baseline_lsb_frac": 1.0 if pair["method"] == "DBSC" else lsb_frac, "ours_lsb_frac": lsb_frac}
            gains = pair["energy_gain"], pair["speed_gain"]
            try:
                missed = implied_operating_point(geometries[pair["model_id"]], machine, *gains, cache, **shares)
            except ValueError:
                continue
            rows.append({**pair, "hardware": machine.name, "lsb_frac": lsb_frac, **dict(zip(MISSES, missed, strict=True))})
    return rows


def implied_operating_point(
    geometry: Geometry,
    hardware: HardwareSpec,
    energy_gain: float,
    speed_gain: float,
    cache: SlicedCache | None = None,
    *,
    baseline_lsb_frac: float = 1.0,
    ours_lsb_frac: float = 0.0,
) -> tuple[float, float]:
    """The miss rates of the baseline and of ours at which ours wins by exactly these gains in energy and time per token, each
    high-bit-normalised; 0..1 where possible: outside, no miss rate explains the gains.

    lsb_frac: share of accesses that read the LSB slice; 1.0 is the high-bit baseline. Both costs are straight lines in the miss
    rate, so two gains fix two misses. Raises ValueError where they do not (Flash as cheap as the rest).
    """
    cache, gains = cache or SlicedCache(), np.array([energy_gain, speed_gain])

    def costs(miss_frac: float) -> Floats:
        """(2, 2) nominal joules and seconds of the baseline and of ours."""
        each = (token_cost(geometry, hardware, cache, lsb_frac, miss_frac) for lsb_frac in (baseline_lsb_frac, ours_lsb_frac))
        return np.array([(cost.joules.value[0], cost.seconds.value[0]) for cost in each])

    none, all_missed = costs(0.0), costs(1.0)
    of_misses = all_missed - none
    rows, constants = np.column_stack([of_misses[0], -gains * of_misses[1]]), gains * none[1] - none[0]
    if abs(np.linalg.det(rows / np.abs(rows).max(axis=1, keepdims=True))) < 1e-9:
        raise ValueError(f"gains of {energy_gain} and {speed_gain} do not fix two miss rates: they must differ")
    baseline_miss, ours_miss = np.linalg.solve(rows, constants)
    return float(baseline_miss), float(ours_miss)

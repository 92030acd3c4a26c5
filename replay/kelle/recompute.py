"""Recomputing K and V from the layer input instead of loading them: two ways to count it, and where it stands on the roofline.

The paper gives 1.1 us to load a KV vector of LLaMA2-7B and 3.2 us to recompute it. Its own array and DRAM say 0.256 and 16.4 us.
Mode `paper` keeps the paper's ratio of the two on top of the load that the bytes take, mode `physical` counts multiply-adds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tokentape.replay.kelle.step import KV_ELEMENTS_PER_ROW_CYCLE
from tokentape.replay.kelle.systems import Chip
from tokentape.replay.kelle.traffic import INPUT_BYTES, kv_elements, weights_of
from tokentape.replay.kelle.work import MODES, Work
from tokentape.warehouse.geometry import Geometry

GRID = tuple(i / 20 for i in range(21))  # shares that the curve is drawn at


def vector_times_s(geometry: Geometry, chip: Chip, mode: str = "physical") -> tuple[float, float]:
    """Seconds to load K and V of a token in a layer from DRAM, and to compute them from the layer input."""
    elements = kv_elements(geometry, MODES[mode])
    load_s = elements * INPUT_BYTES / chip.dram_bytes_per_s
    return load_s, geometry.hidden * elements / chip.macs_per_s


def balanced_frac(load_s: float, recompute_s: float) -> float:
    """The share to recompute, so that the array and the DRAM take equally long."""
    return load_s / (load_s + recompute_s)


@dataclass(frozen=True)
class RooflinePoint:
    """recomputed_frac: of the kept vectors; operations include the recomputation's; label: none, moderate, excessive or empty."""

    recomputed_frac: float
    ops_per_byte: float
    ops_per_s: float
    roof_ops_per_s: float
    is_compute_bound: bool
    step_s: float
    label: str


def roofline(
    geometry: Geometry, chip: Chip, work: Work, mode: str, slowdown: float | None = None, shares: Iterable[float] = GRID
) -> list[RooflinePoint]:
    """A decode step at its final length by the share of recomputed vectors, array and DRAM side by side (Kelle Figure 16a).

    slowdown: recomputing a vector over loading it; None: what the array takes. Labelled are no recomputation, the share at which
    both take equally long (moderate) and all vectors (excessive). A point above its roof asks more of the array than it has.
    """
    elements = kv_elements(geometry, MODES[mode])
    load_s, recompute_s = vector_times_s(geometry, chip, mode)
    if slowdown is not None:
        recompute_s = slowdown * load_s
    kept = min(work.n_tokens, work.budget_tokens or work.n_tokens)
    vectors = work.batch * kept * geometry.n_layers
    kv_bytes, weights = vectors * float(elements) * work.kv_bits / 8, weights_of(geometry, work.batch)
    input_bytes = vectors * float(geometry.hidden) * INPUT_BYTES if MODES[mode].charges_recompute else 0.0
    fixed_s = weights.macs_per_token * work.batch / chip.macs_per_s
    fixed_s += vectors * elements / (chip.rows * KV_ELEMENTS_PER_ROW_CYCLE * chip.clock_hz)
    fixed_ops = 2.0 * (weights.macs_per_token * work.batch + vectors * elements)

    def moved_bytes(share: float) -> float:
        return weights.read_bytes + (1.0 - share) * kv_bytes + share * input_bytes

    def point(share: float, label: str = "") -> RooflinePoint:
        ops = fixed_ops + 2.0 * share * vectors * geometry.hidden * elements
        dram_s, array_s = moved_bytes(share) / chip.dram_bytes_per_s, fixed_s + share * vectors * recompute_s
        step_s = max(dram_s, array_s)
        roof = min(2.0 * chip.macs_per_s, ops / moved_bytes(share) * chip.dram_bytes_per_s)
        return RooflinePoint(share, ops / moved_bytes(share), ops / step_s, roof, array_s > dram_s, step_s, label)

    gap_s = moved_bytes(0.0) / chip.dram_bytes_per_s - fixed_s
    slope_s = vectors * recompute_s + (kv_bytes - input_bytes) / chip.dram_bytes_per_s
    moderate = min(1.0, max(0.0, gap_s / slope_s)) if slope_s > 0.0 else 0.0
    labels = {moderate: "moderate", 1.0: "excessive", 0.0: "none"}
    return [point(share, labels.get(share, "")) for share in sorted({*shares, *labels})]

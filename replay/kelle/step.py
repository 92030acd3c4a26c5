"""Time and energy of one decode step, from bytes and multiply-adds. Source: Kelle section 8, completed by assumptions.

    seconds = comb(weights: DRAM, array, SRAM) + comb(KV: DRAM, on-chip memory, array)      comb(v) = max(v) + s (sum(v) - max(v))
    joules  = DRAM + weight SRAM + on-chip KV + refresh + array + leakage

s is the serial share of the knobs. No term falls as the batch grows, so neither does a step. Weights are 8 bits, activations and
KV 16. Not counted: the prompt (prefill.py), activations' traffic, sliding windows (Mistral's cache counts as any other), and the
time of refresh, which the paper hides. Where the paper speaks of dense models, a mixture of experts reads the experts that its
batch chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tokentape.hw.kelle_knobs import Knobs
from tokentape.replay.kelle.systems import Chip, System
from tokentape.replay.kelle.traffic import KvTraffic, Weights, kv_traffic, weights_of
from tokentape.replay.kelle.work import PAPER, Accounting, Floats, Work
from tokentape.warehouse.geometry import Geometry

KV_ELEMENTS_PER_ROW_CYCLE = 4  # that a row of the array takes in (assumed)


@dataclass(frozen=True)
class Step:
    """A decode step of the batch. joules: by part; kv_read_bytes: from the chip or DRAM, kv_dram_bytes of them from DRAM."""

    seconds: float
    joules: dict[str, float]
    weight_bytes: float
    kv_read_bytes: float
    kv_dram_bytes: float
    macs: float
    overflow_bytes: float
    is_feasible: bool
    notes: tuple[str, ...] = ()

    @property
    def energy_j(self) -> float:
        """Of all parts."""
        return sum(self.joules.values())


def decode_step(geometry: Geometry, system: System, work: Work, knobs: Knobs, accounting: Accounting = PAPER) -> Step:
    """One decode step of the batch."""
    chip, weights = system.chip, weights_of(geometry, work.batch)
    kv = kv_traffic(geometry, system, work, knobs, accounting)
    serial_frac = knobs.serial_frac * (knobs.kelle_serial_frac if system.overlaps else 1.0)
    seconds = _seconds(chip, weights, kv, work.batch, serial_frac)
    assert (seconds * chip.dram_bytes_per_s * (1 + 1e-9) >= weights.read_bytes + kv.dram_bytes).all()
    joules = {
        "dram_j": chip.dram_j_per_byte * (weights.read_bytes + kv.dram_bytes),
        "weight_sram_j": chip.weight_j_per_byte * 2 * weights.read_bytes,
        "kv_j": chip.kv_j_per_byte * _on_chip_bytes(chip, kv, accounting),
        "refresh_j": refresh_w(system, kv.kept_bytes, accounting) * seconds,
        "array_j": chip.static_w * seconds,
        "leakage_j": chip.leakage_w * seconds,
    }
    overflow_bytes = max(0.0, weights.held_bytes + kv.peak_bytes - chip.dram_bytes)
    overflow = (f"dram_overflow: {overflow_bytes / 1e9:.1f} GB more than the DRAM holds",) if overflow_bytes else ()
    return Step(
        seconds=float(seconds.mean()),
        joules={part: float(np.mean(joule)) for part, joule in joules.items()},
        weight_bytes=weights.read_bytes,
        kv_read_bytes=float(kv.read_bytes.mean()),
        kv_dram_bytes=float(kv.dram_bytes.mean()),
        macs=float(weights.macs_per_token * work.batch + kv.elements.mean()),
        overflow_bytes=overflow_bytes,
        is_feasible=not (accounting.must_fit_dram and overflow_bytes),
        notes=(*kv.notes, *overflow),
    )


def _seconds(chip: Chip, weights: Weights, kv: KvTraffic, batch: int, serial_frac: float) -> Floats:
    """(n,) by length: weights through DRAM, array and SRAM, then KV through DRAM, on-chip memory and array."""
    of_weights = (
        weights.read_bytes / chip.dram_bytes_per_s,
        weights.macs_per_token * batch / chip.macs_per_s,
        weights.read_bytes / chip.weight_bytes_per_s,
    )
    fed_s = kv.elements / (chip.rows * KV_ELEMENTS_PER_ROW_CYCLE * chip.clock_hz)
    of_kv = (
        kv.dram_bytes / chip.dram_bytes_per_s,
        kv.read_bytes / chip.kv_bytes_per_s,
        fed_s + kv.recompute_macs / chip.macs_per_s,
    )
    return serial(of_weights, serial_frac) + serial(of_kv, serial_frac)


def serial(times: tuple[Floats | float, ...], serial_frac: float) -> Floats:
    """Seconds of transfers and work that run side by side, `serial_frac` of the shorter ones after the longest."""
    stacked = np.stack(np.broadcast_arrays(*times))
    longest = stacked.max(axis=0)
    return np.asarray(longest + serial_frac * (stacked.sum(axis=0) - longest))


def _on_chip_bytes(chip: Chip, kv: KvTraffic, accounting: Accounting) -> Floats:
    """Bytes in and out of the KV memory: SRAM takes in what streams from DRAM; eDRAM serves only what it holds."""
    if chip.is_edram and accounting.streamed_bypasses_edram:
        return np.minimum(kv.read_bytes, chip.kv_bytes)
    return kv.read_bytes + kv.dram_bytes


def refresh_w(system: System, kept_bytes: Any, accounting: Accounting = PAPER) -> Any:
    """Watts of refreshing the occupied KV rows and the activations; 0 for SRAM."""
    chip = system.chip
    activation_interval_s = chip.activation_interval_s if accounting.activations_at_retention else chip.refresh_interval_s
    of_kv = np.minimum(kept_bytes, chip.kv_bytes) / chip.refresh_interval_s
    return chip.refresh_j_per_byte * (of_kv + system.transient_frac * chip.activation_bytes / activation_interval_s)

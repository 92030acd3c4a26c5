"""The five systems of Kelle section 8.1: a chip, and what it does with the KV cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import isqrt

from tokentape.hw.sourced import BadSpec
from tokentape.hw.spec import HardwareSpec, MemTier, load

TRANSIENT_FRAC = 0.45  # of the activations' refresh under Kelle's scheduler (assumed: life is .25 to .67 as long)
BASELINE, KELLE = "Original+SRAM", "Kelle+eDRAM"
# Name: machine, and whether it evicts, recomputes, schedules. Source: Kelle section 8.1.1.
SYSTEMS: dict[str, tuple[str, bool, bool, bool]] = {
    BASELINE: ("kelle-sram", False, False, False),
    "Original+eDRAM": ("kelle-original-edram", False, False, False),
    "AEP+SRAM": ("kelle-sram", True, False, False),
    "AERP+SRAM": ("kelle-sram", True, True, False),
    KELLE: ("kelle-edram", True, True, True),
}


@dataclass(frozen=True, kw_only=True)
class Chip:
    """What the cost model takes of a machine's file; rates per second, energies in joules, of one chip.

    Leakage is of the weights' and the KV memory; the paper's on-chip sum leaves the activations' out. refresh_j_per_byte: of one
    pass; 0 for SRAM.
    """

    rows: int
    clock_hz: float
    macs_per_s: float
    static_w: float
    dram_bytes: float
    dram_bytes_per_s: float
    dram_j_per_byte: float
    weight_bytes_per_s: float
    weight_j_per_byte: float
    kv_bytes: float
    kv_bytes_per_s: float
    kv_j_per_byte: float
    weight_leakage_w: float
    kv_leakage_w_per_byte: float
    is_edram: bool
    refresh_j_per_byte: float
    refresh_interval_s: float
    activation_bytes: float
    activation_interval_s: float

    @property
    def leakage_w(self) -> float:
        """Of both memories."""
        return self.weight_leakage_w + self.kv_leakage_w_per_byte * self.kv_bytes


def chip_of(machine: HardwareSpec) -> Chip:
    """The chip of a machine's file: tiers `dram`, `weights`, `kv` and, where KV is in eDRAM, `activations`. Raises BadSpec."""
    absent = [name for name in ("dram", "weights", "kv") if name not in machine.tiers]
    if absent:
        raise BadSpec(f"{machine.name}: tier {absent[0]} is missing; Kelle's cost model needs dram, weights and kv")
    dram, weights, kv, engine = (*(machine.tiers[name] for name in ("dram", "weights", "kv")), machine.compute)
    macs = engine.macs_per_unit.get(machine.dtype)
    if engine.n_units is None or engine.clock_hz is None or macs is None:
        raise BadSpec(f"{machine.name}: engines.{machine.engine} needs n_units, clock_hz and macs_per_unit.{machine.dtype}")
    n_units = round(engine.n_units.value)
    if isqrt(n_units) ** 2 != n_units:
        raise BadSpec(f"{machine.name}: engines.{machine.engine}.n_units = {n_units} is no square array; give rows x rows")
    activations = machine.tiers.get("activations")
    if kv.refresh_j and activations is None:
        raise BadSpec(f"{machine.name}: tier activations is missing; a chip whose KV refreshes needs it")
    return Chip(
        rows=isqrt(n_units),
        clock_hz=engine.clock_hz.value,
        macs_per_s=n_units * macs.value * engine.clock_hz.value,
        static_w=machine.static_w.value,
        dram_bytes=dram.capacity_bytes.value,
        dram_bytes_per_s=dram.peak_bytes_per_s.value,
        dram_j_per_byte=8e-12 * dram.read_pj_per_bit.value,
        weight_bytes_per_s=weights.peak_bytes_per_s.value,
        weight_j_per_byte=8e-12 * weights.read_pj_per_bit.value,
        kv_bytes=kv.capacity_bytes.value,
        kv_bytes_per_s=kv.peak_bytes_per_s.value,
        kv_j_per_byte=8e-12 * kv.read_pj_per_bit.value,
        weight_leakage_w=weights.leakage_w.value if weights.leakage_w else 0.0,
        kv_leakage_w_per_byte=kv.leakage_w.value / kv.capacity_bytes.value if kv.leakage_w else 0.0,
        is_edram=kv.kind == "edram",
        refresh_j_per_byte=kv.refresh_j.value / kv.capacity_bytes.value if kv.refresh_j else 0.0,
        refresh_interval_s=_interval_s(kv),
        activation_bytes=activations.capacity_bytes.value if activations else 0.0,
        activation_interval_s=_interval_s(activations) if activations else float("inf"),
    )


def _interval_s(tier: MemTier) -> float:
    return tier.refresh_interval_s.value if tier.refresh_interval_s else float("inf")


@dataclass(frozen=True, kw_only=True)
class System:
    """A chip with its policy.

    overlaps: weights and KV have memories that work side by side. transient_frac: of the activations' refresh that is left, as
    their life is shorter under Kelle's scheduler (section 6).
    """

    name: str
    chip: Chip
    evicts: bool = False
    recomputes: bool = False
    overlaps: bool = False
    transient_frac: float = 1.0

    def on(self, **changed: float) -> System:
        """The same system on a chip that differs in these fields. Raises ValueError for a field that no chip has."""
        try:
            return replace(self, chip=replace(self.chip, **changed))  # type: ignore[arg-type]
        except TypeError:
            known = ", ".join(field.name for field in fields(Chip))
            raise ValueError(f"a chip has no {' or '.join(set(changed) - set(known.split(', ')))}; its fields: {known}") from None


def decisions(name: str) -> dict[str, str]:
    """What a system of the paper decides: which keys and values are kept, and how cells are refreshed, in SRAM not at all."""
    machine, evicts, recomputes, schedules = SYSTEMS[name]
    kept = {"kv": "aerp" if recomputes else "aep" if evicts else "full"}
    return kept | ({"refresh": "2drp" if schedules else "uniform"} if "edram" in machine else {})


def systems(machine_of: Callable[[str], HardwareSpec] = load) -> dict[str, System]:
    """The five systems by name. machine_of: the machine of a name, the shipped one unless told otherwise."""
    return {
        name: System(
            name=name,
            chip=chip_of(machine_of(machine)),
            evicts=evicts,
            recomputes=recomputes,
            overlaps=schedules,
            transient_frac=TRANSIENT_FRAC if schedules else 1.0,
        )
        for name, (machine, evicts, recomputes, schedules) in SYSTEMS.items()
    }

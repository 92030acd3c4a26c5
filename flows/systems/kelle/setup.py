"""What the Kelle study computes with: the shipped machines, models and knobs, under the study's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokentape.flows.grid import load_hardware
from tokentape.flows.systems.kelle.settings import Settings, Variant
from tokentape.hw import kelle_knobs
from tokentape.hw.kelle_knobs import Knobs
from tokentape.hw.spec import HardwareSpec
from tokentape.policies.kv.refresh import RetentionCurve
from tokentape.replay.kelle.fit import derived
from tokentape.replay.kelle.ratios import Steps
from tokentape.replay.kelle.systems import SYSTEMS, System, systems
from tokentape.replay.kelle.work import MODES
from tokentape.warehouse import models
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.load import claims

ZERO, CALIBRATED = "zero", "calibrated"
MEAN_FAILURE = "kelle/7.1/retention_failure_average/four-default-intervals"


@dataclass(frozen=True)
class Setup:
    """knobs: by name, zero and calibrated; curves: of retention, by the failures assumed at 45 us, the default first;
    stated: the paper's claims by id."""

    study: Settings
    machines: dict[str, HardwareSpec]
    systems: dict[str, System]
    geometries: dict[str, Geometry]
    knobs: dict[str, Knobs]
    curves: dict[float, RetentionCurve]
    stated: dict[str, dict[str, Any]]

    def steps(self, knobs: str = CALIBRATED, mode: str = "paper", variant: Variant | None = None) -> Steps:
        """Decode steps under these knobs, in this mode, with one thing changed."""
        changed = variant or Variant()
        accounting = changed.counted(MODES[mode])
        return Steps(changed.systems(self.systems), self.geometries, self.study.workloads, self.knobs[knobs], accounting)


def setup(study: Settings, calibrated: Knobs | None = None) -> Setup:
    """Everything but the points. calibrated: instead of the shipped knobs. Raises BadSpec where those are missing."""
    stated = {row["claim_id"]: row for row in claims().to_pylist() if row["paper"] == "kelle"}
    shipped = sorted({machine for machine, *_ in SYSTEMS.values()})
    machines = {name: load_hardware(study.machines.get(name, name)) for name in shipped}
    mean_frac, intervals_us = stated[MEAN_FAILURE]["value"], list(study.refresh.intervals_us.values())
    return Setup(
        study=study,
        machines=machines,
        systems=systems(machines.__getitem__),
        geometries={name: models.load(name).geometry for name in study.named_models},
        knobs={ZERO: derived(stated.values()), CALIBRATED: calibrated or kelle_knobs.load().constants},
        curves={anchor: RetentionCurve.anchored(anchor, mean_frac, intervals_us) for anchor in study.refresh.anchors},
        stated=stated,
    )

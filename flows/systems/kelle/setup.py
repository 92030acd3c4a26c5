"""What the Kelle study computes with: the shipped machines, models and knobs, under the study's settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tokentape.flows.answers import stated
from tokentape.flows.grid import load_hardware
from tokentape.flows.systems.kelle.settings import Settings, Variant
from tokentape.hw import kelle_knobs
from tokentape.hw.kelle_knobs import Knobs
from tokentape.hw.spec import HardwareSpec
from tokentape.policies.kv.refresh import RetentionCurve
from tokentape.replay.kelle.fit import PAPER, derived
from tokentape.replay.kelle.ratios import Steps
from tokentape.replay.kelle.systems import SYSTEMS, System, systems
from tokentape.replay.kelle.work import MODES
from tokentape.warehouse import models
from tokentape.warehouse.geometry import Geometry

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
    _made: dict[str, Steps] = field(default_factory=dict)

    def steps(self, knobs: str = CALIBRATED, mode: str = "paper", variant: Variant | None = None) -> Steps:
        """Decode steps under these knobs, in this mode, with one thing changed."""
        changed = variant or Variant()
        key = f"{knobs}/{mode}/{changed!r}"
        if key not in self._made:
            of = (changed.systems(self.systems), self.geometries, self.study.workloads, self.knobs[knobs])
            self._made[key] = Steps(*of, changed.counted(MODES[mode]))
        return self._made[key]


def setup(study: Settings, calibrated: Knobs | None = None) -> Setup:
    """Everything but the points. calibrated: instead of the shipped knobs. Raises BadSpec where those are missing."""
    claimed = stated(PAPER)
    shipped = sorted({machine for machine, *_ in SYSTEMS.values()})
    machines = {name: load_hardware(study.machines.get(name, name)) for name in shipped}
    mean_frac, intervals_us = claimed[MEAN_FAILURE]["value"], list(study.refresh.intervals_us.values())
    return Setup(
        study=study,
        machines=machines,
        systems=systems(machines.__getitem__),
        geometries={name: models.load(name).geometry for name in study.named_models},
        knobs={ZERO: derived(claimed.values()), CALIBRATED: calibrated or kelle_knobs.load().constants},
        curves={anchor: RetentionCurve.anchored(anchor, mean_frac, intervals_us) for anchor in study.refresh.anchors},
        stated=claimed,
    )

"""What the GPU-NDP study runs: study.toml, checked, and the machine, the knobs and the models as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokentape.flows.grid import load_hardware
from tokentape.flows.study_file import Part, StudyFile
from tokentape.hw import cxl_ndp_knobs
from tokentape.hw.cxl_ndp_knobs import Knobs
from tokentape.replay.cxl_ndp.system import Machine, Shape, decisions, machine_of, shape_of
from tokentape.warehouse import models

PAPER = "cxl_ndp"


class Model(Part):
    """hot_experts: per layer; seeds: tapes drawn; is_swept: past links, batches and NDP sizes."""

    name: str
    hot_experts: int
    seeds: tuple[int, ...]
    is_swept: bool = False


class Requests(Part):
    """Lengths: prompts by the name of their grid, outputs."""

    grids: dict[str, tuple[int, ...]]
    decode_tokens: tuple[int, ...]


class Sweeps(Part):
    """One thing changed at a time. links: machines by what their link is called."""

    batches: tuple[int, ...]
    alphas: tuple[float, ...]
    hot_experts: tuple[int, ...]
    links: dict[str, str]
    link_gb_per_s: tuple[float, ...]
    ndp_factors: tuple[float, ...]
    ndp_devices: tuple[float, ...]
    rules: tuple[str, ...]
    placements: tuple[str, ...]


class Losses(Part):
    """The stand-in table, and the mean widths at which rules are compared."""

    spread: float
    mean_bits: tuple[float, ...]


class Recorded(Part):
    """Tapes of a live model. use_requests: of each, whose expert use is kept, in bins of use_bin_steps."""

    model: str
    datasets: tuple[str, ...]
    requests: int
    prompt: int
    output: int
    batch_size: int
    hot_experts: int
    use_requests: int
    use_bin_steps: int


class Live(Part):
    """Windows of text per seed, their tokens, and what is varied inside the model."""

    seeds: tuple[int, ...]
    windows: int
    prompt: int
    output: int
    bits: tuple[float, ...]
    selector_bits: tuple[float, ...]
    alphas: tuple[float, ...]
    placements: tuple[str, ...]


class Bars(Part):
    """How far from the published value still counts as reproduced."""

    decode_tolerance: float
    e2e_tolerance: float
    hobbit_tolerance: float
    cosine_tolerance: float
    least_hit_gain: float


class Settings(StudyFile):
    """study.toml. The first model is the one that is fitted on, the first grid the one that answers claims."""

    SHIPPED = Path(__file__).parent / "study.toml"

    hardware: str
    knobs: str
    systems: tuple[str, ...]
    compared: tuple[str, ...]
    sequences: int
    models: tuple[Model, ...]
    requests: Requests
    sweeps: Sweeps
    losses: Losses
    recorded: Recorded
    live: Live
    bars: Bars

    def decide(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Where the row's system computes its experts, and at which width."""
        return decisions(row["system"]) if "system" in row else {}


@dataclass(frozen=True)
class Setup:
    """The machine, the knobs, and a model's shape."""

    study: Settings
    machine: Machine
    knobs: Knobs
    shape: Shape


def setup(study: Settings, model: str, knobs: Knobs | None = None) -> Setup:
    """Of a model that ships or a config.json. knobs: of the study unless told otherwise."""
    found = models.load(model)
    machine = machine_of(load_hardware(study.hardware))
    return Setup(study, machine, knobs or cxl_ndp_knobs.load(study.knobs).constants, shape_of(found.name, found.geometry))

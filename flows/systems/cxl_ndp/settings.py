"""What the GPU-NDP study runs: study.toml, checked, and the machine, the knobs and the models as numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tokentape.flows.answers import Answer
from tokentape.flows.grid import load_hardware
from tokentape.flows.study_file import Grid, Part, StudyFile
from tokentape.hw import cxl_ndp_knobs
from tokentape.hw.cxl_ndp_knobs import Knobs
from tokentape.replay.cxl_ndp.checks import Bars
from tokentape.replay.cxl_ndp.setting import Setting, Setup
from tokentape.replay.cxl_ndp.system import Machine, decisions, machine_of, shape_of
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


CHANGES: dict[str, Callable[[Machine, float], Machine]] = {
    "link_gb_per_s": lambda machine, value: machine.on(link_bytes_per_s=1e9 * value),
    "ndp_bandwidth": lambda machine, factor: machine.on(ndp_bytes_per_s=factor * machine.ndp_bytes_per_s),
    "ndp_macs": lambda machine, factor: machine.on(ndp_ops_per_s=factor * machine.ndp_ops_per_s),
    "ndp_devices": Machine.times,
}


class Sweep(Grid):
    """Fields of replay.cxl_ndp.setting.Setting, a machine or CHANGES of it. only_swept: of models that are."""

    FIELDS = frozenset({"setting", "value", "hardware", *CHANGES, *(field.name for field in fields(Setting))})

    only_swept: bool = False


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
    grid: tuple[Sweep, ...]
    losses: Losses
    recorded: Recorded
    live: Live
    answers: tuple[Answer, ...]
    bars: Bars

    def decide(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Where the row's system computes its experts, and at which width."""
        return decisions(row["system"]) if "system" in row else {}


def setup(study: Settings, model: str, knobs: Knobs | None = None) -> Setup:
    """Of a model that ships or a config.json. knobs: of the study unless told otherwise."""
    found = models.load(model)
    machine = machine_of(load_hardware(study.hardware))
    return Setup(machine, knobs or cxl_ndp_knobs.load(study.knobs).constants, shape_of(found.name, found.geometry))

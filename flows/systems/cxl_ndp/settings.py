"""What the GPU-NDP study runs: study.toml, checked, and the machine, its cost profile and the models as numbers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from tokentape.flows.answers import Query
from tokentape.flows.grid import load_hardware
from tokentape.flows.study_file import Grid, Part, StudyFile
from tokentape.hw import profile as profiles
from tokentape.hw.spec import HardwareSpec, with_values
from tokentape.replay.cxl_ndp.fit import Constants
from tokentape.replay.cxl_ndp.setting import Setting
from tokentape.replay.cxl_ndp.system import Setup, decisions
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


LINK = "links.pcie.peak_bytes_per_s"
# What of the machine's file a grid's field changes: set to a value, or times a factor.
CHANGES = {
    "link_gb_per_s": (LINK,),
    "ndp_bandwidth": ("tiers.cxl.peak_bytes_per_s",),
    "ndp_macs": ("engines.ndp.ops_per_s.fp16",),
    "ndp_devices": ("tiers.cxl.peak_bytes_per_s", "engines.ndp.ops_per_s.fp16", "tiers.cxl.capacity_bytes"),
}


def changed(machine: HardwareSpec, change: str, value: float) -> HardwareSpec:
    """The machine with one of CHANGES. Raises BadSpec for a machine without those numbers."""
    numbers = dict(machine.numbers())
    by = {key: numbers[key].value if key in numbers else 1.0 for key in CHANGES[change]} | {LINK: 1e9}
    return with_values(machine, {key: value * by[key] for key in CHANGES[change]})


class Sweep(Grid):
    """Fields of replay.cxl_ndp.setting.Setting, a machine or CHANGES of it. only_swept: of models that are."""

    FIELDS = get_type_hints(Setting) | dict.fromkeys(("setting", "value", "hardware"), str) | dict.fromkeys(CHANGES, float)

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
    """study.toml. The first model is the one that is fitted on, the first grid the one that answers claims. profile,
    hobbit_bits, batch, context_tokens, ema_beta: see Setup and Setting of replay/cxl_ndp."""

    SHIPPED = Path(__file__).parent / "study.toml"

    hardware: str
    profile: str
    hobbit_bits: float
    batch: int = 16
    context_tokens: int = 768
    ema_beta: float = 0.9
    systems: tuple[str, ...]
    compared: tuple[str, ...]
    sequences: int
    models: tuple[Model, ...]
    requests: Requests
    grid: tuple[Sweep, ...]
    losses: Losses
    recorded: Recorded
    live: Live
    ratios: Query
    answers: tuple[Query, ...]
    checks: tuple[Query, ...]

    def decide(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Where the row's system computes its experts, and at which width."""
        return decisions(row["system"]) if "system" in row else {}


def setup(study: Settings, model: str, constants: Constants | None = None) -> Setup:
    """Of a model that ships or a config.json. constants: in place of the study's profile."""
    found = models.load(model)
    return Setup(
        machine=load_hardware(study.hardware),
        profile=constants.profile() if constants else profiles.load(study.profile),
        name=found.name,
        geometry=found.geometry,
        context_tokens=study.context_tokens,
        hobbit_bits=study.hobbit_bits,
        ema_beta=study.ema_beta,
    )

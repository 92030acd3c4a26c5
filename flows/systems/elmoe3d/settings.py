"""What the ELMoE-3D study runs: study.toml, checked, and the paper's models and machines as numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field

from tokentape.flows.answers import Query
from tokentape.flows.grid import load_hardware
from tokentape.flows.study_file import Grid, Part, Positive, StudyFile
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants, load
from tokentape.hw.profile import PHYSICAL
from tokentape.hw.spec import HardwareSpec, MemTier, with_values
from tokentape.replay.elmoe3d.laws import HIT_LAWS
from tokentape.replay.elmoe3d.points import SCHEMES, Setup, cache_of
from tokentape.replay.elmoe3d.rows import Assumed
from tokentape.warehouse import models

PAPER = "elmoe3d"
POINTS = "acceptance_points"  # view of what is measured inside a live model


class Model(Part):
    """A model and the format of its experts. like: the model of the paper whose acceptance and hit law it is taken to have."""

    name: str
    expert_format: str
    like: str = ""


CHANGES: dict[str, Callable[[MemTier, float], tuple[str, float]]] = {  # by field: a number of the experts' cache, and its value
    "hb_gib": lambda _, gib: ("capacity_bytes", gib * 2**30),
    "hb_bandwidth": lambda tier, factor: ("peak_bytes_per_s", factor * tier.peak_bytes_per_s.value),
}


def changed(machine: HardwareSpec, name: str, value: float) -> HardwareSpec:
    """The machine with a field of CHANGES; the same where that is what it has."""
    tier = cache_of(machine)
    number, told = CHANGES[name](tier, value)
    key = f"tiers.{machine.roles.expert_cache or machine.roles.expert_home}.{number}"
    return machine if getattr(tier, number).value == told else with_values(machine, {key: told})


class Sweep(Grid):
    """Points past the paper, of all models where none is named; on_all: machines, not that of the largest HB alone."""

    FIELDS = {"model": str, "scheme": Literal[SCHEMES], "hit_model": Literal[tuple(HIT_LAWS)]} | {
        **dict.fromkeys(("batch", "context_tokens"), Positive),
        **dict.fromkeys(("alpha", *CHANGES), float),
    }
    NEEDED = ("scheme", "batch")

    on_all: bool = False


class Tapes(Part):
    """Synthetic tapes that are drawn, and how all tapes are replayed."""

    requests: int = Field(ge=1)
    prompt: int
    output: int
    seed: int
    batches: tuple[int, ...]
    cache_fracs: tuple[float, ...]
    warm_steps: int


class Live(Part):
    """A model that drafts for itself. prompts: per seed; pairs, schemes: of series bits; loops: fields of DraftSettings,
    temperature and batch; pool_fracs: of pools replayed; recorded: drafters that become tapes."""

    model: str
    dataset: str
    seeds: tuple[int, ...]
    prompts: int
    prompt: int
    output: int
    whole_windows: int
    pairs: tuple[str, ...]
    schemes: tuple[str, ...]
    loops: tuple[Grid, ...]
    pool_fracs: tuple[float, ...]
    recorded: tuple[str, ...]
    recorded_requests: int


class Settings(StudyFile):
    """study.toml. profile: what costs what, by name or file; bars: least and most, by the words of view elmoe3d_checks."""

    SHIPPED = Path(__file__).parent / "study.toml"

    profile: str = PHYSICAL
    drafter: str
    hit_models: tuple[str, ...]
    headline: str
    fits: tuple[str, ...]
    machines: dict[int, str]
    models: tuple[Model, ...]
    grid: tuple[Sweep, ...]
    platforms: Assumed
    tapes: Tapes | Literal[False]
    live: Live
    answers: tuple[Query, ...]
    live_answers: Query
    checks: tuple[Query, ...]
    bars: dict[str, tuple[float, float]]

    def load_fits(self) -> dict[str, ELMoE3DConstants]:
        """By name, the headline's first."""
        return {name: load(name).constants for name in dict.fromkeys((self.headline, *self.fits))}


def setup_of(study: Settings) -> Setup:
    """The paper's models, machines and small model."""
    return Setup(
        models={m.name: (models.load(m.name).geometry.without_windows(), m.expert_format) for m in study.models},
        machines={str(gb): load_hardware(name) for gb, name in study.machines.items()},
        drafter=models.load(study.drafter).geometry,
    )

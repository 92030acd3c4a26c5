"""What the ELMoE-3D study runs: study.toml, checked, and the paper's models and machines as numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from tokentape.flows.grid import load_hardware
from tokentape.flows.study_file import Part, StudyFile
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants, load
from tokentape.hw.sourced import Sourced
from tokentape.replay.elmoe3d.cells import Setup
from tokentape.replay.elmoe3d.shape import drafter_of, machine_of, shape_of
from tokentape.warehouse import models

PAPER = "elmoe3d"


class Model(Part):
    """A model and the format of its experts. like: the model of the paper whose acceptance and hit law it is taken to have."""

    name: str
    expert_format: str
    like: str = ""


class Unknown(Part):
    """A number the paper does not give, with its range."""

    value: float
    low: float
    high: float
    source: str

    @property
    def sourced(self) -> Sourced:
        return Sourced(value=self.value, low=self.low, high=self.high, source=self.source)


class Sweeps(Part):
    """Past the paper, on the machine of the largest HB."""

    schemes: tuple[str, ...]
    hit_models: tuple[str, ...]
    batches: tuple[int, ...]
    few_batches: tuple[int, ...]
    hb_gib: tuple[float, ...]
    hb_bandwidth_factors: tuple[float, ...]
    contexts: tuple[int, ...]
    alphas: tuple[float, ...]


class Platforms(Part):
    """The baselines, and what of them is not known."""

    baselines: tuple[str, ...]
    ours_gb: int
    drafted_by: str
    verify_nodes: tuple[float, ...]
    headline_verify_nodes: float
    draft_nodes: float
    near_ext_ratios: tuple[float, ...]
    headline_near_ext_ratio: float
    holds: tuple[Literal["dense", "experts"], ...]
    headline_holds: Literal["dense", "experts"]
    near_pj_per_bit: Unknown
    pool_write_frac: Unknown


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
    """A model that drafts for itself. prompts: per seed; recorded: drafters that become tapes; gain_at: share of a pool."""

    model: str
    dataset: str
    seeds: tuple[int, ...]
    prompts: int
    prompt: int
    output: int
    whole_windows: int
    pool_fracs: tuple[float, ...]
    batches: tuple[int, ...]
    gain_at: float
    recorded: tuple[str, ...]
    recorded_requests: int


class Settings(StudyFile):
    """study.toml. bars: of table elmoe3d_checks, least and most."""

    SHIPPED = Path(__file__).parent / "study.toml"

    drafter: str
    hit_models: tuple[str, ...]
    headline: str
    fits: tuple[str, ...]
    machines: dict[int, str]
    models: tuple[Model, ...]
    sweeps: Sweeps
    platforms: Platforms
    tapes: Tapes
    live: Live
    bars: dict[str, tuple[float, float]]

    def load_fits(self) -> dict[str, ELMoE3DConstants]:
        """By name, the headline's first."""
        return {name: load(name).constants for name in dict.fromkeys((self.headline, *self.fits))}


def setup_of(study: Settings) -> Setup:
    """The paper's models, machines and small model."""
    return Setup(
        shapes={m.name: shape_of(m.name, models.load(m.name).geometry, m.expert_format) for m in study.models},
        machines={gb: machine_of(load_hardware(name)) for gb, name in study.machines.items()},
        drafter=drafter_of(models.load(study.drafter).geometry),
    )

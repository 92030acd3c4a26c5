"""What the SliceMoE study runs: study.toml, checked."""

from __future__ import annotations

from pathlib import Path

from tokentape.flows.study_file import Part, StudyFile


class Model(Part):
    """A model whose tapes are drawn. low_bit_cost: quality lost where all mass is at the low width."""

    name: str
    low_bit_cost: float
    calibrates: bool


class Captured(Part):
    """A model whose tapes are recorded; capacities as shares of its experts' bytes at the first pair."""

    name: str
    dataset: str
    low_bit_cost: float
    requests: int
    prompt: int
    output: int
    capacities_frac: tuple[float, ...]


class Fidelity(Part):
    """A rerouting policy whose replay is compared with the closed loop."""

    name: str
    parameters: dict[str, str | int | float]


class Answered(Part):
    """A data set with answers, under each of the budgets and without one; items per seed."""

    dataset: str
    items: int
    free_steps: int
    targets: tuple[float, ...]


class Live(Part):
    """A model with the policy inside it. targets: hard budgets; spare_cache_frac: of a cache that misses little by itself."""

    name: str
    dataset: str
    pairs: tuple[str, ...]
    targets: tuple[float, ...]
    cache_frac: float
    spare_cache_frac: float
    fidelity_cache_frac: float
    fidelity: tuple[Fidelity, ...]
    windows: int
    prompt: int
    output: int
    schemes: tuple[str, ...]
    scheme_pairs: tuple[str, ...]
    whole_windows: int
    answered: tuple[Answered, ...]


class Settings(StudyFile):
    """study.toml."""

    SHIPPED = Path(__file__).parent / "study.toml"

    hardware: str
    pairs: tuple[str, ...]
    capacities_gb: tuple[float, ...]
    seeds: tuple[int, ...]
    requests: int
    prompt: int
    output: int
    strengths: tuple[float, ...]
    shares: tuple[float, ...]
    taus: tuple[float, ...]
    quality_frac: float
    anchor_cached_frac: float
    prior_strength: float
    targets: tuple[float, ...]
    warmup_target_frac: float
    held_capacity_gb: float
    windows: tuple[int, ...]
    models: tuple[Model, ...]
    captured: Captured
    live: Live

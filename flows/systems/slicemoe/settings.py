"""What the SliceMoE study runs: study.toml, checked."""

from pathlib import Path
from typing import Any, Literal

from tokentape.flows.answers import Query
from tokentape.flows.study_file import Grid, Part, StudyFile

PAPER = "slicemoe"
EQUAL_QUALITY, WARM_UPS = "equal quality", "warm-ups"  # series that answer claims


class Model(Part):
    """A model whose tapes are drawn."""

    name: str
    calibrates: bool


class Captured(Part):
    """A model whose tapes are recorded."""

    name: str
    dataset: str
    requests: int
    prompt: int
    output: int


class Inside(Grid):
    """Jobs inside the model that fill a table; series: what is measured. Fields: dataset, items of a seed and cache_frac; name:
    in the project's claims; all others are the policy's parameters."""

    table: str


class Live(Part):
    """A model with the policy inside it. windows of prompt + output tokens, and whole ones: of a seed."""

    name: str
    dataset: str
    windows: int
    prompt: int
    output: int
    schemes: tuple[str, ...]
    scheme_pairs: tuple[str, ...]
    whole_windows: int
    grid: tuple[Inside, ...]


class Sweep(Grid):
    """Replays of a tape: a cache, in GB or as a share of all experts at the first pair; a system; the strength of its router.
    output: tokens of longer generations than the study's, on a drawn tape of their own."""

    FIELDS = dict.fromkeys(("capacity_gb", "capacity_frac", "tau", "strength", "target_frac"), float) | {
        **dict.fromkeys(("pair", "configuration", "warmup"), str),
        "router": Literal["cache_prior", "cumsum"],
    }
    NEEDED = ("pair", "configuration")

    is_captured: bool = False
    output: int = 0


class Settings(StudyFile):
    """study.toml. gains, pairs: queries that answers and operating points are made of."""

    SHIPPED = Path(__file__).parent / "study.toml"

    hardware: str
    seeds: tuple[int, ...]
    requests: int
    prompt: int
    output: int
    windows: tuple[int, ...]
    grid: tuple[Sweep, ...]
    models: tuple[Model, ...]
    captured: Captured
    live: Live
    gains: Query
    pairs: Query
    answers: tuple[Query, ...]
    live_answers: tuple[Query, ...]

    def values(self, series: str, name: str) -> list[Any]:
        """Of a field over the points of a series, each once."""
        given = (fields for grid in self.grid if grid.series == series for fields in grid.points())
        return list(dict.fromkeys(fields[name] for fields in given if name in fields))

    @property
    def pair(self) -> str:
        """At which claims are read."""
        return str((self.values(EQUAL_QUALITY, "pair") or [fields["pair"] for grid in self.grid for fields in grid.points()])[0])

    @property
    def warmed(self) -> dict[str, Any]:
        """What all points of the warm-ups share: capacity_gb, target_frac, strength."""
        return {name: self.values(WARM_UPS, name)[0] for name in ("capacity_gb", "target_frac", "strength")}

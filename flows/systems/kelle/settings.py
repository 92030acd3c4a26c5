"""What the Kelle study runs: study.toml, checked and multiplied out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from tokentape.flows.answers import Answer
from tokentape.flows.study_file import Grid, Part, StudyFile
from tokentape.replay.kelle.systems import KELLE, SYSTEMS, System, decisions
from tokentape.replay.kelle.work import Accounting, Work

OF_WORK = ("batch", "budget_tokens", "n_decode_tokens")


class Variant(Part):
    """One thing changed. chip, edram, kelle: fields of the chip of every system, of those with eDRAM, of Kelle alone.

    array_of: the array of another system's chip; value: the number in `setting`.
    """

    setting: str = ""
    value: float | None = None
    array_of: str = ""
    chip: dict[str, float] = Field(default={})
    edram: dict[str, float] = Field(default={})
    kelle: dict[str, float] = Field(default={})
    recomputes: bool = True
    transient_frac: float | None = None
    accounting: dict[str, bool | str] = Field(default={})

    def systems(self, of: Mapping[str, System]) -> dict[str, System]:
        """The systems with the change made."""
        return {name: self._changed(system, of) for name, system in of.items()}

    def _changed(self, system: System, of: Mapping[str, System]) -> System:
        chip = dict(self.chip)
        if self.array_of:
            other = of[self.array_of].chip
            chip |= {name: getattr(other, name) for name in ("rows", "clock_hz", "macs_per_s", "static_w")}
        chip |= self.edram if system.chip.is_edram else {}
        chip |= self.kelle if system.name == KELLE else {}
        made = replace(system.on(**chip), recomputes=system.recomputes and self.recomputes)
        return made if self.transient_frac is None else replace(made, transient_frac=self.transient_frac)

    def counted(self, accounting: Accounting) -> Accounting:
        """The accounting with the change made."""
        return replace(accounting, **self.accounting)  # type: ignore[arg-type]


class Group(Grid):
    """Decode steps: a model, a workload and what of it is changed, a system, fields of a variant; all where none is given."""

    FIELDS = frozenset({"model", "workload", "system", *OF_WORK, *Variant.model_fields})

    role: str = "report"


class Refresh(Part):
    """2DRP: intervals by group of token importance and bit significance, and the curves that failures are read from."""

    intervals_us: dict[str, float]
    anchors: tuple[float, ...]
    held_frac: float
    curve_us: tuple[float, float]

    @property
    def intervals_s(self) -> list[float]:
        """Of the groups, in the order of the file."""
        return [1e-6 * interval for interval in self.intervals_us.values()]


class ChipShares(Part):
    """The paper's shares of area and on-chip power, and the cell that our power is of."""

    model: str
    workload: str
    area_share: dict[str, float]
    power_share: dict[str, float]
    evictor_w: float


class Requests(Part):
    """Whole requests: lengths of prompt and output."""

    model: str
    lengths: tuple[tuple[int, int], ...]
    budget_tokens: int


class Cache(Part):
    """A KV policy, and how it stores keys and values: as `tokentape evaluate --policy` takes them. setting: what tells it from
    others of the name; is_budgeted: it is tried at every budget."""

    policy: str
    setting: str = ""
    is_budgeted: bool = True
    parameters: dict[str, str | int | float] = Field(default={})

    def at(self, budget: int | None) -> Cache:
        """With a budget in tokens, or none."""
        return self.model_copy(update={"parameters": self.parameters | {"budget": "none" if budget is None else budget}})


class Budgets(Part):
    """Every cache at every budget (Table 3). items: windows of text, or questions, of a seed."""

    dataset: str
    items: int
    budgets: tuple[int, ...]


class Refreshed(Part):
    """One cache under sets of four intervals and the uniform ones of the same mean (Table 4), in each word of `words`; the first
    word's alone under every set, the others under the first."""

    items: int
    cache: Cache
    words: tuple[str, ...]
    intervals_us: tuple[tuple[float, float, float, float], ...]


class Errors(Part):
    """One cache under bit errors (Figure 8). groups: which of HST-MSB, HST-LSB, LST-MSB, LST-LSB lose bits."""

    items: int
    output: int
    cache: Cache
    rates: tuple[float, ...]
    groups: dict[str, tuple[bool, bool, bool, bool]]


class Ordered(Part):
    """Orderings on a data set; other: where the words' alone are asked for again."""

    items: int
    other: str
    other_items: int


class Watched(Part):
    """A budget at which open loop is held against closed loop, or a tape is replayed."""

    budget: int
    items: int
    prompt: int
    output: int


class Live(Part):
    """What is measured inside a model. prompt, output: tokens of a window of text; batch: requests of a decode step that is
    costed."""

    model: str
    dataset: str
    seeds: tuple[int, ...]
    prompt: int
    output: int
    batch: int
    caches: tuple[Cache, ...]
    budget: Budgets
    recall: Budgets
    refresh: Refreshed
    errors: Errors
    orderings: Ordered
    divergence: Watched
    tape: Watched


class Settings(StudyFile):
    """study.toml. machines: another in place of a shipped one."""

    SHIPPED = Path(__file__).parent / "study.toml"

    models: tuple[str, ...]
    typical_err_frac: float
    worst_err_frac: float
    machines: dict[str, str] = Field(default={})
    workloads: dict[str, Work]
    refresh: Refresh
    chip: ChipShares
    requests: Requests
    grid: tuple[Group, ...]
    modes: dict[str, dict[str, str]]
    answers: tuple[Answer, ...]
    live: Live

    def decide(self, row: Mapping[str, Any]) -> dict[str, str]:
        """What the row's system keeps, and how often its cells are refreshed."""
        return decisions(row["system"]) if "system" in row else {}

    @property
    def named_models(self) -> list[str]:
        """Every model that the file names."""
        swept = (fields["model"] for group in self.grid for fields in group.points(model=self.models))
        return list(dict.fromkeys((*self.models, *swept, self.chip.model, self.requests.model)))

    def points(self, group: Group) -> Iterator[tuple[str, str, Work, str, Variant]]:
        """Of a group: model, name of the workload and the work, system, and what is changed."""
        for fields in group.points(model=self.models, workload=tuple(self.workloads), system=tuple(SYSTEMS)):
            work = replace(self.workloads[fields["workload"]], **{name: fields[name] for name in OF_WORK if name in fields})
            variant = Variant(**{name: fields[name] for name in Variant.model_fields if name in fields})
            yield fields["model"], fields["workload"], work, fields["system"], variant

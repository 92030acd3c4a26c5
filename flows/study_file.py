"""A study of a published system as a file: the study.toml that ships, or a copy of it with another model, machine or tape."""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from tokentape.flows.systems import SYSTEMS, grids
from tokentape.policies.registry import is_path
from tokentape.warehouse.at_rest import Maker, Point, runs_at_rest
from tokentape.warehouse.results import has_rows, read_rows, remove_others, replace_rows, write_batch, write_together
from tokentape.warehouse.tables import TABLES
from tokentape.warehouse.tape import Store

Rows = Sequence[dict[str, Any]]
Made = Mapping[str, Rows]  # by view
Positive = Annotated[int, Field(ge=1)]


class Part(BaseModel):
    """A table of a study's file: what it does not declare is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Grid(Part):
    """Points of a series: what it does not declare are fields of a point. A list is multiplied out; `each` lists tables of fields
    that go together, whose lists are multiplied out too."""

    model_config = ConfigDict(frozen=True, extra="allow")

    series: str
    each: tuple[dict[str, Any], ...] = ({},)

    FIELDS: ClassVar[Mapping[str, Any]] = {}  # that a point may have, with types; empty: what makes points refuses others
    NEEDED: ClassVar[tuple[str, ...]] = ()  # that every point has

    @classmethod
    def is_field(cls, name: str) -> bool:
        """Whether a point may have it."""
        return not cls.FIELDS or name in cls.FIELDS

    @model_validator(mode="after")
    def _refuse_others(self) -> Self:
        given = [{**(self.model_extra or {}), **fields} for fields in self.each]
        if others := [name for fields in given for name in fields if not self.is_field(name)]:
            raise ValueError(f"{others[0]!r} is no field of a point; fields are {', '.join(self.FIELDS)}")
        if missing := [name for name in self.NEEDED for fields in given if name not in fields]:
            raise ValueError(f"{missing[0]} is missing; a point names {', '.join(self.NEEDED)}")
        if not (points := list(self.points())):
            raise ValueError(f"series {self.series} has no point: one of its lists is empty")
        for name in sorted({name for fields in given for name in fields} & self.FIELDS.keys()):
            adapter = TypeAdapter(self.FIELDS[name])
            for value in (point[name] for point in points if name in point):
                try:
                    adapter.validate_python(value, strict=True)
                except ValidationError as error:
                    raise ValueError(f"{name} = {value!r}: {error.errors()[0]['msg']}") from error
        return self

    def points(self, **others: Any) -> Iterator[dict[str, Any]]:
        """Fields of every point. others: those of fields that the grid does not give."""
        for fields in self.each:
            together = {**others, **(self.model_extra or {}), **fields}
            several = (value if isinstance(value, (list, tuple)) else (value,) for value in together.values())
            for values in product(*several):
                yield dict(zip(together, values, strict=True))


P = TypeVar("P", bound=Part)


def parsed(kind: type[P], path: Path, is_brief: bool = False, **told: Any) -> P:
    """A study's file, checked; `told`: fields that it may leave out. Paths of machines and policies in it are relative to it.
    is_brief: with what its table [demo] has instead, where lists of names pick from lists of tables.

    Raises ValueError naming the file, the field and the remedy in one line.
    """
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such study; `tokentape study` lists those that ship") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not TOML: {error}") from error
    briefly = fields.pop("demo", {})
    fields |= {name: _picked(fields[name], of) for name, of in briefly.items()} if is_brief else {}
    try:
        return kind.model_validate(_absolute(told | fields, path.resolve().parent, f"{path}: "))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path}: {field}: {first['msg']}; fields are {', '.join(kind.model_fields)}") from error


def own_name(path: Path, name: str) -> str:
    """The name of the study of a file. Raises ValueError for one that results know as another's."""
    if name in (*SYSTEMS, *grids(), "adhoc"):
        raise ValueError(f'{path}: name: {name} is a study that ships, or none; give yours another, name = "my-{name}"')
    return name


def _picked(value: Any, of: Any) -> Any:
    """The tables of these names, by `name` or `series`, or `of` itself."""
    is_of_names = isinstance(of, list) and all(isinstance(one, str) for one in of)
    return [one for one in value if one.get("series", one.get("name")) in of] if is_of_names else of


def _absolute(value: Any, folder: Path, where: str) -> Any:
    """The value with paths of machines and policies made absolute; an absolute path stays as it is. Raises ValueError for NaN."""
    if isinstance(value, dict):
        return {name: _absolute(of, folder, f"{where}{name}.") for name, of in value.items()}
    if isinstance(value, list):
        return [_absolute(of, folder, f"{where}{i}.") for i, of in enumerate(value)]
    if value != value:
        raise ValueError(f"{where[:-1]} is nan; give a number")
    is_file = isinstance(value, str) and (value.endswith(".toml") or is_path(value))
    return str(folder / value) if is_file else value


class StudyFile(Part):
    """A study's file. system: whose study it is, as `tokentape study` lists them; name: of the study, that of its file where it
    says none."""

    system: str
    question: str
    name: str = ""

    SHIPPED: ClassVar[Path]

    @classmethod
    def shipped(cls, is_brief: bool = False) -> Self:
        """The study as it ships, or the seconds of it that the demo computes."""
        found = parsed(cls, cls.SHIPPED, is_brief)
        return found.model_copy(update={"name": found.system})

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """A copy. Raises ValueError naming the file, the field and the remedy."""
        found = parsed(cls, path)
        return found.model_copy(update={"name": own_name(path, found.name or path.stem)})

    @property
    def is_copy(self) -> bool:
        return self.name != self.system

    def decide(self, row: Mapping[str, Any]) -> dict[str, str]:
        """The decisions of the system that a row names (warehouse/schema/table.py), where its columns do not say them."""
        return {}

    def named(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Rows with the study that they are of."""
        return [{"study": self.name} | dict(row) for row in rows]

    def write(self, store: Store, made: Made, of: str = "", last: str = "", sources: str | None = None) -> None:
        """Rows by view, each view's as one batch in place of an earlier one, or all with those of `last`. of: what they are of,
        by default the study.

        A copy answers no claim: the paper's numbers are of the paper's models and machines.
        """
        named = {view: self.named(rows) if "study" in TABLES[view].columns else rows for view, rows in made.items()}
        for view, rows in named.items():
            self._refuse_alike(view, rows)
        maker = self._maker(sources)
        if last:
            write_together(store, named, last, of, maker)
            return
        for view, rows in named.items():
            if not (self.is_copy and view == "answers"):
                replace_rows(store, view, rows, of or self.name, maker)

    def _refuse_alike(self, view: str, rows: Rows) -> None:
        """Raises ValueError for rows that differ though they have one key: the later would take the other's place."""
        key, found = TABLES[view].key, dict[tuple[Any, ...], Mapping[str, Any]]()
        for row in rows:
            if found.setdefault(tuple(row.get(name) for name in key), row) != row:
                told = ", ".join(f"{name} {row.get(name)!r}" for name in key if name != "study")
                raise ValueError(f"study {self.name}: two points are one in {view}; set apart {told}")

    def once(self, store: Store, of: str, last: str, make: Callable[[], Made]) -> str:
        """Writes what `make` makes with the rows of view `last`, unless they are there; what they are `of`."""
        of = f"{self.name}/{of}"
        if not has_rows(store, last, of):
            self.write(store, make(), of, last)
        return of

    def only(self, store: Store, view: str, of: Iterable[str], is_spared: Callable[[dict[str, Any]], bool]) -> None:
        """Removes points of a copy that its file asked for before it was edited: all but those `of` these, and what is spared."""
        if self.is_copy:
            remove_others(store, view, self.name, of, is_spared)

    def write_points(self, store: Store, points: Sequence[Point]) -> None:
        """Runs of a closed form that has no view of its own, as one batch in place of an earlier one of the study."""
        write_batch(store, f"{self.system}-{self.name}", runs_at_rest(self.system, points, self._maker()))

    def _maker(self, sources: str | None = None) -> Maker:
        return Maker(self.name, self.system if self.is_copy else None, sources, self.decide)

    def rows(self, store: Store, view: str) -> list[dict[str, Any]]:
        """What the study wrote of a view, the newest of each key."""
        return read_rows(store, view, self.name)

"""docs/assumptions.md: every fitted or assumed constant by system, and what the study's answers move when it moves.

python -m bench.docs.assumptions docs/assumptions.md [SYSTEM ...]     rewrites the page; all systems, unless some are named

assumed.toml says what a system rests on. Minutes of CPU for each: its study runs in brief, with changed copies of the files.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from bench.docs import write
from tokentape.flows.running import run
from tokentape.flows.systems import SYSTEMS
from tokentape.hw import fit_files, profile, spec
from tokentape.warehouse.claim_errors import AS_THE_PAPER, compared
from tokentape.warehouse.load import claims
from tokentape.warehouse.tape import Store

BY = 0.2  # of a value without a range
TOGETHER = 6  # constants that are tried at once
NOTHING = ("0.0 %, 0.0 %", "unchanged")
TOLD = tomllib.loads(Path(__file__).with_name("assumed.toml").read_text(encoding="utf-8"))
FOLDERS = {"specs": (spec, "SPECS"), "profiles": (profile, "PROFILES"), "fits": (fit_files, "FITS")}
HEAD = """# What is fitted and what is assumed

Every constant of the systems with a study that is fitted, or that no data sheet, standard or paper gives. Written by
`python -m bench.docs.assumptions docs/assumptions.md [SYSTEM ...]`; a test holds the lists to the files they are read from.

Each constant moves to the ends of its range, or 20 % down and up where it has none (a share to 1 at most), all else as it is,
nothing fitted again, and the system's study runs in brief (what `tokentape demo` computes, fewer seeds). *answers*: how far
the numbers that answer the paper's fitted and predicted ones move, on average and the most of any; *error*: the mean error of the
predicted ones then. Both for each end. Empty: not measured since the constant changed.

Not listed: constants of GPU operators, fitted to measured tables by device and version ([calibration](calibration.md) has their
errors), and parameters of policies, which are columns of every run.
"""
COLUMNS = ("constant", "value", "moved to", "source", "answers: mean, most", "error")
Keys = tuple[str, ...]


@dataclass(frozen=True)
class Constant:
    """places: `FILE KEY/OF/TABLE` or `MODULE NAME`, of the same number, that which names it first; source: in words."""

    places: tuple[str, ...]
    value: float
    ends: tuple[float, ...]
    source: str

    @property
    def told(self) -> tuple[str, ...]:
        """What of its row is not computed."""
        place = f"`{self.places[0]}`"
        return place, f"{self.value:.6g}", " / ".join(f"{end:.4g}" for end in self.ends), self.source.replace("|", "/")


class Files:
    """The tables of a system's files by their places, read once."""

    def __init__(self, system: str) -> None:
        self.settings = importlib.import_module(SYSTEMS[system]).Settings
        self.read: dict[str, Any] = {}

    def table(self, name: str) -> Any:
        """Of a file `FOLDER/NAME.toml`, or study.toml."""
        if name not in self.read:
            folder, _, file = name.rpartition("/")
            path = getattr(*FOLDERS[folder]) / file if folder else self.settings.SHIPPED
            self.read[name] = tomllib.loads(path.read_text(encoding="utf-8"))
        return self.read[name]

    def at(self, place: str) -> tuple[Any, Any]:
        """A module, table or list, and the name or index of the constant in it. Raises ValueError where it is gone."""
        where, _, keys = place.partition(" ")
        try:
            if not where.endswith(".toml"):
                module = importlib.import_module(where)
                getattr(module, keys)
                return module, keys
            *tables, last = keys.split("/")
            of = functools.reduce(lambda of, key: of[int(key) if isinstance(of, list) else key], tables, self.table(where))
            key: Any = int(last) if isinstance(of, list) else last
            of[key]
            return of, key
        except (AttributeError, ImportError, LookupError) as error:
            raise ValueError(f"bench/docs/assumed.toml: there is no {place}; take it out of the file") from error


def constants(system: str) -> list[Constant]:
    """Of a system, by its entry of assumed.toml. Raises ValueError where a place that it names is gone."""
    told, files, found = TOLD[system], Files(system), list[Constant]()
    alike = {place: (place, *also) for place, also in told["with"].items()}
    hidden = {place for also in told["with"].values() for place in also} | set(told["others"])

    def add(place: str, leaf: Any, source: str) -> None:
        number: dict[str, Any] = leaf if isinstance(leaf, dict) else {"value": leaf}
        value, low, high = [number.get(key, number["value"]) for key in ("value", "low", "high")]
        ends: tuple[Any, ...] = (
            (low, high) if low < high else (value * (1.0 - BY), min(value * (1.0 + BY), 1.0 if value <= 1.0 else math.inf))
        )
        ends = tuple(round(end) if isinstance(value, int) and low == high else end for end in ends)
        places = alike.get(place, (place,))
        for one in places:
            files.at(one)
        found.append(Constant(places, value, tuple(end for end in ends if end != value), number.get("source", source)))

    in_use = {(key, n.value, n.source) for machine in told["machines"] for key, n in spec.load(machine).numbers()}
    for name in dict.fromkeys(base for machine in told["machines"] for base in _bases(files, machine)):
        table = files.table(f"specs/{name}.toml")
        for keys, leaf in _numbers(table):
            value, source = (leaf["value"], leaf.get("source")) if isinstance(leaf, dict) else (leaf, None)
            source = (source or table.get("source", "")).strip()
            if "assumed" in source and (".".join(keys), float(value), source) in in_use:
                add(f"specs/{name}.toml {'/'.join(keys)}", leaf, source)
    fitted = {".".join(keys) for name in told["fits"] for keys, _ in _numbers(files.table(f"fits/{name}.toml")["constants"])}
    for where, source in [*((f"fits/{name}.toml", "fitted") for name in told["fits"]), (f"profiles/{told['profile']}.toml", "")]:
        for keys, value in _numbers(files.table(where)["constants"] if source else files.table(where)):
            place = f"{where} {'/'.join(('constants', *keys) if source else keys)}"
            if place not in hidden and (source or (value not in (0, 1) and "numbers." + ".".join(keys) not in fitted)):
                add(place, value, source or "profile: fitted or assumed, as its file says")
    for place, why in told["others"].items():
        of, key = files.at(place)
        add(place, of[key] if isinstance(of, dict | list) else getattr(of, key), why)
    return found


def _bases(files: Files, name: str) -> Iterator[str]:
    yield name
    if base := files.table(f"specs/{name}.toml").get("base"):
        yield from _bases(files, base)


def _numbers(of: Any, above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Every number, or table of one, with the keys to it."""
    if isinstance(of, dict) and "value" not in of:
        for key, inner in of.items():
            yield from _numbers(inner, (*above, key))
    elif isinstance(of, dict) or type(of) in (int, float):
        yield above, of


def answered(system: str, to: Mapping[str, float] = MappingProxyType({})) -> tuple[dict[str, float], float]:
    """What the system's study answers in brief, by claim, and the mean error of predicted rows. to: what constants move to. Every
    time in a new store: rows at rest are found by the profiles that ship and the modules' files, which stay as they are."""
    files = Files(system)
    files.table("study.toml")
    for module in (module for name, module in list(sys.modules.items()) if name.startswith("tokentape.")):
        for cached in [one for one in vars(module).values() if hasattr(type(one), "cache_clear")]:
            cached.cache_clear()
    with ExitStack() as moved, tempfile.TemporaryDirectory() as folder:
        for place, briefly in TOLD[system]["brief"].items():
            of, key = files.at(f"study.toml {place}")
            of[key] = briefly
        for place, value in to.items():
            of, key = files.at(place)
            if isinstance(of, dict | list):
                of[key] = {**of[key], "value": value} if isinstance(of[key], dict) else value
            else:
                moved.enter_context(patch.object(of, key, value))
        for file, (module, folder_of) in FOLDERS.items():
            shutil.copytree(getattr(module, folder_of), Path(folder, file))
            moved.enter_context(patch.object(module, folder_of, Path(folder, file)))
        for written, table in files.read.items():
            Path(folder, written).write_text("\n".join(f"{json.dumps(key)} = {_toml(of)}" for key, of in table.items()))
        moved.enter_context(patch.object(files.settings, "SHIPPED", Path(folder, "study.toml")))
        settings = files.settings.shipped(is_brief=True)
        made = run(settings, Store(f"{folder}/tape"), runner="threads", workers=1, say=lambda line: None, in_model=False)
    counted = [
        row for row in compared(claims(), made)[0] if row["mode"] == AS_THE_PAPER and row["role"] in ("calibrate", "predict")
    ]
    errors = [abs(row["error"]) for row in counted if row["role"] == "predict" and row["error"] is not None]
    return {row["claim_id"]: row["replay"] for row in counted}, mean(errors)


def _toml(value: Any) -> str:
    """A value of TOML, tables inline."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(of)}' for key, of in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value) if isinstance(value, str | bool) else repr(value)


def measured(system: str, constant: Constant, stock: Mapping[str, float]) -> tuple[str, str]:
    """The computed cells of a row. stock: answers with nothing moved."""
    moves, errors = [], []
    for end in constant.ends:
        try:
            found, error = answered(system, dict.fromkeys(constant.places, end))
        except ValueError as refusal:
            moves.append(f"refused: {str(refusal).rpartition(': ')[2]}")
            continue
        by = [abs(found[claim] / value - 1.0) for claim, value in stock.items() if value and claim in found]
        moves.append(f"{mean(by):.1%}, {max(by):.1%}".replace("%", " %"))
        errors.append(f"{error:.1%}".replace("%", " %"))
    return " / ".join(moves), " / ".join(errors)


def idle(system: str, every: Sequence[Constant], stock: Mapping[str, float]) -> set[Constant]:
    """Of the constants those that, moved together to either end, move no answer: many numbers of a machine are not asked for."""
    found = set[Constant]()
    for at in range(0, len(every), TOGETHER):
        some = [constant for constant in every[at : at + TOGETHER] if constant.ends]
        try:
            both = [answered(system, {p: c.ends[i] for c in some for p in c.places})[0] for i in (0, -1)]
        except ValueError:
            continue
        found |= set(some) if both == [stock, stock] else set()
    return found


def page(text: str, asked: Sequence[str] = ()) -> str:
    """The document anew, with numbers computed for the systems that are asked and those of `text` for the others."""
    lines = [HEAD]
    for system in TOLD:
        every, is_asked = constants(system), system in asked
        section = text.partition(f"## {system}\n\n")[2].partition("\n## ")[0].splitlines()
        rows = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in section]
        said, known = next(iter(section), ""), {cells[:-2]: cells[-2:] for cells in rows}
        if is_asked:
            stock, error = answered(system)
            said = f"{len(stock)} answers; predicted ones are {100 * error:.1f} % off in the mean."
            still = idle(system, every, stock)
            known = {c.told: NOTHING if c in still else measured(system, c, stock) for c in every}
        lines += [f"## {system}\n", said, "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines += [f"| {' | '.join((*constant.told, *known.get(constant.told, ('', ''))))} |" for constant in every]
        lines.append("")
    return "\n".join(lines)


def main(pages: Sequence[str], asked: Sequence[str]) -> None:
    """Writes the page system by system, so that what is there stays should the rest be stopped."""
    usage = f"assumptions docs/assumptions.md [SYSTEM ...]; systems: {', '.join(TOLD)}"
    if not set(asked) <= set(TOLD):
        write(usage, (), str)
    for n, system in enumerate(asked, 1):
        print(f"{system}, {n} of {len(asked)} systems: {len(constants(system))} constants", file=sys.stderr, flush=True)
        write(usage, pages, functools.partial(page, asked=(system,)))


if __name__ == "__main__":
    main(sys.argv[1:2], sys.argv[2:] or list(TOLD))

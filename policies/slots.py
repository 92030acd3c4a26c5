"""A system: nine decisions, each a policy or none. What does not compose is refused before it runs. See docs/systems.md."""

import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokentape.policies import registry
from tokentape.policies.names import refuse_twice, refuse_unknown, unknown
from tokentape.policies.resolve import convert, resolve, told

SLOTS = ("schedule", "draft", "route", "precision", "residency", "prefetch", "place", "kv", "refresh")
FOLDER = Path(__file__).parent / "shipped"
# What a slot takes beside its policy's own parameters, as text: how much room it has, and of what.
OPTIONS: dict[str, dict[str, str]] = {
    "residency": {"budget": "", "scope": "global", "share_kv": "false", "start": "persistent"},
    "place": {"budget": "", "across_layers": "false"},
    "precision": {"mean_bits": "16"},
    "schedule": {"max_seqs": "1"},
    "kv": {"storage": "plain", "bits": "4", "rate": "", "resample": "false"},
}


@dataclass(frozen=True)
class System:
    """policies: by slot, those that decide; options: of a slot, by OPTIONS. Raises ValueError, in one line, for a slot that it
    does not have, a policy in a slot it does not know, and a slot that two policies fill."""

    name: str
    policies: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        filled: dict[str, str] = {}
        for slot, policy in self.policies.items():
            refuse_unknown(f"system {self.name}: slot", slot, SLOTS)
            label, takes = type(policy).__name__, slots_of(slot, policy)
            if slot not in takes:
                raise ValueError(f"system {self.name}: {label} decides {' and '.join(takes)}, not {slot}")
            for taken in takes:
                if taken in filled:
                    raise ValueError(
                        f"system {self.name}: slot {taken} is filled twice, by {filled[taken]} and by {label}; leave one out"
                    )
                filled[taken] = label

    def __getattr__(self, slot: str) -> Any:
        if slot in SLOTS:
            return self.policies.get(slot)
        raise AttributeError(slot)

    @property
    def sliced(self) -> Any:
        """SliceMoE, where it fills route, precision and residency; else None."""
        return self.route if "residency" in getattr(self.route, "slots", ()) else None

    @property
    def room(self) -> str:
        """The slot whose option `budget` says how much room experts have; empty where nothing bounds it."""
        return "residency" if self.residency is not None or self.sliced is not None else "place" if self.place is not None else ""

    def option(self, slot: str, name: str) -> str:
        return self.options.get(slot, {}).get(name, OPTIONS[slot][name])

    def flag(self, slot: str, name: str) -> bool:
        """An option that is true or false. Raises ValueError for anything else."""
        return bool(convert(f"system {self.name}: {slot}.{name}", self.option(slot, name), bool))

    def number(self, slot: str, name: str) -> float:
        """An option that is a number. Raises ValueError for anything else."""
        return float(convert(f"system {self.name}: {slot}.{name}", self.option(slot, name), float))

    @property
    def max_seqs(self) -> int:
        """Requests at once. Raises ValueError for what is no count."""
        value = self.number("schedule", "max_seqs")
        if not 1 <= value < 2**63 or not value.is_integer():
            raise ValueError(f"system {self.name}: schedule.max_seqs {value:g} must be a whole number of at least 1, of 64 bits")
        return int(value)

    def refuse_room(self, room: int = 0, top_k: int = 0, sizes: Sequence[int] = (0,)) -> None:
        """Raises ValueError for a cache of so many bytes, or a scope, that cannot hold a token's experts of a layer, and for a
        placement that does not go with what holds them. sizes: bytes of an expert, by layer."""
        scope = self.option("residency", "scope")
        if scope not in ("global", "per-layer"):
            raise ValueError(f"system {self.name}: residency.scope {scope!r} is unknown; choose global or per-layer")
        if (start := self.option("residency", "start")) not in ("persistent", "cold"):
            raise ValueError(f"system {self.name}: residency.start {start!r} is unknown; choose persistent or cold")
        if start == "cold" and self.sliced is None:
            raise ValueError(f"system {self.name}: residency.start cold is heeded by slicemoe alone; leave it out")
        if self.sliced is not None and self.place is not None:
            raise ValueError(f"system {self.name}: slicemoe keeps slices, and placements move whole experts; leave place out")
        if self.sliced is not None and scope != "global":
            raise ValueError(f"system {self.name}: slices of all layers share one cache; leave residency.scope out")
        if self.residency is None and self.sliced is None and getattr(self.place, "needs_cache", False):
            raise ValueError(
                f"system {self.name}: {type(self.place).__name__} decides where missing experts compute, and without a cache "
                "none is missing; add residency = { policy = 'lru' }, or leave place out"
            )
        caches = len(sizes) if scope == "per-layer" else 1
        needed = top_k * max(sizes) * caches
        if self.residency is not None and room < needed:
            raise ValueError(
                f"system {self.name}: budget {room} B is below one layer's event, top-k = {top_k} experts"
                f"{' in every layer' if caches > 1 else ''} ({needed} B); give residency.budget at least that"
            )

    def blamed(self) -> ExitStack:
        """Within it, what policies of one's own raise is one line each (registry.blamed)."""
        own = ExitStack()
        for slot, policy in self.policies.items():
            own.enter_context(registry.blamed(slot, told(slot, policy)[0]))
        return own

    def without(self, slot: str) -> Self:
        return replace(
            self,
            policies={of: policy for of, policy in self.policies.items() if of != slot},
            options={of: given for of, given in self.options.items() if of != slot},
        )

    def told(self) -> dict[str, str]:
        """Every slot as text: `lru budget=24GB scope=global`, or `none`."""
        return {slot: " ".join(_words(slot, self)) for slot in SLOTS}

    @property
    def is_bound(self) -> bool:
        """A decision of it sees the future."""
        return any(getattr(policy, "is_bound", False) for policy in self.policies.values())


def slots_of(slot: str, policy: Any) -> tuple[str, ...]:
    """The slots that a policy fills: as its class says (`slots`), else the one of its kind. A placement that stands while
    requests decode says what the fast tier holds."""
    named = getattr(policy, "slots", None)
    if isinstance(named, tuple):
        return named
    if getattr(policy, "kind", "") in ("fixed", "reactive") and slot in ("place", "residency"):
        return ("place", "residency")
    is_cache = getattr(policy, "kind", "") in ("queue", "lists", "ranked", "uniform", "future")  # placements have these too
    known = (kind for kind in SLOTS if kind in registry.KINDS and (kind != "residency" or is_cache))
    kinds = [kind for kind in known if registry.is_of(kind, policy)]
    return (slot,) if slot in kinds or not kinds else tuple(kinds)


def system_of(name: str, given: Mapping[str, Any] | None = None) -> System:
    """A system by the name of a shipped one, or the path of a TOML file with a table [system]; one's own policies lie beside it,
    else where their paths say. given, in any order, in place of what the file says: residency -> policy, which takes the slot as
    it is (OPTIONS), and residency.budget -> value. Raises ValueError with the nearest name, or what is wrong in which slot."""
    path = FOLDER / f"{name}.toml"
    if name.endswith(".toml") or "/" in name:
        path = Path(name)
    elif not path.is_file():
        raise unknown("system", name, shipped())
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"system {name}: {error.strerror}; give a TOML file or one of {', '.join(shipped())}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not TOML: {error}") from error
    if set(data) != {"system"} or not isinstance(data["system"], dict):
        raise ValueError(f"{path}: a system is one table [system] with a line per slot ({', '.join(SLOTS)})")
    table = {slot: _as_table(path, slot, value) for slot, value in data["system"].items()}
    for slot, told_as in table.items():
        name, _, class_name = str(told_as.get("policy")).rpartition(":")
        if name.endswith(".py") and (beside := path.parent / name).is_file():
            table[slot] = {**told_as, "policy": f"{beside}:{class_name}"}
    for key, value in sorted((given or {}).items(), key=lambda of: "." in of[0]):
        slot, dot, parameter = key.partition(".")
        refuse_unknown("slot", slot, SLOTS)
        if not dot:
            kept = {name: of for name, of in table.get(slot, {}).items() if name in OPTIONS.get(slot, {}) and value != "none"}
            table[slot] = kept | _as_table(path, slot, value)
        elif slot not in table:
            raise ValueError(f"{key}: system {path.stem} has no policy in slot {slot}; name one with {slot}=POLICY")
        else:
            table[slot] = {**table[slot], parameter: value}
    return of_table(path.stem, table)


def of_table(name: str, table: Mapping[str, Mapping[str, Any]]) -> System:
    """From policy names and parameters by slot. Raises ValueError as `system_of`."""
    policies, options = dict[str, Any](), dict[str, dict[str, str]]()
    for slot, value in table.items():
        refuse_unknown(f"slot of system {name}:", slot, SLOTS)
        given = dict(value)
        policy = str(given.pop("policy", "none"))
        options[slot] = {key: str(given.pop(key)) for key in OPTIONS.get(slot, {}) if key in given}
        if policy == "none" and slot == "kv" and options[slot]:
            policy = "full"  # all are kept, and stored as the options say
        if policy == "none":
            options[slot] |= {key: str(value) for key, value in given.items()}  # refused below, where nothing fills the slot
            continue
        try:
            policies[slot] = resolve(slot, policy, given)
        except ValueError as error:
            other = next((kind for kind in registry.KINDS if kind != slot and policy in registry.shipped(kind)), None)
            if other is None or policy in registry.shipped(slot):
                own = OPTIONS.get(slot)
                also = f"; the slot itself takes {', '.join(own)}" if own and "unknown parameter" in str(error) else ""
                raise ValueError(f"system {name}, slot {slot}: {error}{also}") from error
            raise ValueError(
                f"system {name}: {policy} is a {registry.KINDS[other].noun} of slot {other}, not of {slot}"
            ) from error
    made = System(name, policies, options)
    for slot in ("residency", "place"):
        if slot != made.room and made.option(slot, "budget"):
            remedy = f"give {made.room}.budget in its place" if made.room else "leave it out"
            raise ValueError(f"system {name}: {slot}.budget has no effect, experts have their room from elsewhere; {remedy}")
    filled = {of for slot, policy in policies.items() for of in slots_of(slot, policy)}
    for slot, given in options.items():
        if given and slot not in filled:
            raise ValueError(f"system {name}: {slot}.{next(iter(given))} has no effect without a policy in slot {slot}; name one")
    return made


def shipped() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def _as_table(path: Path, slot: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"policy": value}
    if isinstance(value, dict) and ("policy" in value or value.keys() <= OPTIONS.get(slot, {}).keys()):
        return value  # options alone: of the slot that another slot's policy fills
    raise ValueError(f'{path}: slot {slot} is {slot} = {{ policy = "NAME", ... }} or {slot} = "NAME", found {value!r}')


def _words(slot: str, system: System) -> list[str]:
    policy = system.policies.get(slot)
    filling = next((of for of, other in system.policies.items() if slot in slots_of(of, other)), None)
    if policy is None and filling is None:
        return ["none"]
    name, params = told(slot, policy) if policy is not None else (f"by {filling}", {})
    texts = {key: _digest(value) if isinstance(value, np.ndarray) else value for key, value in params.items()}
    texts |= system.options.get(slot, {})
    return [name, *(f"{key}={value}" for key, value in texts.items() if value not in ("", None))]


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


def parse_settings(texts: list[str] | None) -> dict[str, str]:
    """`["residency.budget=24GB"]` as a dict. Raises ValueError for text of another form."""
    for text in texts or []:
        if not re.fullmatch(r"[a-z_]+(?:\.[a-z_.]+)?=.+", text):
            raise ValueError(f"--set {text!r} is not SLOT=POLICY or SLOT.PARAMETER=VALUE, such as residency.budget=24GB")
    refuse_twice("--set", (text.split("=", 1)[0].removesuffix(".policy") for text in texts or []))
    return dict(text.split("=", 1) for text in texts or [])

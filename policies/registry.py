"""Every policy by kind and name: the shipped ones, a user's own as `file.py:Class`, installed ones by entry point.

A kind is one of the decisions that a system consists of. Only the kind that is asked for is imported. The file of a user's own
policy is imported, that is, run: it is the user's own code. So is an entry point of group `tokentape.policies`.
"""

import dataclasses
import importlib
import inspect
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple

from tokentape.policies import own_modules
from tokentape.policies.names import unknown

GROUP = "tokentape.policies"


class Kind(NamedTuple):
    """noun: what a person calls it. module: where its dict `names` of name -> class lies. base: the class or protocol there that
    all of it are; must: the same in words, for one's own."""

    noun: str
    module: str
    names: str
    base: str
    must: str


KINDS = {
    "residency": Kind(
        "policy", "tokentape.policies.residency", "CACHES", "CachePolicy",
        "needs the class attributes `kind` and `is_bound` (policies/protocol.py)",
    ),
    "prefetch": Kind(
        "prefetcher", "tokentape.policies.prefetch", "PREFETCHERS", "Prefetcher",
        "is derived from policies.prefetch.Prefetcher (docs/systems.md)",
    ),
    "schedule": Kind(
        "scheduler", "tokentape.policies.serving", "SCHEDULERS", "AnyScheduler", "needs `rule` (policies/serving/rule.py)"
    ),
    "kv": Kind("KV policy", "tokentape.policies.kv", "TYPED", "KVPolicy", "is derived from policies.kv.KVPolicy (docs/kv.md)"),
    "place": Kind(
        "placement", "tokentape.policies.placement", "PLACEMENTS", "Placement",
        "is derived from policies.placement.FixedPlacement, ReactivePlacement or EventPlacement",
    ),
    "precision": Kind("bit rule", "tokentape.policies.bits", "WIDTH_RULES", "WidthRule", "is derived from policies.bits.BitRule"),
    "draft": Kind(
        "pool policy", "tokentape.policies.speculation", "DRAFTS", "DRAFT",
        "needs `rehearses`, `first` and `wanted` (policies/speculation/pools.py)",
    ),
    "route": Kind(
        "router", "tokentape.policies.sliced", "ROUTES", "Route",
        "is derived from policies.sliced.ranking.Router (docs/systems.md)",
    ),
    "refresh": Kind(
        "refresh policy", "tokentape.policies.kv.refresh", "REFRESH", "Refresh",
        "needs `harmonic_mean_us` (policies/kv/refresh.py)",
    ),
    "system": Kind("system", "tokentape.policies.systems", "SYSTEMS", "System", "is SliceMoE or MixedPrecision"),
}  # fmt: skip


def shipped(kind: str) -> Mapping[str, Any]:
    """Name -> class of a kind, or the policy itself where it has no parameters."""
    of = KINDS[kind]
    found: Mapping[str, Any] = getattr(importlib.import_module(of.module), of.names)
    return found


def find(kind: str, name: str, also: Iterable[str] = ()) -> Any:
    """The class behind a policy's name, or the policy itself where it has no parameters. also: what else may be typed there.

    Raises ValueError with the nearest name, or saying what is wrong with the file or the entry point.
    """
    of, names = KINDS[kind], shipped(kind)
    if name in names:
        return names[name]
    if kind == "residency" and name in shipped("system"):
        whole = "--system slicemoe --set route.pair=MAT42 --set residency.budget=40%"
        raise ValueError(f"{name} decides more than what leaves a cache; give a whole system, as {whole} (docs/systems.md)")
    if not (point := installed().get(name)) and not is_path(name):
        if name.endswith(".py"):
            raise ValueError(f"{of.noun} {name!r}: name the class too, as in {name}:MyPolicy")
        raise unknown(of.noun, name, (*names, *installed(), *also))
    found = _loaded(point) if point else _of_file(name)
    if not point and found.__name__ in names:
        raise ValueError(f"{name}: {found.__name__} is that of a shipped {of.noun}; give the class a name of its own")
    if not dataclasses.is_dataclass(found):
        raise ValueError(f"{name}: a {of.noun} is a frozen dataclass; put @dataclass(frozen=True) above it (docs/development.md)")
    return found


def check(kind: str, name: str, policy: Any) -> Any:
    """The policy, if it is of the kind. Raises ValueError saying what one needs."""
    if not is_of(kind, policy):
        raise ValueError(f"{name}: a {KINDS[kind].noun} {KINDS[kind].must}")
    return policy


def is_of(kind: str, policy: Any) -> bool:
    """Whether it derives from what all policies of the kind do."""
    return isinstance(policy, getattr(importlib.import_module(KINDS[kind].module), KINDS[kind].base))


def name_of(kind: str, policy: Any) -> str:
    """What `find` takes, and results say: a name, else `/path/to/file.py:Class`; the class name alone where it is of no file."""
    own = type(policy)
    for name, entry in shipped(kind).items():
        if entry is policy or entry is own:
            return name
    for name, point in installed().items():
        if point.value == f"{own.__module__}:{own.__qualname__}":
            return name
    file = getattr(sys.modules.get(own.__module__), "__file__", None)
    return f"{Path(file).resolve()}:{own.__name__}" if file else own.__name__


def is_path(name: str) -> bool:
    return ".py:" in name


def sha256(kind: str, name: str) -> str | None:
    """Hash of a user's own policy, its imports with it, of an installed one also its version; None for a shipped one."""
    if not (file := _own_file(kind, name)):
        return None
    point = installed().get(name)
    version = f"{point.dist.name} {point.dist.version} " if point and point.dist else ""
    return version + own_modules.sha256(file)


def reached(kind: str, name: str) -> tuple[str, ...]:
    """Names of tokentape's modules that a policy begins at: a shipped one's own, or what the files of a user's own import."""
    if file := _own_file(kind, name):
        return own_modules.of_tokentape(file)
    found = shipped(kind)[name]
    return (found.__module__ if isinstance(found, type) else KINDS[kind].module,)


@contextmanager
def blamed(kind: str, name: str | None) -> Iterator[None]:
    """Within it, what a user's own policy raises is one line that names its file and line; a shipped policy's bug stays one."""
    try:
        yield
    except (OSError, ImportError, MemoryError):
        raise
    except Exception as error:
        if name is None or not (file := _own_file(kind, name)):
            raise
        path = file.resolve()
        lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if Path(at.filename).resolve() == path]
        if isinstance(error, ValueError) and not lines:  # ours, in words
            raise
        where = f"{name}, line {lines[-1]}" if lines else name
        raise ValueError(f"{where}: the policy raised {type(error).__name__}: {error}") from error


def _own_file(kind: str, name: str) -> Path | None:
    if is_path(name):
        return Path(name.rpartition(":")[0])
    point = None if name in shipped(kind) else installed().get(name)
    return Path(inspect.getfile(_loaded(point))) if point else None


def _of_file(name: str) -> type:
    path, _, class_name = name.rpartition(":")
    module = own_modules.load(Path(path))
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise unknown(f"class in {path}:", class_name, (n for n, v in vars(module).items() if isinstance(v, type)))
    return found


@lru_cache(maxsize=1)
def installed() -> dict[str, EntryPoint]:
    """Installed policies of every kind, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def _loaded(point: EntryPoint) -> type:
    try:
        found = point.load()
    except Exception as error:
        raise ValueError(f"entry point {point.name} = {point.value}: {type(error).__name__}: {error}") from error
    if not isinstance(found, type):
        raise ValueError(f"entry point {point.name} = {point.value}: not a class")
    return found

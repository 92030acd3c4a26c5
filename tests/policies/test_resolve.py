"""Text into policies and back, for every kind, and what is said when a word is wrong."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusing import refuses

from tokentape.policies import registry
from tokentape.policies.lru import LRU
from tokentape.policies.registry import KINDS, find, name_of, shipped
from tokentape.policies.resolve import convert, parse, resolve, told
from tokentape.policies.sliced import SliceMoE
from tokentape.policies.sliced.buddy import Buddy
from tokentape.policies.sliced.cache import SlicedCache
from tokentape.policies.sliced.cache_prior import CachePrior

NEEDED = {"cxl_ndp": {"hot": 4}}  # fields without a default
SHIPPED = [(kind, name) for kind in KINDS for name in shipped(kind)]
HERE = Path(__file__).resolve().parent
CHANGED: dict[tuple[str, ...], dict[str, str]] = {
    tuple(key.split(" ")): params for key, params in json.loads((HERE / "policies_changed.json").read_text()).items()
}


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_a_policy_told_is_the_same_policy(kind: str, name: str) -> None:
    plain = resolve(kind, name, NEEDED.get(name))
    changed = resolve(kind, name, CHANGED.get((kind, name), NEEDED.get(name, {})))
    for policy in (plain, changed):
        canonical, params = told(kind, policy)
        assert canonical == ("aerp" if name == "kelle" else name)
        assert resolve(kind, canonical, params) == policy
        as_text = {key: str(value) for key, value in params.items()}
        assert resolve(kind, canonical, as_text) == policy
    assert (changed == plain) == ((kind, name) not in CHANGED)


def test_every_parameter_is_tried_with_another_value() -> None:
    for kind, name in SHIPPED:
        has_some = bool(told(kind, resolve(kind, name, NEEDED.get(name)))[1])
        assert has_some == ((kind, name) in CHANGED), (kind, name)


def test_parts_have_their_own_parameters() -> None:
    made = resolve("system", "slicemoe", {"router": "cache_prior", "router.protect": 1, "bits_high": 6, "bits_low": 3})
    assert made == SliceMoE(router=CachePrior(protect=1), cache=SlicedCache(6, 3))
    assert made == resolve("system", "slicemoe", {"pair": "MAT63", "router": "cache_prior", "router.protect": "1"})


def test_an_array_is_given_by_the_caller() -> None:
    alike = np.eye(4, dtype=np.float32)[None]
    made = resolve("system", "slicemoe", {"router": "buddy", "router.similarity": alike, "router.threshold": "0.75"})
    assert isinstance(made.router, Buddy)
    assert made.router.similarity is alike
    name, params = told("system", made)
    again = resolve("system", name, params).router
    assert (again.similarity is alike, again.threshold) == (True, 0.75)
    with pytest.raises(ValueError, match=r"slicemoe: router\.similarity=TRACE is not an array, which its caller gives"):
        resolve("system", "slicemoe", {"router": "buddy", "router.similarity": "TRACE"})
    with pytest.raises(ValueError, match=r"slicemoe: free_steps=array of \(1, 4, 4\) is not a whole number"):
        resolve("system", "slicemoe", {"free_steps": alike})


@pytest.mark.parametrize(
    ("kind", "name", "params", "says"),
    json.loads((HERE / "policies_mistyped.json").read_text()),
)
def test_mistakes_are_one_line_with_the_remedy(kind: str, name: str, params: dict[str, Any], says: str) -> None:
    refuses(says, resolve, kind, name, params)


def test_text_of_a_union_is_the_first_that_fits() -> None:
    assert [convert("x", text, int | None) for text in ("none", "None", None, "7", 7)] == [None, None, None, 7, 7]
    assert [convert("x", text, int | str) for text in ("7", "-7", "auto", 7)] == [7, -7, "auto", 7]
    assert [convert("x", text, float | bool) for text in ("true", "1", 2)] == [True, 1.0, 2.0]
    assert convert("x", "TRACE", Any) == "TRACE"
    for nan in ("nan", float("nan")):
        refuses("x=nan is not a number", convert, "x", nan, float)
    assert parse(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    assert parse(None) == {}
    refuses("--param gives a twice; leave one out", parse, ["a=1", "a=2"])


OWN = """
from dataclasses import dataclass
from tokentape.policies.kv.streaming import Streaming
from tokentape.policies.lru import LRU
from tokentape.policies.serving import Chunked
from tokentape.policies.sliced.ranking import Router

@dataclass(frozen=True)
class Kept(Streaming):
    sink: int = 2

@dataclass(frozen=True)
class Cut(Chunked):
    chunk_tokens: int = 64

@dataclass(frozen=True)
class Needy(LRU):
    size: int

class Plain:
    pass

class lru(LRU):
    pass

class Pulled(Router):
    pull: float = 2.0
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(OWN)
    return str(tmp_path / "mine.py")


@pytest.mark.parametrize(("kind", "own", "params"), [("kv", "Kept", {"sink": "5"}), ("schedule", "Cut", {"chunk_tokens": "32"})])
def test_a_policy_by_path_is_of_any_kind(mine: str, kind: str, own: str, params: dict[str, str]) -> None:
    for given in ({}, params):
        policy = resolve(kind, f"{mine}:{own}", given)
        name, values = told(kind, policy)
        assert name_of(kind, policy) == name == f"{mine}:{own}"
        assert resolve(kind, name, values) == policy


@pytest.mark.parametrize(("kind", "own", "says"), json.loads((HERE / "of_another_kind.json").read_text()))
def test_a_policy_by_path_of_another_kind_is_refused(mine: str, kind: str, own: str, says: str) -> None:
    refuses(says, resolve, kind, f"{mine}:{own}")


Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install(name, value)` adds an entry point; module `kept_apart` holds what OWN does, and `broken` does not import."""
    (tmp_path / "kept_apart.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "kept_apart", raising=False)
    points: list[EntryPoint] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: [point for point in points if point.group == group])
    registry.installed.cache_clear()

    def add(name: str, value: str) -> None:
        points.append(EntryPoint(name, value, "tokentape.policies"))
        registry.installed.cache_clear()

    return add


@pytest.fixture(autouse=True)
def nothing_stays_installed() -> Any:
    yield
    registry.installed.cache_clear()


def test_an_entry_point_is_a_policy_by_its_name(install: Install, tmp_path: Path) -> None:
    install("kept", "kept_apart:Kept")
    policy = resolve("kv", "kept", {"sink": "3"})
    assert (type(policy).__name__, policy.sink) == ("Kept", 3)
    assert told("kv", policy)[0] == name_of("kv", policy) == "kept"
    assert resolve("kv", *told("kv", policy)) == policy
    before = registry.sha256("kv", "kept")
    (tmp_path / "kept_apart.py").write_text(OWN + "\n# changed\n")
    assert registry.sha256("kv", "kept") != before
    refuses("unknown KV policy 'kep'; did you mean 'kept'", find, "kv", "kep")
    refuses("kept: a policy needs the class attributes", resolve, "residency", "kept")


def test_a_shipped_name_is_the_shipped_policy(install: Install) -> None:
    install("lru", "kept_apart:Kept")
    assert resolve("residency", "lru") == LRU()
    assert name_of("residency", LRU()) == "lru"
    assert registry.sha256("residency", "lru") is None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("broken:Kept", "entry point odd = broken:Kept: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("kept_apart:Absent", "entry point odd = kept_apart:Absent: AttributeError"),
        ("kept_apart:dataclass", "entry point odd = kept_apart:dataclass: not a class"),
        ("kept_apart:Plain", "odd: a policy is a frozen dataclass"),
    ],
)
def test_an_entry_point_that_is_no_policy_is_named(install: Install, value: str, says: str) -> None:
    install("odd", value)
    refuses(says, resolve, "residency", "odd")


def test_names_and_their_registry_import_nothing_that_computes() -> None:
    code = "import sys, tokentape.policies.names, tokentape.policies.registry; assert not {'numpy', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

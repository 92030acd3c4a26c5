"""Policies by name and by path, their parameters, and what is said when one is wrong."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import Cli
from refusing import refuses

from tokentape.capture.importers.bigmoe import import_bigmoe
from tokentape.flows.grid import load_trace
from tokentape.policies import own_modules
from tokentape.policies.registry import find, sha256
from tokentape.policies.resolve import parse, resolve
from tokentape.warehouse.tape import Store

MINE = '''
"""Evicts the expert that was looked up most: a bad idea, but mine."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(frozen=True)
class MostUsed:
    weight: float = 1.0
    label: str = "x"
    kind: ClassVar[str] = "ranked"
    bypass: ClassVar[bool] = False
    is_bound: ClassVar[bool] = False
    profile_frac: ClassVar[float] = 0.0

    def params(self):
        return np.array([self.weight])

    @staticmethod
    def rank(of):
        return -of.params[0] * of.n_total
'''


RAISES = """
    def __post_init__(self):
        if self.weight == 2.0:
            {}["absent"]
"""


def test_own_policy_takes_text_as_its_fields_types(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    name = f"{tmp_path}/mine.py:MostUsed"
    policy = resolve("residency", name, parse(["weight=2", "label=3"]))
    assert (policy.weight, policy.label) == (2.0, "3")  # type: ignore[attr-defined]
    assert len(sha256("residency", name) or "") == 64
    assert sha256("residency", "lru") is None


HELPED = MINE.replace("import numpy as np\n", "import numpy as np\n\nfrom {helper} import sign\n").replace(
    "return -of.params[0]", "return sign * of.params[0]"
)


def with_helper(folder: Path, files: dict[str, str], helper: str = "my_sign") -> str:
    for name, text in {"mine.py": HELPED.replace("{helper}", helper), **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return f"{folder / 'mine.py'}:MostUsed"


def sign_of(name: str) -> float:
    return float(find("residency", name).rank(SimpleNamespace(n_total=1, params=[1.0])))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changed", "files", "helper"),
    [
        ("one.py", {"one.py": "sign = -1\n"}, "one"),
        ("far.py", {"near.py": "from far import sign\n", "far.py": "sign = -1\n"}, "near"),
        ("kit/b.py", {"kit/__init__.py": "", "kit/a.py": "from .b import sign\n", "kit/b.py": "sign = -1\n"}, "kit.a"),
        ("bare/b.py", {"bare/b.py": "sign = -1\n"}, "bare.b"),
        ("late.py", {"top.py": "def f():\n    import late\nsign = -1\n", "late.py": "sign = -1\n"}, "top"),
    ],
)
def test_what_a_policy_imports_is_part_of_its_hash_and_is_run_again(
    tmp_path: Path, changed: str, files: dict[str, str], helper: str
) -> None:
    """Same size, same second: bytecode in __pycache__ would be believed."""
    name = with_helper(tmp_path, files, helper)
    before = sha256("residency", name)
    assert sign_of(name) == -1
    (tmp_path / changed).write_text(files[changed].replace("-1", "+1"))
    assert sha256("residency", name) != before
    assert sign_of(name) == (-1 if changed == "late.py" else 1)
    (tmp_path / changed).write_text(files[changed])
    assert sha256("residency", name) == before
    assert sign_of(name) == -1


def test_modules_that_are_installed_ours_or_not_imported_are_no_part_of_a_policys_hash(tmp_path: Path) -> None:
    name = with_helper(tmp_path, {"my_sign.py": "import json, numpy, tokentape.policies.lru\nsign = -1\n"})
    assert list(own_modules.own_modules(tmp_path / "mine.py")) == ["my_sign"]
    before = sha256("residency", name)
    (tmp_path / "other.py").write_text("x = 1\n")
    (tmp_path / "json.py").write_text("x = 1\n")
    assert sha256("residency", name) == before


def test_helpers_of_one_name_or_no_python_and_files_that_do_not_run_are_named(tmp_path: Path) -> None:
    first, second = (with_helper(tmp_path / side, {"both.py": f"sign = {n}\n"}, "both") for side, n in (("a", -1), ("b", 1)))
    assert sign_of(first) == -1
    refuses(r"b/mine\.py: imports its module both, but both is .*a/both\.py already; rename one", sign_of, second)
    name = with_helper(tmp_path, {"odd.py": "sign = (\n"}, "odd")
    refuses(r"odd\.py: cannot be imported: SyntaxError", find, "residency", name)
    path = tmp_path / "broken.py"
    path.write_text("import nothing_of_this_name\n")
    refuses(r"broken\.py: cannot be imported: ModuleNotFoundError", find, "residency", f"{path}:Mine")
    refuses("NAME=VALUE", parse, ["profile_frac"])


def test_what_a_policy_raises_is_one_line_with_its_place(store: Store, tokentape: Cli, tmp_path: Path) -> None:
    """When it is made, and when it is asked for its parameters."""
    texts = {
        "made.py": MINE.replace("    def params(self):", RAISES + "\n    def params(self):"),
        "asked.py": MINE.replace("return np.array([self.weight])", "return self.absent"),
        "said.py": MINE.replace("return np.array([self.weight])", "raise ValueError(self.weight)"),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    before = sorted(Path(store.root).rglob("*"))
    command = ("--capacity", "50%", "--scope", "global", "--param", "weight=2")
    for name, error in (("made.py", "KeyError"), ("asked.py", "AttributeError"), ("said.py", "ValueError")):
        done = tokentape.refused("replay", "tiny", "--policy", f"{name}:MostUsed", *command)
        assert re.search(rf"^tokentape: {name}:MostUsed, line \d+: the policy raised {error}: ", done.err)
    assert sorted(Path(store.root).rglob("*")) == before


def test_what_a_policy_needs_is_read_from_the_tape_or_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    trace_id = import_bigmoe(Path(__file__).parents[1] / "data" / "tiny.route.csv", store)
    weights = store.open(trace_id).read("routing")["gate_weights"].explode().to_list()
    assert load_trace(store, trace_id, needs=("gate",)).told["gate"].tolist() == weights
    assert load_trace(store, trace_id).told == {}
    refuses("holds no scores, which the policy reads; record it with", load_trace, store, trace_id, needs=("score",))

"""Policies by name and by path, their parameters, and what is said when one is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows import own_policy
from policies import CACHES

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
    def rank(now, n_cached, n_total, profile, params):
        return -params[0] * n_total


class NotADataclass:
    pass
'''


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return str(path)


def test_every_shipped_policy_is_made_by_name() -> None:
    for name in CACHES:
        assert isinstance(own_policy.make_policy(name, {}), CACHES[name])


def test_own_policy_takes_text_as_its_fields_types(mine: str) -> None:
    policy = own_policy.make_policy(f"{mine}:MostUsed", own_policy.parse_params(["weight=2", "label=3"]))
    assert (policy.weight, policy.label) == (2.0, "3")  # type: ignore[attr-defined]
    assert len(own_policy.policy_sha256(f"{mine}:MostUsed") or "") == 64
    assert own_policy.policy_sha256("lru") is None


@pytest.mark.parametrize(
    ("name", "params", "says"),
    [
        ("lru2", {}, "did you mean 'lru'"),
        ("lru", {"size": 1}, "unknown parameter of lru: 'size'"),
        ("static", {"profile_fraction": 1}, "did you mean 'profile_frac'"),
        ("static", {"profile_frac": "much"}, "profile_frac=much is not of type float"),
        ("static", {"profile_frac": 0}, "must lie in"),
        ("nowhere.py:Mine", {}, "no such file"),
        ("mine.py", {}, "name the class too"),
        ("MINE:MostUse", {}, "did you mean 'MostUsed'"),
        ("MINE:NotADataclass", {}, "frozen dataclass"),
    ],
)
def test_mistakes_are_one_line(mine: str, name: str, params: dict[str, own_policy.Value], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        own_policy.make_policy(name.replace("MINE", mine), params)
    assert "\n" not in str(caught.value)


def test_a_file_that_does_not_run_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import nothing_of_this_name\n")
    with pytest.raises(ValueError, match=r"broken\.py: cannot be imported: ModuleNotFoundError"):
        own_policy.policy_class(f"{path}:Mine")


def test_params_need_an_equals_sign() -> None:
    with pytest.raises(ValueError, match="NAME=VALUE"):
        own_policy.parse_params(["profile_frac"])

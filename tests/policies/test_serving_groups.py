"""How many groups of layers a batch takes and which layers each holds: the published table and splits."""

import dataclasses

import numpy as np
import pytest
from refusing import refuses

from tokentape.policies.serving import Chunked, Continuous, Disaggregated, Layered, Static
from tokentape.policies.serving.groups import group_start, n_groups, steps

EDGES = (512, 513, 1024, 1025, 2048, 2049, 4096, 4097)


def groups_at(rule: str, n_max: int, n_layers: int = 48) -> list[int]:
    numbers = Layered(n_max=n_max, n_lg_rule=rule).rule(n_layers).step_numbers()
    return [n_groups(numbers, tokens) for tokens in EDGES]


@pytest.mark.parametrize(
    ("n_max", "expected"),
    [
        (4, [1, 2, 2, 4, 4, 4, 4, 4]),
        (12, [1, 2, 2, 4, 4, 6, 6, 12]),
        (16, [1, 2, 2, 4, 4, 8, 8, 16]),
        (24, [1, 2, 2, 4, 4, 8, 8, 24]),
        (2, [1, 2, 2, 2, 2, 2, 2, 2]),
        (8, [1, 2, 2, 4, 4, 8, 8, 8]),
        (48, [1, 2, 2, 4, 4, 8, 8, 48]),
    ],
)
def test_step_table(n_max: int, expected: list[int]) -> None:
    assert groups_at("code", n_max) == expected


def test_paper_and_fixed_rules_give_no_more_groups_than_layers() -> None:
    assert groups_at("paper", 16) == [1, 2, 2, 3, 4, 5, 8, 9]
    assert groups_at("paper", 4) == [1, 2, 2, 3, 4, 4, 4, 4]
    numbers = Layered(n_lg_rule="paper").rule(48).step_numbers()
    assert [n_groups(numbers, tokens) for tokens in (1, 8192, 8193, 10**9)] == [1, 16, 16, 16]
    assert groups_at("fixed", 6) == [6] * 8
    assert max(groups_at("code", 16, 4)) == 4
    assert max(groups_at("paper", 16, 4)) == 4
    refuses("n_max 5: more groups than the model's 4 layers", steps, "fixed", 5, 4)


@pytest.mark.parametrize(
    ("n_layers", "n", "expected"), [(48, 16, (3,) * 16), (24, 12, (2,) * 12), (50, 16, (4, 4) + (3,) * 14), (7, 3, (3, 2, 2))]
)
def test_layers_are_split_evenly_the_first_groups_longer(n_layers: int, n: int, expected: tuple[int, ...]) -> None:
    starts = [group_start(group, n, n_layers) for group in range(n + 1)]
    assert tuple(np.diff(starts)) == expected
    assert starts[-1] == n_layers


def test_named_settings() -> None:
    assert Layered() == Layered(8192, 16, "code")
    pure = Layered(32768, 48).rule(48)
    assert (pure.budget_tokens, pure.steps[-1][1]) == (32768, 48)
    assert (Static(), Continuous(), Chunked()) == (Static(32), Continuous(8192), Chunked(512))  # as docs/serving.md tells
    assert Disaggregated() == Disaggregated(2048, 300e9)


@pytest.mark.parametrize("kind", [Static, Continuous, Chunked, Disaggregated, Layered])
def test_the_least_of_every_parameter_is_one(kind: type) -> None:
    names = [field.name for field in dataclasses.fields(kind) if field.name != "n_lg_rule"]
    kind(**dict.fromkeys(names, 1))
    for name in names:
        refuses(f"{kind.__name__}: {name} must be at least 1, found 0", kind, **{name: 0})

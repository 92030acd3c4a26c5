"""Systems from text, and what does not compose."""

import json
from pathlib import Path

import pytest
from refusing import refuses

from tokentape.policies.lru import LRU
from tokentape.policies.placement import PLACEMENTS
from tokentape.policies.serving import Chunked
from tokentape.policies.serving.rule import BatchRule
from tokentape.policies.slots import SLOTS, System, of_table, parse_settings, shipped, slots_of, system_of


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_system_is_read_and_told_slot_by_slot(name: str) -> None:
    system = system_of(name)
    told = system.told()
    assert tuple(told) == SLOTS
    assert told["schedule"] != "none"
    filled = {taken for slot, policy in system.policies.items() for taken in slots_of(slot, policy)}
    assert {slot for slot, text in told.items() if text != "none"} == filled
    assert "None" not in " ".join(told.values()), "what is not set is left out"


def test_parameters_and_options_go_where_they_belong_and_may_be_set() -> None:
    system = system_of("near_compute", {"residency.budget": "24GB", "place.most": "2", "schedule": "chunked"})
    assert system.place.most == 2
    assert system.option("residency", "budget") == "24GB"
    assert system.option("residency", "scope") == "global"
    assert isinstance(system.schedule, Chunked)
    assert "budget=24GB" in system.told()["residency"]
    assert system.without("place").place is None


def test_a_policy_takes_the_slot_as_it_is_whatever_stands_first() -> None:
    changes = {"residency.budget": "12%", "residency": "lfu", "schedule": "chunked"}
    for given in (changes, dict(reversed(changes.items()))):
        system = system_of("lru_offload", given)
        assert system.told()["residency"].split()[:2] == ["lfu", "budget=12%"]
        assert system.option("schedule", "max_seqs") == system_of("lru_offload").option("schedule", "max_seqs") != "1"
    assert system_of("lru_offload", {"residency": "none"}).told()["residency"] == "none"
    tables = [{"kv": {"storage": "quarot", "bits": 3} | of} for of in ({}, {"policy": "none"}, {"policy": "full"})]
    assert {of_table("x", of).told()["kv"] for of in tables} == {"full sink=0 recent=auto storage=quarot bits=3"}


@pytest.mark.parametrize(("table", "said"), json.loads(Path(__file__).with_name("no_systems.json").read_text()))
def test_what_is_no_system_is_refused_in_one_line(table: dict, said: str) -> None:
    refuses(said, of_table, "x", table)


def test_a_policy_takes_its_own_slot_and_settings_are_slot_and_value() -> None:
    refuses("NearIfRare decides place, not residency", System, "x", {"residency": PLACEMENTS["near_if_rare"]()})
    assert System("x", {"residency": LRU(), "place": PLACEMENTS["near_if_rare"]()}).residency == LRU()
    assert parse_settings(["residency.budget=24GB", "place=near_if_rare"]) == {
        "residency.budget": "24GB",
        "place": "near_if_rare",
    }
    for text in ("residency", "=3", "a b=3"):
        refuses("--set", parse_settings, [text])
    refuses("--set gives residency twice; leave one out", parse_settings, ["residency=lru", "place=never", "residency=lfu"])
    refuses("--set gives residency twice; leave one out", parse_settings, ["residency=lru", "residency.policy=lfu"])


def test_a_system_of_ones_own_is_a_file(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[system]\nschedule = "orca"\nresidency = { policy = "lfu", budget = "30%" }\n')
    assert system_of(str(path)).told()["residency"] == "lfu budget=30%"
    for text, said in (("[system", "mine.toml"), ("[other]\n", "one table"), ("[system]\nschedule = 3\n", "schedule")):
        path.write_text(text)
        refuses(said, system_of, str(path))
    refuses("No such file", system_of, "nowhere.toml")


_WRONG_STEPS = ((), ((8, 0),), ((8, -2),), ((8, 1.5),), ((8, 1), (4, 2)))


@pytest.mark.parametrize(
    "wrong", [{"budget_tokens": 0}, {"budget_tokens": 6.5}, {"max_prompts": 0}, *({"steps": of} for of in _WRONG_STEPS)]
)
def test_a_batch_without_room_for_a_prompt_would_never_end_and_is_refused(wrong) -> None:
    refuses("must be at least 1", BatchRule, **{"budget_tokens": 64, "counts_decodes": False, "may_split": True, **wrong})


def test_what_a_decision_of_ones_own_raises_is_one_line(tmp_path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\nfrom tokentape.policies.placement import EventPlacement\n\n\n"
        "@dataclass(frozen=True)\nclass Mine(EventPlacement):\n    def on(self, host):\n        return {}['absent']\n"
    )
    system = system_of("near_compute", {"place": f"{path}:Mine"})
    (tmp_path / "mine.toml").write_text("[system]\nplace = { policy = 'mine.py:Mine' }\n")
    assert system_of(str(tmp_path / "mine.toml")).place == system.place, "a policy lies beside the file of its system"
    with pytest.raises(ValueError, match=r"mine.py:Mine, line 8: the policy raised KeyError: 'absent'"), system.blamed():
        system.place.on(None)
    with pytest.raises(KeyError), system_of("near_compute").blamed():  # a bug of ours stays one
        raise KeyError

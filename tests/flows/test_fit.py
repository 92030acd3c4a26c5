"""fit: what lies where adds up, limits are the largest that fit, and what does not fit says what would."""

import json
from dataclasses import replace

import pytest
from command import Cli

from tokentape.hw.spec import load
from tokentape.replay.room import MOST, Asked, devices, largest, room_of, widths
from tokentape.warehouse import models
from tokentape.warehouse.model_sizes import kv_bytes, parameters, weight_bytes


@pytest.mark.parametrize(("model", "machine"), [("qwen3-30b-a3b", "h200"), ("llama-3.1-8b", "rtx5090"), ("olmoe-1b-7b", "gh200")])
def test_what_lies_there_is_the_model(model, machine):
    geometry, asked = models.load(model).geometry, Asked(batch=3, context_tokens=1000)
    room = room_of(geometry, load(machine), asked)
    assert room.held["weights_home"] + room.held["expert_home"] == weight_bytes(geometry, "bf16", "bf16", "bf16")
    assert room.held["kv_home"] == 3 * kv_bytes(geometry, 1000, "bf16")
    lying = sum(n_bytes for _, what in room.tiers.values() for n_bytes in what.values())
    assert lying == sum(room.held.values())
    assert not room.missing
    wide = room_of(geometry, load(machine), Asked(expert_format="fp32", weight_format="fp32"))  # the input table, too
    assert wide.held["weights_home"] + wide.held["expert_home"] == 4 * parameters(geometry).total


@pytest.mark.parametrize("name", ["batch", "context_tokens"])
@pytest.mark.parametrize("machine", ["h100", "oneplus-15r"])
def test_the_largest_fits_and_one_more_does_not(machine, name):
    geometry, place = models.load("qwen3-30b-a3b").geometry, load(machine)
    asked = Asked(expert_format="int4", weight_format="int4")
    n = largest(geometry, place, asked, name)
    assert n > 0
    assert not room_of(geometry, place, replace(asked, **{name: n})).missing
    assert room_of(geometry, place, replace(asked, **{name: n + 1})).missing


def test_windows_and_caches_take_what_is_left():
    assert largest(models.load("mistral-7b").geometry, load("h100"), Asked(), "context_tokens") == MOST
    geometry = models.load("qwen3-30b-a3b").geometry
    phone, laptop = (room_of(geometry, load(name), Asked(expert_format="int4")) for name in ("oneplus-15r", "laptop-m4-max"))
    assert 0 < phone.cached_frac < 1
    assert laptop.cached_frac == 1
    narrow = [one.cached_frac or 0.0 for one in widths(geometry, load("oneplus-15r"), Asked())]
    assert narrow == sorted(narrow)


def test_what_does_not_fit_says_what_would(tokentape: Cli):
    done = tokentape("fit", "llama-3.1-70b", "h100")
    assert done.code == 1
    assert "it would with weights in int8-g32, or with 2 such devices" in done.out
    geometry = models.load("llama-3.1-70b").geometry
    assert devices(geometry, load("h100"), Asked()) == 2
    assert not room_of(geometry, load("h100x2"), Asked()).missing


def test_a_budget_needs_a_cache_and_experts_a_place(tokentape: Cli):
    words = ("--expert-format", "int4", "--budget", "4000MiB", "--json")
    made = json.loads(tokentape.ok("fit", "qwen3-30b-a3b", "oneplus-15r", *words).out)
    assert made["tiers"]["dram"]["held_bytes"]["the expert cache"] == 4000 * 2**20
    assert made["fits"]
    assert [one["fits"] for one in made["widths"]] == [True] * len(made["widths"])
    of_width = {}
    for model, machine in (("qwen3-30b-a3b", "h100"), ("qwen3-8b", "phone-lpddr5x-ufs4")):
        cells = [[*filter(None, map(str.strip, line.split("  ")))] for line in tokentape("fit", model, machine).out.splitlines()]
        of_width[model] = {cell[0]: cell[2] for cell in cells if len(cell) == 5}
    assert (of_width["qwen3-30b-a3b"]["fp32"], of_width["qwen3-30b-a3b"]["bf16"]) == ("does not fit", "100%")
    assert (of_width["qwen3-8b"]["bf16"], of_width["qwen3-8b"]["int4"]) == ("does not fit", "no experts")
    assert json.loads(tokentape("fit", "qwen3-8b", "h100", "--json").out)["cached_frac"] is None

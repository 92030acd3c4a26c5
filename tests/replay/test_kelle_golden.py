"""Kelle's prompts and rooflines as its own cost model had them before the clock, on random settings (golden/kelle.jsonl).

Machines' numbers, models, lengths, batches, budgets, widths and ways of counting, drawn once, with what came out. Prompts
were computed with each token attending to itself in full, where the old formula had half of the diagonal.
"""

import json
from functools import cache
from pathlib import Path

import pytest

from tokentape.hw import profile as profiles
from tokentape.replay.kelle.recompute import roofline, vector_times_s
from tokentape.replay.kelle.step import prefill
from tokentape.replay.kelle.systems import KELLE, Accounting, Work, systems
from tokentape.warehouse import models

ROWS = [json.loads(line) for line in (Path(__file__).parent / "golden" / "kelle.jsonl").read_text().splitlines()]
PROMPTS = [row for row in ROWS if "system" in row]
OURS = systems()
geometry = cache(lambda name: models.load(name).geometry)


def same(expected):
    return pytest.approx(expected, rel=1e-9, abs=1e-30)


def test_prompts_are_as_they_were():
    for row in PROMPTS:
        system, accounting = OURS[row["system"]].on(row["values"]), Accounting(**row["accounting"])
        found = prefill(geometry(row["model"]), system, Work(**row["work"]), profiles.load("kelle"), accounting)
        assert found[0] == same(row["prefill"][0])
        if not system.is_edram:  # whose activations refreshed as rarely as keys and values
            assert found[1] == same(row["prefill"][1])


def test_rooflines_are_as_they_were():
    machine = OURS[KELLE].machine
    for row in ROWS[len(PROMPTS) :]:
        shape, work = geometry(row["model"]), Work(**row["work"])
        points = roofline(shape, machine, work, row["mode"], row["slowdown"], (0.0, 0.25, 0.5, 1.0))
        for point, expected in zip(points, row["roofline"], strict=True):
            *numbers, is_bound, step_s, label = point.values()
            assert (*numbers, step_s) == same((*expected[:4], expected[5]))
            assert (label, is_bound or label == "moderate") == (expected[6], expected[4] or label == "moderate")
        assert vector_times_s(shape, machine, row["mode"]) == same(tuple(row["vector_s"]))

"""Kelle's steps, prompts and scans as its own cost model had them before the clock: 230 random settings (golden/kelle.jsonl).

Machines' numbers, models, lengths, batches, budgets, widths, ways of counting and constants, drawn once and stored with what came
out. Prompts were computed with each token attending to itself in full, where the old formula had half of the diagonal.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tokentape.replay.kelle.recompute import roofline, vector_times_s
from tokentape.replay.kelle.rows import lifetimes
from tokentape.replay.kelle.step import PARTS, decode_step, prefill
from tokentape.replay.kelle.systems import KELLE, Accounting, Fitted, Work, profile_of, systems
from tokentape.warehouse import models

ROWS = [json.loads(line) for line in (Path(__file__).parent / "golden" / "kelle.jsonl").read_text().splitlines()]
STEPS = [row for row in ROWS if "system" in row]
OURS = systems()
geometry = cache(lambda name: models.load(name).geometry)


def same(expected):
    return pytest.approx(expected, rel=1e-9, abs=1e-30)


def setting(row):
    system = OURS[row["system"]].on(row["values"])
    system = replace(system, recomputes=system.recomputes and row["recomputes"])
    if row["transient_frac"] is not None:
        system = replace(system, transient_frac=row["transient_frac"])
    accounting, fitted = Accounting(**row["accounting"]), Fitted(**row["knobs"])
    profile = profile_of(fitted, system, accounting.activations_at_retention)
    return geometry(row["model"]), system, Work(**row["work"]), fitted.recomputed_frac, profile, accounting


@pytest.mark.parametrize("first", range(0, len(STEPS), 23))
def test_steps_prompts_and_scans_are_as_they_were(first):
    for row in STEPS[first : first + 23]:
        shape, system, work, recomputed_frac, profile, accounting = setting(row)
        step = decode_step(shape, system, work, recomputed_frac, profile, accounting)
        assert step.seconds == same(row["seconds"])
        assert list(step.joules) == list(PARTS)
        assert step.joules == same(row["joules"])
        for name in ("weight_bytes", "kv_read_bytes", "overflow_bytes"):
            assert getattr(step, name) == same(row[name])
        assert step.kv_dram_bytes == pytest.approx(row["kv_dram_bytes"], abs=1e-9 * row["kv_read_bytes"])
        assert (step.is_feasible, list(step.notes)) == (row["is_feasible"], row["notes"])
        if "prefill" in row:
            assert prefill(shape, system, work, profile, accounting) == same(tuple(row["prefill"]))
        # While scores are read the cache was refreshed as if full, and activations as rarely as it whatever else was told.
        if row.get("full") and not row["accounting"]["activations_at_retention"]:
            scanned = decode_step(shape, replace(system, scans=True), work, recomputed_frac, profile, accounting)
            assert (scanned.seconds, scanned.energy_j) == same(tuple(row["software"]))
        if "evictor_j" in row:
            static_w = system.machine.static_w.value + 0.028
            with_evictor = decode_step(shape, system.on({"static_w": static_w}), work, recomputed_frac, profile, accounting)
            assert with_evictor.energy_j == same(row["evictor_j"])


def test_rooflines_and_lifetimes_are_as_they_were():
    machine = OURS[KELLE].machine
    for row in ROWS[len(STEPS) :]:
        shape, work = geometry(row["model"]), Work(**row["work"])
        points = roofline(shape, machine, work, row["mode"], row["slowdown"], (0.0, 0.25, 0.5, 1.0))
        for point, expected in zip(points, row["roofline"], strict=True):
            *numbers, is_bound, step_s, label = point.values()
            assert (*numbers, step_s) == same((*expected[:4], expected[5]))
            assert (label, is_bound or label == "moderate") == (expected[6], expected[4] or label == "moderate")
        assert vector_times_s(shape, machine, row["mode"]) == same(tuple(row["vector_s"]))
        for life, expected in zip(lifetimes(shape, machine, work), row["lifetimes"], strict=True):
            assert tuple(life.values()) == (*expected[:2], same(expected[2]), same(expected[3]))

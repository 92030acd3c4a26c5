"""Points of the Kelle study: rows of `kelle_points` and `kelle_requests`, with and without fitted knobs, in both modes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from math import isnan
from typing import Any

from tokentape.flows.systems.kelle.settings import Group
from tokentape.flows.systems.kelle.setup import Setup
from tokentape.hw.refresh import harmonic_mean_s
from tokentape.policies.kv.refresh import RetentionCurve
from tokentape.replay.kelle.evictor import with_evictor, with_software_eviction
from tokentape.replay.kelle.prefill import request
from tokentape.replay.kelle.ratios import Steps
from tokentape.replay.kelle.step import Step
from tokentape.replay.kelle.systems import BASELINE, KELLE
from tokentape.replay.kelle.work import MODES, Work
from tokentape.warehouse.tables import TABLES

Row = dict[str, Any]


def points(made: Setup) -> list[Row]:
    """Rows of `kelle_points`, series by series; a system that keeps all tokens has one row for all budgets."""
    key = TABLES["kelle_points"].key
    return list({tuple(row[name] for name in key): row for row in (*_swept(made), *_evictor(made))}.values())


def _swept(made: Setup) -> Iterator[Row]:
    for group in (*made.study.grid, curves(made)):
        for point, knobs, mode in product(list(made.study.points(group)), made.knobs, MODES):
            model, workload, work, system, variant = point
            steps = made.steps(knobs, mode, variant)
            where = {"series": group.series, "setting": variant.setting, "setting_value": variant.value, "role": group.role}
            where |= {"workload": workload, "knobs": knobs, "mode": mode}
            gains = steps.gains(model, system, work)
            yield where | _row(made, steps, model, system, work, steps.step(model, system, work), gains)


def curves(made: Setup) -> Group:
    """Kelle's energy if its four intervals were scaled so that failures stay at a rate, by the assumed retention curve."""
    held = made.study.refresh.held_frac
    each = []
    for anchor, curve in made.curves.items():
        interval_s = harmonic_mean_s(made.study.refresh.intervals_s) * scale_to(
            curve, list(made.study.refresh.intervals_us.values()), held
        )
        setting = f"failures held to {held:g}, {anchor:g} at 45 us"
        each.append({"setting": setting, "value": anchor, "kelle": {"refresh_interval_s": interval_s}})
    return Group.model_validate({"series": "sensitivity", "system": (BASELINE, KELLE), "each": each})


def scale_to(curve: RetentionCurve, intervals_us: list[float], failure_frac: float) -> float:
    """The factor on all intervals at which equal groups fail at this rate on average."""
    low, high = 1e-6, 1e6
    for _ in range(100):
        middle = (low * high) ** 0.5
        lost = curve.mean_failure([middle * interval for interval in intervals_us])
        low, high = (middle, high) if lost < failure_frac else (low, middle)
    return low


def _row(made: Setup, steps: Steps, model: str, system: str, work: Work, step: Step, gains: tuple[float, float]) -> Row:
    """Of a point, without what is swept. What does not fit has neither time nor energy."""
    fits = step.is_feasible
    speed, energy = (None if isnan(gain) else gain for gain in gains)
    return {
        "model_id": model,
        "n_context_tokens": work.n_context_tokens,
        "n_decode_tokens": work.n_decode_tokens,
        "batch": work.batch,
        "system": system,
        "budget_tokens": work.budget_tokens if steps.systems[system].evicts else None,
        "step_s": step.seconds if fits else None,
        "energy_j": step.energy_j if fits else None,
        **{part: joule if fits else None for part, joule in step.joules.items()},
        **{name: getattr(step, name) if fits else None for name in ("weight_bytes", "kv_read_bytes", "kv_dram_bytes")},
        "speed_gain": speed,
        "energy_gain": energy,
        "typical_err_frac": made.study.typical_err_frac,
        "worst_err_frac": made.study.worst_err_frac,
        "dram_overflow_bytes": step.overflow_bytes,
        "notes": "; ".join(step.notes),
    }


def _evictor(made: Setup) -> Iterator[Row]:
    """Kelle with its systolic evictor, whose power is counted here, and with a scan in software."""
    for knobs, mode in product(made.knobs, MODES):
        steps = made.steps(knobs, mode)
        for model, (workload, work) in product(made.study.models, made.study.workloads.items()):
            plain, baseline = steps.step(model, KELLE, work), steps.step(model, BASELINE, work)
            both = {
                "systolic": with_evictor(plain, made.study.chip.evictor_w),
                "software": with_software_eviction(plain, made.geometries[model], steps.systems[KELLE], work),
            }
            for setting, step in both.items():
                fits = step.is_feasible and baseline.is_feasible
                gains = (baseline.seconds / step.seconds, baseline.energy_j / step.energy_j) if fits else (float("nan"),) * 2
                where = {"series": "evictor", "setting": setting, "setting_value": None, "role": "report", "workload": workload}
                yield where | {"knobs": knobs, "mode": mode} | _row(made, steps, model, KELLE, work, step, gains)


def requests(made: Setup) -> Iterator[Row]:
    """Rows of `kelle_requests`: prompts and outputs of several lengths."""
    asked = made.study.requests
    for (context, decode), knobs, (mode, accounting) in product(asked.lengths, made.knobs, MODES.items()):
        work = Work(context, decode, budget_tokens=asked.budget_tokens)
        ran = {
            name: request(made.geometries[asked.model], system, work, made.knobs[knobs], accounting)
            for name, system in made.systems.items()
        }
        for name, one in ran.items():
            found: dict[str, float | None] = asdict(one)
            overflow_bytes = found.pop("overflow_bytes")
            found["speed_gain"], found["energy_gain"] = ran[BASELINE].seconds / one.seconds, ran[BASELINE].joules / one.joules
            if accounting.must_fit_dram and overflow_bytes:
                found = dict.fromkeys(found)
            elif accounting.must_fit_dram and ran[BASELINE].overflow_bytes:
                found["speed_gain"] = found["energy_gain"] = None
            yield {
                "model_id": asked.model,
                "n_context_tokens": context,
                "n_decode_tokens": decode,
                "batch": work.batch,
                "system": name,
                "budget_tokens": work.budget_tokens if made.systems[name].evicts else None,
                "mode": mode,
                "knobs": knobs,
                "dram_overflow_bytes": overflow_bytes,
                **found,
            }

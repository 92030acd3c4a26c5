"""Points of the Kelle study: rows of `kelle_points` and `kelle_requests`, with and without fitted knobs, in both modes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from math import isnan
from typing import Any

from tokentape.hw.refresh import harmonic_mean_s
from tokentape.policies.kv.refresh import RetentionCurve
from tokentape.replay.kelle.prefill import request
from tokentape.replay.kelle.ratios import Steps
from tokentape.replay.kelle.setup import Setup, Variant
from tokentape.replay.kelle.step import Step
from tokentape.replay.kelle.systems import BASELINE, KELLE, System, profile_of
from tokentape.replay.kelle.work import MODES, Work

Row = dict[str, Any]


Cell = tuple[str, str, Work, str, Variant]  # model, name of the workload, the work, system, and what is changed


def swept(made: Setup, series: str, role: str, cells: Sequence[Cell]) -> Iterator[Row]:
    """Rows of `kelle_points` of a series."""
    for variant, knobs, mode in product({repr(cell[-1]): cell[-1] for cell in cells}.values(), made.knobs, MODES):
        asked = [(model, name, work) for model, _, work, system, of in cells if of == variant for name in (system, BASELINE)]
        made.steps(knobs, mode, variant).make(asked)
    for (model, workload, work, system, variant), knobs, mode in product(cells, made.knobs, MODES):
        steps = made.steps(knobs, mode, variant)
        where = {"series": series, "setting": variant.setting, "setting_value": variant.value, "role": role}
        where |= {"workload": workload, "knobs": knobs, "mode": mode}
        gains = steps.gains(model, system, work)
        yield where | _row(made, steps, model, system, work, steps.step(model, system, work), gains)


def retained(made: Setup) -> list[Cell]:
    """Kelle's energy if its four intervals were scaled so that failures stay at a rate, by the assumed retention curve."""
    held = made.refresh.held_frac
    plain = [(model, *workload) for model, workload in product(made.models, made.workloads.items())]
    cells = []
    for anchor, curve in made.curves.items():
        interval_s = harmonic_mean_s(made.refresh.intervals_s) * scale_to(curve, list(made.refresh.intervals_us.values()), held)
        setting = f"failures held to {held:g}, {anchor:g} at 45 us"
        variant = Variant(setting, anchor, kelle={"tiers.kv.refresh_interval_s": interval_s})
        cells += [(*one, system, variant) for one in plain for system in (BASELINE, KELLE)]
    return cells


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
        **_where(model, work, steps.systems[system]),
        "step_s": step.seconds if fits else None,
        "energy_j": step.energy_j if fits else None,
        **{part: joule if fits else None for part, joule in step.joules.items()},
        **{name: getattr(step, name) if fits else None for name in ("weight_bytes", "kv_read_bytes", "kv_dram_bytes")},
        "speed_gain": speed,
        "energy_gain": energy,
        "typical_err_frac": made.errors[0],
        "worst_err_frac": made.errors[1],
        "dram_overflow_bytes": step.overflow_bytes,
        "notes": "; ".join(step.notes),
    }


def _where(model: str, work: Work, system: System) -> Row:
    return {
        "model_id": model,
        "n_context_tokens": work.n_context_tokens,
        "n_decode_tokens": work.n_decode_tokens,
        "batch": work.batch,
        "system": system.name,
        "budget_tokens": work.budget_tokens if system.evicts else None,
    }


def requests(made: Setup) -> Iterator[Row]:
    """Rows of `kelle_requests`: prompts and outputs of several lengths."""
    asked = made.requests
    for (context, decode), knobs, (mode, accounting) in product(asked.lengths, made.knobs, MODES.items()):
        work = Work(context, decode, budget_tokens=asked.budget_tokens)
        ran = {
            name: request(
                made.geometries[asked.model],
                system,
                work,
                made.knobs[knobs].recomputed_frac,
                profile_of(made.knobs[knobs], system, profile=made.profile),
                accounting,
            )
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
                **_where(asked.model, work, made.systems[name]),
                "mode": mode,
                "knobs": knobs,
                "dram_overflow_bytes": overflow_bytes,
                **found,
            }

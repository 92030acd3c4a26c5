"""Points of the Kelle study: rows of `kelle_points` and `kelle_requests`, with and without fitted knobs, in both modes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import isnan
from typing import Any

from tokentape.policies.kv.refresh import RetentionCurve
from tokentape.replay.kelle.ratios import Steps
from tokentape.replay.kelle.setup import Setup, Variant
from tokentape.replay.kelle.step import Step, prefill
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
        interval_s = 1e-6 * made.refresh.intervals.harmonic_mean_us * scale_to(curve, made.refresh.intervals.all_us, held)
        setting = f"failures held to {held:g}, {anchor:g} at 45 us"
        variant = Variant(setting, anchor, kelle={"tiers.kv.refresh_interval_s": interval_s})
        cells += [(*one, system, variant) for one in plain for system in (BASELINE, KELLE)]
    return cells


def scale_to(curve: RetentionCurve, intervals_us: Sequence[float], failure_frac: float) -> float:
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
    """Rows of `kelle_requests`: a batch from its first prompt token to its last output token, of several lengths."""
    asked = made.requests
    for (context, decode), knobs, (mode, accounting) in product(asked.lengths, made.knobs, MODES.items()):
        work, steps = Work(context, decode, budget_tokens=asked.budget_tokens), made.steps(knobs, mode)
        parts, whole, over = dict[str, tuple[float, ...]](), dict[str, tuple[float, float]](), dict[str, float]()
        for name, system in made.systems.items():
            step = steps.step(asked.model, name, work)
            profile = profile_of(made.knobs[knobs], system, profile=made.profile)
            of_prompt = prefill(made.geometries[asked.model], system, work, profile, accounting)
            parts[name] = (*of_prompt, decode * step.seconds, decode * step.energy_j)
            whole[name], over[name] = (parts[name][0] + parts[name][2], parts[name][1] + parts[name][3]), step.overflow_bytes
        for name, system in made.systems.items():
            gains = [base / own if not (accounting.must_fit_dram and over[BASELINE]) else None
                     for base, own in zip(whole[BASELINE], whole[name], strict=True)]  # fmt: skip
            columns = ("prefill_s", "prefill_j", "decode_s", "decode_j", "speed_gain", "energy_gain")
            found = dict(zip(columns, (*parts[name], *gains), strict=True))
            yield {
                **_where(asked.model, work, system),
                "mode": mode,
                "knobs": knobs,
                "dram_overflow_bytes": over[name],
                **(dict.fromkeys(columns) if accounting.must_fit_dram and over[name] else found),
            }

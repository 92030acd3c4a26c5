"""Numbers of the Kelle paper derived a second way, and how far the model is from what it prints: rows of `kelle_checks`. What
`kelle_parts` and `answers` hold is not said again.

Where the paper disagrees with itself the two stand side by side; nothing is tuned to make them agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from tokentape.replay.kelle.details import DRAM_W, LIFETIME_MODELS, ONCHIP_W, lifetimes, total_s
from tokentape.replay.kelle.fit import LOAD_CLAIM, RECOMPUTE_CLAIM, log_errors, ratios
from tokentape.replay.kelle.orderings import reversals
from tokentape.replay.kelle.ratios import Ratio
from tokentape.replay.kelle.recompute import balanced_frac, vector_times_s
from tokentape.replay.kelle.setup import CALIBRATED, ZERO, Setup
from tokentape.replay.kelle.step import kv_bytes_per_token
from tokentape.replay.kelle.systems import BASELINE, KELLE, SYSTEMS
from tokentape.replay.kelle.work import MODES, PAPER

Row = dict[str, Any]
TABLE_9 = "kelle/table-9/energy_efficiency_gain/llama-2-7b/pg19-batch-{}-aep-sram-over-original-sram"
BATCHES = (1, 2, 4, 8, 16)  # at which systems are set in order
HEADLINE = "kelle/{}/{}/{}-average-over-evaluated-models-and-tasks"


def _check(check: str, value: float, unit: str, how: str, published: float | None = None) -> Row:
    return {"check": check, "value": value, "published": published, "unit": unit, "how": how}


def checks(made: Setup) -> list[Row]:
    """Of areas, power, refresh, recomputation, capacity, retention, lifetimes, errors, and orders that the fit turns round."""
    parts = (_areas, _powers, _recompute, _capacity, _retention, _lifetimes, _batches, _errors, _sensitivity, _orders)
    return [row for part in parts for row in part(made)]


def recompute_lines(made: Setup) -> list[str]:
    """The check of recomputation as sentences, for every report."""
    return [
        f"{row['check']}: {row['value']:.3g}{_unit(row)} here, {row['published']:.3g}{_unit(row)} as published ({row['how']})"
        for row in _recompute(made)
    ]


def _unit(row: Row) -> str:
    return "" if row["unit"] == "1" else f" {row['unit']}"


def _areas(made: Setup) -> Iterator[Row]:
    kelle, baseline = (made.machines[SYSTEMS[name][0]].area_mm2 for name in (KELLE, BASELINE))
    assert kelle
    assert baseline
    yield _check("area of Original+SRAM", baseline.value, "mm2", "24 x 24 array and 4 MB SRAM, to match Kelle's", kelle.value)


def _powers(made: Setup) -> Iterator[Row]:
    stated = {claim: row["value"] for claim, row in made.stated.items()}
    tiers = made.systems["Original+eDRAM"].machine.tiers
    kv, activations = tiers["kv"], tiers["activations"].refresh_w()
    assert kv.refresh_interval_s
    yield _check("refresh of 4 MiB, Original+eDRAM", kv.refresh_w(), "W", f"every {1e6 * kv.refresh_interval_s.value:.0f} us")
    yield _check("refresh of the activations", activations, "W", "256 KiB every 45 us")
    kelle_w = stated[ONCHIP_W] + stated[DRAM_W]
    names = "kelle-edram-over-original-sram", "original-edram-over-original-sram"
    (kelle_speed, kelle_energy), (edram_speed, edram_energy) = (
        [stated[HEADLINE.format(section, metric, name)] for metric in ("speedup", "energy_efficiency_gain")]
        for section, name in zip(("8.1.2", "8.1.3"), names, strict=True)
    )
    sram_w = kelle_w * kelle_energy / kelle_speed
    edram_w = sram_w * edram_speed / edram_energy
    yield _check("power of Original+SRAM", sram_w, "W", "Kelle's 18.26 W by the headline's energy over its speed")
    yield _check("power of Original+eDRAM", edram_w, "W", "the same by its own two ratios: efficiency x 0.61")
    watts = activations + kv.refresh_w()
    yield _check("power that eDRAM adds", edram_w - sram_w, "W", "from the ratios; published: all refresh at 45 us", watts)


def _recompute(made: Setup) -> Iterator[Row]:
    load_us, recompute_us = (made.stated[claim]["value"] for claim in (LOAD_CLAIM, RECOMPUTE_CLAIM))
    load_s, recompute_s = vector_times_s(made.geometries["llama-2-7b"], made.systems[KELLE].machine)
    yield _check("a KV vector from DRAM", 1e6 * load_s, "us", "16,384 B at 64 GB/s", load_us)
    yield _check("a KV vector recomputed", 1e6 * recompute_s, "us", "33.6 M multiply-adds on the array", recompute_us)
    balanced = balanced_frac(load_us, recompute_us)
    yield _check("balanced recomputed share", balanced_frac(load_s, recompute_s), "1", "by these two times", balanced)


def _capacity(made: Setup) -> Iterator[Row]:
    geometry, dram = made.geometries["llama-2-7b"], made.systems[KELLE].machine.tiers["dram"].capacity_bytes.value
    per_token = kv_bytes_per_token(geometry, PAPER)
    work = made.workloads["PG19"]
    yield _check(
        "KV of PG19 at batch 16", work.batch * work.n_tokens * per_token / 1e9, "GB", "at its end; published: DRAM", dram / 1e9
    )
    kept = work.batch * (work.budget_tokens or work.n_tokens) * per_token
    total = (kept + geometry.non_expert_params) / 1e9
    yield _check("KV at budget 2048 and weights", total, "GB", "batch 16; published: DRAM", dram / 1e9)


def _retention(made: Setup) -> Iterator[Row]:
    refresh = made.refresh
    curve = next(iter(made.curves.values()))
    lost = curve.mean_failure(refresh.intervals.all_us)
    equal_us = refresh.intervals.harmonic_mean_us
    yield _check(
        "width of the retention curve", curve.sigma, "1", f"through {curve.failure_at_45us:g} at 45 us, mean failures as stated"
    )
    yield _check("failures of 2DRP", lost, "1", "mean of four equal groups; published: uniform refresh of equal power",
                 curve.failure_frac(equal_us))  # fmt: skip


def _lifetimes(made: Setup) -> Iterator[Row]:
    for model in LIFETIME_MODELS:
        found = lifetimes(made.geometries[model], made.systems[KELLE].machine, made.workloads["PG19"])
        ratio = total_s(found, "baseline") / total_s(found, "kelle")
        yield _check(f"lifetimes of {model}", ratio, "1", "baseline's over Kelle's, N' = 2048, batch 16")


def _batches(made: Setup) -> Iterator[Row]:
    """Table 9's gain at batch 4, if an energy is a part per step and a part per request, that gives its gain at batch 16."""
    work, gain = made.workloads["PG19"], made.stated[TABLE_9.format(16)]["value"]
    assert work.budget_tokens
    kept_frac = work.budget_tokens / work.n_tokens
    per_step = 16 * (1 - gain * kept_frac) / (gain - 1)  # over the part of a request with the full cache
    at_four = (per_step + 4) / (per_step + 4 * kept_frac)
    stated = made.stated[TABLE_9.format(4)]["value"]
    yield _check("Table 9 at batch 4 from batch 16", at_four, "1", "AEP; published: at batch 4", stated)


def _errors(made: Setup) -> Iterator[Row]:
    for knobs in made.knobs:
        steps = made.steps(knobs)
        wanted = ratios(made.stated.values(), steps)
        logs = log_errors(steps, wanted)
        median = float(np.median(np.abs(np.expm1(logs))))
        yield _check(f"median error, knobs {knobs}", median, "1", f"all {len(wanted)} ratios of headline, Tables 7 and 9")
        for title, chosen in _sets(wanted).items():
            mean = float(np.abs(logs[chosen]).mean())
            yield _check(f"mean |ln| error, {title}, knobs {knobs}", mean, "1", f"{int(chosen.sum())} ratios")


def _sets(wanted: list[Ratio]) -> dict[str, Any]:
    ids, roles = np.array([ratio.claim_id for ratio in wanted]), np.array([ratio.role for ratio in wanted])
    return {
        "all": np.ones(ids.size, np.bool_),
        "calibrated": roles == "calibrate",
        "predicted": roles == "predict",
        "Table 7": np.char.find(ids, "table-7") >= 0,
        "Table 9 at batch 16": np.char.find(ids, "batch-16") >= 0,
    }


def _sensitivity(made: Setup) -> Iterator[Row]:
    """The error over all ratios with one thing changed and the knobs as they were fitted."""
    for variant in made.sensitivity:
        steps = made.steps(CALIBRATED, variant=variant)
        mean = float(np.abs(log_errors(steps, ratios(made.stated.values(), steps))).mean())
        yield _check(f"mean |ln| error, {variant.setting}", mean, "1", "all ratios, knobs as calibrated without the change")


def _orders(made: Setup) -> Iterator[Row]:
    """Pairs of systems that the fit orders otherwise than the model with nothing fitted, in any cell."""
    cells = [(model, replace(work, batch=n)) for model, work, n in product(made.models, made.workloads.values(), BATCHES)]
    for mode in MODES:
        turned = reversals(made.steps(ZERO, mode), made.steps(CALIBRATED, mode), cells)
        yield _check(f"orders that the fit reverses, {mode}", len(turned), "1", "pairs of systems, in speed or energy")
        for one in turned:
            check = f"order reversed, {mode}, {one['metric']}: {one['better']} over {one['worse']}"
            yield _check(check, one["frac"], "1", one["where"])


def order_lines(made: Setup) -> list[str]:
    """The orders that the fit reverses as sentences: in docs/kelle.md, and of any fit."""
    told = [(row["check"].partition("order reversed, ")[2], row["how"]) for row in _orders(made)]
    return [f"{pair} in {where}" for pair, where in told if pair]

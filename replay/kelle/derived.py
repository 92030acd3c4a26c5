"""Numbers of the Kelle paper derived a second way, and its ratios beside ours. Where the paper disagrees with itself both stand
side by side in `kelle_checks`; nothing is tuned to make them agree. study.toml says what of it is told.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from tokentape.replay.kelle.ratios import LOAD_CLAIM, RECOMPUTE_CLAIM, ratios
from tokentape.replay.kelle.recompute import vector_times_s
from tokentape.replay.kelle.rows import LIFETIME_MODELS, Row, Setup, chip_step, lifetimes, part_w
from tokentape.replay.kelle.step import kept_bytes
from tokentape.replay.kelle.systems import BASELINE, KELLE, MODES, PAPER
from tokentape.warehouse.model_sizes import total_params

TABLE_9 = "kelle/table-9/energy_efficiency_gain/llama-2-7b/pg19-batch-{}-aep-sram-over-original-sram"
HEADLINE = "kelle/{}/{}/{}-over-original-sram-average-over-evaluated-models-and-tasks"
KEPT_MODEL = "llama-2-7b"  # of what follows from one model's sizes


def quantities(made: Setup) -> dict[str, float]:
    """What follows from sizes, the machines' files, the intervals and the paper's own numbers, by name."""
    stated, refresh, curve = made.stated, made.refresh, next(iter(made.curves.values()))
    kelle, sram, edram = (made.systems[name].machine for name in (KELLE, BASELINE, "Original+eDRAM"))
    geometry, work, step = made.geometries[KEPT_MODEL], made.chip_work, chip_step(made)
    dram_bytes, per_token = kelle.tiers[kelle.roles.kv_home].capacity_bytes.value, kept_bytes(geometry, PAPER, 1)
    kept = work.budget_tokens or work.n_tokens
    more_mm2 = sum(_mm2(sram.tiers[name]) for name in ("weights", "kv"))  # 4 MB of SRAM, on a chip with the larger array
    chip_mm2 = _mm2(sram) - _mm2(sram.compute) + _mm2(kelle.compute)
    interval = edram.tiers["kv"].refresh_interval_s
    watts = {part: part_w(step, part) for part in ("sram", "edram", "dram")}
    refresh_w = edram.tiers["kv"].refresh_w(), edram.tiers["activations"].refresh_w()
    of_kelle, of_edram = (
        [stated[HEADLINE.format(section, metric, system)] for metric in ("speedup", "energy_efficiency_gain")]
        for section, system in (("8.1.2", "kelle-edram"), ("8.1.3", "original-edram"))
    )
    sram_w = (stated["kelle/8/power/on-chip-total"] + stated["kelle/8/power/dram"]) * of_kelle[1] / of_kelle[0]
    edram_w = sram_w * of_edram[0] / of_edram[1]
    load_s, recompute_s = vector_times_s(geometry, kelle)
    lost, equal_us = curve.mean_failure(refresh.intervals.all_us), refresh.intervals.harmonic_mean_us
    # An energy that is a part per step and a part per request: the former over a request's with the full cache.
    gain, kept_frac = stated[TABLE_9.format(16)], kept / work.n_tokens
    per_step = 16 * (1 - gain * kept_frac) / (gain - 1)
    found = {
        "sram_mm2": _mm2(sram), "kelle_mm2": _mm2(kelle), "more_chip_percent": 100 * more_mm2 / chip_mm2,
        "more_area_percent": 100 * more_mm2 / (chip_mm2 + _mm2(sram.tiers["dram"])),
        "peak_tops": (kelle.compute.bound_ops_per_s("int8") or np.nan) / 1e12,
        "refresh_w": refresh_w[0], "activations_w": refresh_w[1], "all_refresh_w": sum(refresh_w),
        "refresh_us": 1e6 * interval.value if interval else np.nan,
        "sram_w": sram_w, "edram_w": edram_w, "added_w": edram_w - sram_w,
        "load_us": 1e6 * load_s, "recompute_us": 1e6 * recompute_s, "balanced_frac": load_s / (load_s + recompute_s),
        "stated_balanced": stated[LOAD_CLAIM] / (stated[LOAD_CLAIM] + stated[RECOMPUTE_CLAIM]),
        "full_gb": work.batch * work.n_tokens * per_token / 1e9, "dram_gb": dram_bytes / 1e9,
        "kept_gb": (work.batch * kept * per_token + geometry.non_expert_params) / 1e9,
        "kv_gib": 8192 * per_token / 2**30, "max_tokens": (dram_bytes - total_params(geometry)) / per_token,
        "sigma": curve.sigma, "anchor": curve.failure_at_45us, "lost": lost, "lost_at_equal": curve.failure_frac(equal_us),
        "equal_us": equal_us, "same_us": curve.interval_at(lost),
        "table_9_at_4": (per_step + 4) / (per_step + 4 * kept_frac),
        **{f"{part}_part_w": value for part, value in watts.items()},
        "on_chip_part_w": step.energy_j / step.seconds - watts["dram"],
    }  # fmt: skip
    for model in LIFETIME_MODELS:
        lives = [life for life in lifetimes(made) if life["model_id"] == model]
        found[f"lifetimes_{model}"] = total_s(lives, "baseline") / total_s(lives, "kelle")
    return found


def _mm2(of: Any) -> float:
    return float(of.area_mm2.value)


def total_s(found: list[Row], schedule: str) -> float:
    """Of all tensors together: what refreshing them is proportional to."""
    return float(sum(one["seconds"] for one in found if one["schedule"] == schedule))


def ratio_rows(made: Setup) -> Iterator[Row]:
    """The paper's ratios of systems beside ours: in both modes and, as the paper counts, with one thing changed, `setting`; NaN
    of no cells where none fits."""
    for mode, variant in (*product(MODES, [None]), *product(["paper"], made.sensitivity)):
        steps = made.steps(mode, variant)
        wanted = ratios(made.claims, steps)
        steps.make(cell for ratio in wanted for cell in steps.cells_of(ratio))
        for ratio in wanted:
            value, n_cells = steps.value(ratio)
            told = {
                "claim_id": ratio.claim_id,
                "role": ratio.role,
                "published": ratio.published,
                "ratio": f"{ratio.metric}: {ratio}",
            }
            yield told | {"mode": mode, "setting": variant.setting if variant else "", "value": value, "n_cells": n_cells}

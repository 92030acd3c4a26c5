"""What the Kelle study's points say about the paper's numbers: rows of table `answers`.

Mode `paper` counts as the paper does, with calibrated knobs; `paper, nothing fitted` stands beside every ratio, and `physical`
wherever a configuration fits the DRAM. Tables 2 to 6 need the real models and are not answered here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tokentape.flows.answers import Row, answer, answered
from tokentape.flows.study_file import Made
from tokentape.flows.systems.kelle.details import chip_step, part_w
from tokentape.flows.systems.kelle.setup import CALIBRATED, MEAN_FAILURE, ZERO, Setup
from tokentape.hw.refresh import harmonic_mean_s
from tokentape.replay.kelle.fit import LOAD_CLAIM, PAPER, RECOMPUTE_CLAIM, ratios
from tokentape.replay.kelle.recompute import vector_times_s
from tokentape.replay.kelle.systems import BASELINE, KELLE, SYSTEMS
from tokentape.replay.kelle.traffic import kv_bytes_per_token
from tokentape.replay.kelle.work import PAPER as AS_THE_PAPER
from tokentape.warehouse.model_sizes import total_params

GIB = 2**30
FITTED, UNFITTED, PHYSICAL = "paper", "paper, nothing fitted", "physical"
POWER = {"on-chip": "on-chip-total", "dram": "dram", "sram": "on-chip-sram-41-of-total", "edram": "on-chip-edram-29-of-total"}
KEPT_MODEL = "llama-2-7b"  # of the claims that follow from one model's sizes


def answers(made: Setup, rows: Made) -> list[Row]:
    """rows: of the study by view."""
    return [*_ratios(made), *_derived(made), *answered(made.study.answers, PAPER, rows, made.study.modes)]


def _ratios(made: Setup) -> Iterator[Row]:
    """Headline, Tables 7 and 9; none where no configuration of the mode fits the DRAM."""
    for mode, read in made.study.modes.items():
        steps = made.steps(read["knobs"], read["mode"])
        for ratio in ratios(made.stated.values(), steps):
            value, n_cells = steps.value(ratio)
            if n_cells:
                yield answer(ratio.claim_id, value, f"{ratio.metric}: {ratio}; {n_cells} cells, knobs {read['knobs']}", mode)


def _derived(made: Setup) -> Iterator[Row]:
    """What follows from sizes, the machines' files and the intervals."""
    geometry, chip = made.geometries[KEPT_MODEL], made.systems[KELLE].chip
    per_token = kv_bytes_per_token(geometry, AS_THE_PAPER)
    load_s, recompute_s = vector_times_s(geometry, chip)
    yield answer(LOAD_CLAIM, 1e6 * load_s, "bytes of K and V in a layer over the DRAM's bandwidth", PHYSICAL)
    yield answer(RECOMPUTE_CLAIM, 1e6 * recompute_s, "multiply-adds of two projections on the array", PHYSICAL)
    yield answer("kelle/1/kv_cache_size/llama-2-7b/8192-tokens-fp16", 8192 * per_token / GIB, "GiB, as the paper's GB")
    tokens = (chip.dram_bytes - total_params(geometry)) / per_token
    yield answer("kelle/8.4.1/max_input_tokens/llama-2-7b/without-aerp", tokens, "DRAM less 8-bit weights over a token's KV")
    refresh = made.study.refresh
    equal = 1e6 * harmonic_mean_s(refresh.intervals_s)
    yield answer("kelle/7.1/average_interval/four-default-intervals", equal, "harmonic mean of four equal groups")
    curve = next(iter(made.curves.values()))
    lost = curve.mean_failure(list(refresh.intervals_us.values()))
    yield answer(MEAN_FAILURE, lost, "an input: the retention curve is made to lose this")
    same = "kelle/8.3.3/refresh_interval/llama-2-7b/uniform-interval-with-the-accuracy-of-2drp"
    yield answer(
        same, curve.interval_at(lost), "uniform interval that loses as many cells; the paper's is that of equal accuracy"
    )
    peak = made.machines[SYSTEMS[KELLE][0]].compute.bound_ops_per_s("int8")
    if peak:
        yield answer("kelle/8/peak/int8", peak / 1e12, "2 multiply-adds per element and cycle, and one accumulation per column")
    for mode, knobs in ((FITTED, CALIBRATED), (UNFITTED, ZERO)):
        step, how = chip_step(made, knobs), f"energy over time of {made.study.chip.model} on {made.study.chip.workload}"
        watts = {part: part_w(step, part) for part in ("sram", "edram", "dram")}
        watts["on-chip"] = step.energy_j / step.seconds - watts["dram"]
        for part, claim in POWER.items():
            yield answer(f"kelle/8/power/{claim}", watts[part], how, mode)
    kelle, sram = (made.machines[SYSTEMS[name][0]] for name in (KELLE, BASELINE))
    yield answer("kelle/3.1/area_increase/8-mb-over-4-mb-sram", *_area_increase(kelle, sram))


def _area_increase(kelle: Any, sram: Any) -> tuple[float, str]:
    """Percent that 4 MB more SRAM add to the SRAM chip with the larger array, its DRAM counted in."""
    more = sum(sram.tiers[name].area_mm2.value for name in ("weights", "kv"))
    chip = sram.area_mm2.value - sram.compute.area_mm2.value + kelle.compute.area_mm2.value
    whole = chip + sram.tiers["dram"].area_mm2.value
    return 100.0 * more / whole, f"4 MB of SRAM over chip and DRAM; over the chip alone {100.0 * more / chip:.0f} %"

"""Numbers of Kelle's paper that no row holds: its ratios of systems, and what follows from sizes and the machines' files.

Each is the id of its claim, our value, how it was found, and the mode: `paper` counts as the paper does, with calibrated knobs;
`paper, nothing fitted` stands beside every ratio, and `physical` wherever a configuration fits the DRAM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokentape.replay.kelle.details import chip_step, part_w
from tokentape.replay.kelle.fit import LOAD_CLAIM, RECOMPUTE_CLAIM, ratios
from tokentape.replay.kelle.recompute import vector_times_s
from tokentape.replay.kelle.setup import CALIBRATED, MEAN_FAILURE, ZERO, Setup
from tokentape.replay.kelle.step import kv_bytes_per_token
from tokentape.replay.kelle.systems import BASELINE, KELLE, SYSTEMS
from tokentape.replay.kelle.work import PAPER
from tokentape.warehouse.model_sizes import total_params

Found = tuple[str, float, str, str]
GIB = 2**30
FITTED, UNFITTED, PHYSICAL = "paper", "paper, nothing fitted", "physical"
POWER = {"on-chip": "on-chip-total", "dram": "dram", "sram": "on-chip-sram-41-of-total", "edram": "on-chip-edram-29-of-total"}
KEPT_MODEL = "llama-2-7b"  # of the claims that follow from one model's sizes


def of_ratios(made: Setup, modes: Mapping[str, Mapping[str, str]]) -> Iterator[Found]:
    """Headline, Tables 7 and 9; none where nothing fits the DRAM. modes: knobs and way of counting of each."""
    for mode, read in modes.items():
        steps = made.steps(read["knobs"], read["mode"])
        for ratio in ratios(made.stated.values(), steps):
            value, n_cells = steps.value(ratio)
            if n_cells:
                yield ratio.claim_id, value, f"{ratio.metric}: {ratio}; {n_cells} cells, knobs {read['knobs']}", mode


def of_sizes(made: Setup) -> Iterator[Found]:
    """What follows from sizes, the machines' files and the intervals."""
    geometry, machine = made.geometries[KEPT_MODEL], made.systems[KELLE].machine
    per_token = kv_bytes_per_token(geometry, PAPER)
    load_s, recompute_s = vector_times_s(geometry, machine)
    yield LOAD_CLAIM, 1e6 * load_s, "bytes of K and V in a layer over the DRAM's bandwidth", PHYSICAL
    yield RECOMPUTE_CLAIM, 1e6 * recompute_s, "multiply-adds of two projections on the array", PHYSICAL
    yield "kelle/1/kv_cache_size/llama-2-7b/8192-tokens-fp16", 8192 * per_token / GIB, "GiB, as the paper's GB", FITTED
    dram_bytes = machine.tiers[machine.roles.kv_home].capacity_bytes.value
    tokens = (dram_bytes - total_params(geometry)) / per_token
    yield "kelle/8.4.1/max_input_tokens/llama-2-7b/without-aerp", tokens, "DRAM less 8-bit weights over a token's KV", FITTED
    refresh = made.refresh
    equal = refresh.intervals.harmonic_mean_us
    yield "kelle/7.1/average_interval/four-default-intervals", equal, "harmonic mean of four equal groups", FITTED
    curve = next(iter(made.curves.values()))
    lost = curve.mean_failure(refresh.intervals.all_us)
    yield MEAN_FAILURE, lost, "an input: the retention curve is made to lose this", FITTED
    same = "kelle/8.3.3/refresh_interval/llama-2-7b/uniform-interval-with-the-accuracy-of-2drp"
    yield (
        same,
        curve.interval_at(lost),
        "uniform interval that loses as many cells; the paper's is that of equal accuracy",
        FITTED,
    )
    peak = made.machines[SYSTEMS[KELLE][0]].compute.bound_ops_per_s("int8")
    if peak:
        yield "kelle/8/peak/int8", peak / 1e12, "2 multiply-adds per element and cycle, and one accumulation per column", FITTED
    for mode, knobs in ((FITTED, CALIBRATED), (UNFITTED, ZERO)):
        step, how = chip_step(made, knobs), f"energy over time of {made.chip.model} on {made.chip.workload}"
        watts = {part: part_w(step, part) for part in ("sram", "edram", "dram")}
        watts["on-chip"] = step.energy_j / step.seconds - watts["dram"]
        for part, claim in POWER.items():
            yield f"kelle/8/power/{claim}", watts[part], how, mode
    kelle, sram = (made.machines[SYSTEMS[name][0]] for name in (KELLE, BASELINE))
    yield "kelle/3.1/area_increase/8-mb-over-4-mb-sram", *_area_increase(kelle, sram), FITTED


def _area_increase(kelle: Any, sram: Any) -> tuple[float, str]:
    """Percent that 4 MB more SRAM add to the SRAM chip with the larger array, its DRAM counted in."""
    more = sum(sram.tiers[name].area_mm2.value for name in ("weights", "kv"))
    chip = sram.area_mm2.value - sram.compute.area_mm2.value + kelle.compute.area_mm2.value
    whole = chip + sram.tiers["dram"].area_mm2.value
    return 100.0 * more / whole, f"4 MB of SRAM over chip and DRAM; over the chip alone {100.0 * more / chip:.0f} %"

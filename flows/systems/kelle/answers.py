"""What the Kelle study's points say about the paper's numbers: rows of table `answers`.

Mode `paper` counts as the paper does, with calibrated knobs; `paper, nothing fitted` stands beside every ratio, and `physical`
wherever a configuration fits the DRAM. Tables 2 to 6 need the real models and are not answered here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from tokentape.flows.systems.kelle.details import chip_step, part_w
from tokentape.flows.systems.kelle.setup import CALIBRATED, MEAN_FAILURE, ZERO, Setup
from tokentape.hw.refresh import harmonic_mean_s
from tokentape.replay.kelle.fit import LOAD_CLAIM, RECOMPUTE_CLAIM, ratios
from tokentape.replay.kelle.recompute import vector_times_s
from tokentape.replay.kelle.systems import BASELINE, KELLE, SYSTEMS
from tokentape.replay.kelle.traffic import kv_bytes_per_token
from tokentape.replay.kelle.work import PAPER
from tokentape.warehouse.model_sizes import total_params

Row = dict[str, Any]
GIB = 2**30
FITTED, UNFITTED, PHYSICAL = "paper", "paper, nothing fitted", "physical"
READINGS = {FITTED: (CALIBRATED, "paper"), UNFITTED: (ZERO, "paper"), PHYSICAL: (CALIBRATED, "physical")}
POWER = {"on-chip": "on-chip-total", "dram": "dram", "sram": "on-chip-sram-41-of-total", "edram": "on-chip-edram-29-of-total"}
KEPT_MODEL = "llama-2-7b"  # of the claims that follow from one model's sizes


def answers(made: Setup, points: pl.DataFrame, requests: pl.DataFrame) -> list[Row]:
    """points, requests: rows of `kelle_points` and `kelle_requests`."""
    rows = [*_ratios(made), *_derived(made)]
    for mode in READINGS:
        rows += _swept(points, mode)
        rows += _long(requests, mode)
    return rows


def answer(claim_id: str, value: float, how: str, mode: str = FITTED) -> Row:
    """A row of table `answers`."""
    return {"claim_id": claim_id, "mode": mode, "value": value, "low": None, "high": None, "how": how}


def _ratios(made: Setup) -> Iterator[Row]:
    """Headline, Tables 7 and 9; none where no configuration of the mode fits the DRAM."""
    for mode, (knobs, counting) in READINGS.items():
        steps = made.steps(knobs, counting)
        for ratio in ratios(made.stated.values(), steps):
            value, n_cells = steps.value(ratio)
            if n_cells:
                yield answer(ratio.claim_id, value, f"{ratio.metric}: {ratio}; {n_cells} cells, knobs {knobs}", mode)


def _derived(made: Setup) -> Iterator[Row]:
    """What follows from sizes, the machines' files and the intervals."""
    geometry, chip = made.geometries[KEPT_MODEL], made.systems[KELLE].chip
    per_token = kv_bytes_per_token(geometry, PAPER)
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


@dataclass(frozen=True)
class Compared:
    """A claim that is the mean, over a series' cells of one system, of one setting compared with another."""

    claim: str
    series: str
    system: str
    setting: str
    over: str
    how: str
    value: Callable[[Row, Row], float]


def _watts(row: Row) -> float:
    return float(row["energy_j"] / row["step_s"])


_SCAN, _LENGTHS, _LARGE_EDRAM = "against a scan of one score per cycle", "PG19 by decode length", "8 MB at 45 us"
COMPARED = (
    Compared(
        "kelle/8.1.4/energy_efficiency_improvement/systolic-evictor-on-vs-off", "evictor", KELLE, "systolic", "software", _SCAN,
        lambda on, off: 100.0 * (off["energy_j"] / on["energy_j"] - 1.0),
    ),
    Compared(
        "kelle/8.1.4/latency_reduction/systolic-evictor-on-vs-off", "evictor", KELLE, "systolic", "software", _SCAN,
        lambda on, off: 100.0 * (1.0 - on["step_s"] / off["step_s"]),
    ),
    Compared(
        "kelle/8.3.2/latency_and_energy_improvement/recomputation-on-vs-off-average", "recompute", KELLE, "on", "off",
        "efficiency in energy", lambda on, off: 100.0 * (off["energy_j"] / on["energy_j"] - 1.0),
    ),
    Compared(
        "kelle/3.1/speedup/llama-2-7b/8-mb-over-4-mb-sram-32x32-array-average", "sram size", BASELINE, "8 MB", "4 MB", _LENGTHS,
        lambda large, small: small["step_s"] / large["step_s"],
    ),
    Compared(
        "kelle/3.1/power_increase/8-mb-over-4-mb-sram", "sram size", BASELINE, "8 MB", "4 MB", _LENGTHS,
        lambda large, small: 100.0 * (_watts(large) / _watts(small) - 1.0),
    ),
    Compared(
        "kelle/3.2/energy_ratio/8-mb-edram-at-45-us-over-no-refresh-average", "edram share", "Original+eDRAM", _LARGE_EDRAM,
        "8 MB without refresh", _LENGTHS, lambda on, off: on["energy_j"] / off["energy_j"],
    ),
)  # fmt: skip
LARGEST_SHARE = "kelle/3.2/refresh_energy_share/8-mb-edram-at-45-us-maximum"


def _swept(points: pl.DataFrame, mode: str) -> Iterator[Row]:
    """One setting of a series over another, and the largest share that refresh takes."""
    mine = _of_mode(points, mode).filter(pl.col("step_s").is_not_null())
    for one in COMPARED:
        of = mine.filter((pl.col("series") == one.series) & (pl.col("system") == one.system))
        this, other = (
            {
                (row["model_id"], row["workload"], row["n_decode_tokens"]): row
                for row in of.filter(pl.col("setting") == s).to_dicts()
            }
            for s in (one.setting, one.over)
        )
        found = [one.value(this[cell], other[cell]) for cell in this if cell in other]
        if found:
            yield answer(one.claim, sum(found) / len(found), f"{one.how}; mean over {len(found)} cells", mode)
    shares = [row["refresh_j"] / row["energy_j"] for row in mine.filter(pl.col("setting") == _LARGE_EDRAM).to_dicts()]
    if shares:
        yield answer(LARGEST_SHARE, 100.0 * max(shares), "most over decode lengths of PG19", mode)


def _of_mode(frame: pl.DataFrame, mode: str) -> pl.DataFrame:
    knobs, counting = READINGS[mode]
    return frame.filter((pl.col("knobs") == knobs) & (pl.col("mode") == counting))


def _long(requests: pl.DataFrame, mode: str) -> Iterator[Row]:
    """Long prompts, with a prefill that the paper does not give: reported."""
    fitting = _of_mode(requests, mode).filter(pl.col("energy_gain").is_not_null())
    kelle, aerp = (
        {
            (row["n_context_tokens"], row["n_decode_tokens"]): row["energy_gain"]
            for row in fitting.to_dicts()
            if row["system"] == name
        }
        for name in (KELLE, "AERP+SRAM")
    )
    stem, how = "kelle/8.3.5/energy_efficiency_gain/llama-2-7b/pg19-{}", "prefill and decode, batch 16, with an assumed prefill"
    if (16384, 128) in kelle:
        yield answer(stem.format("16k-128-kelle-edram-over-original-sram"), kelle[16384, 128], how, mode)
    long = [cell for cell in kelle if cell[1] > 128 and cell in aerp]
    if long:
        means = [sum(values) / len(long) for values in ([kelle[c] for c in long], [kelle[c] / aerp[c] for c in long])]
        for name, value in zip(("original-sram", "aerp-sram"), means, strict=True):
            claim = stem.format(f"long-in-and-out-average-kelle-edram-over-{name}")
            yield answer(claim, value, f"{how}; mean over {len(long)} lengths (assumed)", mode)

"""Bars of the GPU-NDP model, what the paper's ratios force, and where the paper disagrees with itself: rows of `cxl_ndp_checks`.

Nothing is tuned to any of them; what does not hold is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from tokentape.flows.systems.cxl_ndp.answers import END_TO_END, MODE, of_point
from tokentape.flows.systems.cxl_ndp.points import HEADLINE
from tokentape.flows.systems.cxl_ndp.settings import PAPER, Settings
from tokentape.replay.cxl_ndp.fit import ratios_of
from tokentape.replay.cxl_ndp.system import HOBBIT, MONDE
from tokentape.warehouse import models
from tokentape.warehouse.load import claims

Row = dict[str, Any]
ORDER = ("OURS-2", "OURS-3", MONDE, HOBBIT)  # by time, least first


def _check(
    check: str, value: float, unit: str, how: str, published: float | None = None, bar: tuple[float, float] | None = None
) -> Row:
    low, high = bar or (None, None)
    found = {"check": check, "value": float(value), "published": published, "unit": unit}
    return found | {"bar_low": low, "bar_high": high, "how": how}


def checks(study: Settings, made: Mapping[str, Sequence[Row]]) -> list[Row]:
    """made: rows of the study's tables by name, answers among them."""
    frames = {name: pl.DataFrame(rows, infer_schema_length=None) for name, rows in made.items()}
    return [
        *_bars(study, made["answers"]),
        *_order(study, frames["cxl_ndp_requests"]),
        *_placement(study, frames["cxl_ndp_hits"]),
        *_bits(study, frames["cxl_ndp_losses"]),
        *_forced(study, frames["cxl_ndp_points"]),
        *_held_out(study, frames["cxl_ndp_points"]),
        *_paper(study, frames["cxl_ndp_accuracy"]),
    ]


def summary(found: Sequence[Row]) -> list[str]:
    """How many bars hold, and which do not."""
    held = [row for row in found if row["bar_low"] is not None]
    missed = [row["check"] for row in held if not row["bar_low"] <= row["value"] <= row["bar_high"]]
    return [f"{len(held) - len(missed)} of {len(held)} bars held" + (f"; not: {', '.join(missed)}" if missed else "")]


def _bars(study: Settings, answers: Sequence[Row]) -> Iterator[Row]:
    """Every answered number of the paper with its tolerance."""
    bars, ours = study.bars, {(row["claim_id"], row["mode"]): row["value"] for row in answers}
    tolerances = {
        "decode_throughput_gain": bars.decode_tolerance,
        "speedup": bars.hobbit_tolerance,
        "e2e_speedup": bars.e2e_tolerance,
        "prefill_decode_cosine": bars.cosine_tolerance,
    }
    for claim in (row for row in claims().to_pylist() if row["paper"] == PAPER):
        metric, stated = claim["metric"], claim["value"]
        name = " ".join(
            part for part in (metric.replace("_", " "), claim["setting"].partition(" (")[0], claim["statistic"]) if part
        )
        if metric in tolerances:
            by = tolerances[metric] * (1.0 if metric == "prefill_decode_cosine" else stated)
            modes = (MODE, END_TO_END) if metric == "speedup" else (MODE,)
            for mode in modes:
                said = f"{name}, end to end" if mode == END_TO_END else name
                yield _check(said, ours[claim["claim_id"], mode], "x", claim["role"], stated, (stated - by, stated + by))
        elif metric == "ndp_side_latency_gain":
            exact = 16.0 / int(claim["setting"][0])  # by the assumed scaling: it cannot miss, so it has no bar
            yield _check(name, ours[claim["claim_id"], MODE], "x", f"16 over the bits is {exact:.3g}", stated)


def _order(study: Settings, requests: pl.DataFrame) -> Iterator[Row]:
    """Share of length pairs of both grids at which the four systems come in the paper's order."""
    mine = requests.filter(pl.col("model_id") == study.models[0].name)
    cells = mine.partition_by(["setting", "n_context_tokens", "n_decode_tokens"])
    ordered = []
    for cell in cells:
        seconds = dict(cell.select("system", "e2e_s").iter_rows())
        ordered.append(all(seconds[a] < seconds[b] for a, b in pairwise(ORDER)))
    how = f"share of {len(ordered)} length pairs"
    yield _check(f"order {' < '.join(ORDER)}", float(np.mean(ordered)), "1", how, None, (1.0, 1.0))


def _placement(study: Settings, hits: pl.DataFrame) -> Iterator[Row]:
    """Drawn routing, all layers together."""
    for model in study.models:
        for batch in hits["batch"].unique().sort().to_list():
            of = hits.filter((pl.col("model_id") == model.name) & (pl.col("batch") == batch) & pl.col("layer").is_null())
            share = dict(of.select("placement", "gpu_hit_frac").iter_rows())
            where = f"{model.name}, {model.hot_experts} hot, batch {batch}"
            is_barred = batch == 1 and model.name.startswith("mixtral")
            gain, bound = share["prefill_guided"] - share["static_global"], share["oracle"] - share["prefill_guided"]
            least = (study.bars.least_hit_gain, 1.0) if is_barred else None
            yield _check(f"hit share, prompt less static, {where}", gain, "1", _shares(share), None, least)
            yield _check(f"hit share, oracle less prompt, {where}", bound, "1", _shares(share), None, (0.0, 1.0))


def _shares(share: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in share.items())


def _bits(study: Settings, losses: pl.DataFrame) -> Iterator[Row]:
    """The selector against uniform bits, stand-in losses."""
    split = losses.filter(pl.col("rule") == "prefix_split")
    whole = split.filter(pl.col("mean_bits") == pl.col("mean_bits").round())
    largest = float(whole["high"].max())  # type: ignore[arg-type]
    yield _check(
        "selector's table loss over uniform, 95th percentile, the largest", largest, "1", "whole mean bits", None, (0.0, 1.0)
    )
    for model in study.models[:2]:
        of = split.filter((pl.col("model_id") == model.name) & (pl.col("batch") == 1))
        gain = dict(of.select("mean_bits", "loss_gain").iter_rows())
        how = f"{gain[2.0]:.3g} at 2 bits, {gain[3.0]:.3g} at 3; per sequence"
        yield _check(f"selector's gain at 2 bits less at 3, {model.name}", gain[2.0] - gain[3.0], "1", how, None, (0.0, 1.0))


def _forced(study: Settings, points: pl.DataFrame) -> Iterator[Row]:
    """What the decode ratios alone say, x being the FP16 NDP time of the experts in memory; ours beside it."""
    by = {(one.bits, one.over): one.published for one in ratios_of(claims().to_pylist())}
    three, two = by[3, MONDE], by[2, MONDE]
    monde = (1 / 16) / (1 / three - 1 / two)
    other, hobbit = monde / three - 3 / 16, by[2, HOBBIT] * monde / two
    model = study.models[0].name

    def of(system: str, metric: str, series: str = HEADLINE, setting: str = "") -> float:
        wanted = {"series": series, "setting": setting, "model_id": model, "system": system, "metric": metric}
        return float(of_point(points, **wanted)["value"])

    x = of("OURS-3", "ndp_s") * of("OURS-3", "ndp_gain")
    yield _check("T_o over x", of("OURS-3", "other_s") / x, "1", "published: forced by 8.7 and 11.2", other)
    yield _check("MoNDE's step over x", of(MONDE, "step_s") / x, "1", "published: forced by 8.7 and 11.2", monde)
    yield _check("HOBBIT's step over x", of(HOBBIT, "step_s") / x, "1", "published: forced by 18 too", hobbit)
    yield _check("experts that MoNDE moves per layer-step", of(MONDE, "moved_per_layer_step"), "experts", "exponential average")
    for name in (f"{MONDE} never", f"{MONDE} always", f"{MONDE} balance"):
        for bits, stated in ((3, three), (2, two)):
            gain = of(f"OURS-{bits}", "tokens_per_s") / of(name, "tokens_per_s")
            yield _check(f"decode gain at {bits} bits over {name}", gain, "x", "published: over MoNDE, policy not given", stated)
    batch = next(row for row in points.filter(pl.col("series") == HEADLINE)["batch"].to_list())
    for setting in (f"fixed, batch {batch}", "fixed, batch 1"):
        for bits in (3, 2):
            for metric in ("ndp_gain", "decode_gain"):
                value = of(f"OURS-{bits}", metric, "mac rate", setting)
                yield _check(
                    f"{metric.replace('_', ' ')} at {bits} bits, MAC rate {setting}", value, "x", "computing does not scale"
                )


def _held_out(study: Settings, points: pl.DataFrame) -> Iterator[Row]:
    """Gains of the models that nothing was fitted to."""
    for model in study.models[1:]:
        for system, metric in (("OURS-3", "decode_gain"), ("OURS-2", "decode_gain"), ("OURS-2", "gain_over_hobbit")):
            row = of_point(points, series=HEADLINE, model_id=model.name, system=system, metric=metric)
            how = f"{row['low']:.3g} to {row['high']:.3g} over {row['n_seeds']} seeds; constants of {study.models[0].name}"
            yield _check(f"{metric.replace('_', ' ')} of {system}, {model.name}", row["value"], "x", how)


def _paper(study: Settings, accuracy: pl.DataFrame) -> Iterator[Row]:
    """Section 8 of the specification: the paper's own numbers, each a second way."""
    table = {(row["method"], row["task"]): row["accuracy_pct"] for row in accuracy.to_dicts()}
    stated = {(row["metric"], row["setting"]): row["value"] for row in claims().to_pylist() if row["paper"] == PAPER}
    full = table["original_fp16", "average"]
    for bits in (3, 2):
        drop, said = full - table[f"ours_{bits}bit", "average"], stated["accuracy_drop", f"ours {bits}-bit vs original"]
        how = f"Table 3's averages; {100 * drop / full:.2f} % of the original's, so the paper's percent are points"
        yield _check(f"accuracy drop at {bits} bits", drop, "percentage points", how, said)
        tasks = sorted({task for _, task in table} - {"average"})
        lost = [task for task in tasks if table[f"ours_{bits}bit", task] < table[f"ours_{bits}bit_no_selector", task]]
        gain = table[f"ours_{bits}bit", "average"] - table[f"ours_{bits}bit_no_selector", "average"]
        how = f"of Table 3's average; it loses on {', '.join(lost) or 'no task'}"
        yield _check(
            f"selector's gain at {bits} bits",
            gain,
            "percentage points",
            how,
            stated["selector_gain", f"{bits}-bit with vs without bitwidth selector"],
        )
        mean = float(np.mean([table[f"ours_{bits}bit", task] for task in tasks]))
        yield _check(f"average at {bits} bits", mean, "%", "mean of Table 3's eight tasks", table[f"ours_{bits}bit", "average"])
    for model in study.models[:2]:
        geometry = models.load(model.name).geometry
        experts = len(geometry.moe_layers) * geometry.n_experts * geometry.expert_params / 1e9
        yield _check(f"expert parameters of {model.name}", experts, "1e9", "3 h f E L; Table 1 has 45.1 and 135.5")

"""Points of a series: what a setting does to every system, median and range over the seeds of its routing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokentape.replay.cxl_ndp.capacity import notes
from tokentape.replay.cxl_ndp.checks import HEADLINE
from tokentape.replay.cxl_ndp.decode import UNITS, Decoded
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.setting import Floats, Setting, run
from tokentape.replay.cxl_ndp.system import HOBBIT, MONDE, Setup

Row = dict[str, Any]
GAINS = {MONDE: "decode_gain", HOBBIT: "gain_over_hobbit"}
ALL_UNITS = UNITS | dict.fromkeys(GAINS.values(), "x")


@dataclass(frozen=True)
class Variation:
    """One point of a series: what it is called, the setting, and with what. value: the number in `name`."""

    series: str
    name: str
    setting: Setting
    made: Setup
    systems: tuple[str, ...]
    value: float | None = None


def decoded(tape: CXLNDPRouting, seed: int, of: Variation, losses: Floats) -> dict[str, Decoded]:
    """Every system's decode of one tape, at the nominal end."""
    return run(tape, of.made, replace(of.setting, seed=seed), of.systems, losses, ("value",))


def metric_rows(
    of: Variation, by_seed: Sequence[dict[str, dict[str, float]]], fitted: Collection[tuple[str, str]]
) -> Iterator[Row]:
    """Rows of `cxl_ndp_points`, one per system and metric: median and range, without study, source and origin.

    fitted: system and metric of the ratios that the constants were fitted to on this model.
    """
    setting = of.setting
    said = "; ".join(notes(of.made, setting.hot_experts, setting.batch))
    for system in by_seed[0]:
        bits = float(system.removeprefix("OURS-")) if system.startswith("OURS-") else 16.0
        for metric in by_seed[0][system]:
            values = np.array([found[system][metric] for found in by_seed])
            if np.isnan(values).any():  # of an NDP that computes nothing
                continue
            yield {
                "series": of.series,
                "setting": of.name,
                "setting_value": of.value,
                "model_id": of.made.name,
                "hardware": of.made.machine.name,
                "system": system,
                "batch": setting.batch,
                "hot_experts": setting.hot_experts,
                "mean_bits": bits,
                "n_seeds": len(by_seed),
                "role": role(of.series, system, metric, fitted),
                "notes": said,
                "metric": metric,
                "unit": ALL_UNITS[metric],
                "value": float(np.median(values)),
                "low": float(values.min()),
                "high": float(values.max()),
            }


def role(series: str, system: str, metric: str, fitted: Collection[tuple[str, str]]) -> str:
    """calibrate for what the constants were fitted to, predict for the rest of the headline, report for sweeps.

    derived for the NDP's own gain, which is the assumed scaling.
    """
    if series != HEADLINE:
        return "report"
    if metric == "ndp_gain":
        return "derived"
    return "calibrate" if (system, metric) in fitted else "predict"

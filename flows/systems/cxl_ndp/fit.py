"""The knobs, fitted on the decode of the paper's smaller model over the study's drawn tapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tokentape.flows.cxl_ndp import routing as cxl_ndp_routing
from tokentape.flows.systems.cxl_ndp.points import GAINS, decoded, headline
from tokentape.flows.systems.cxl_ndp.settings import Model, Settings, Setup, setup
from tokentape.hw.cxl_ndp_knobs import Knobs
from tokentape.hw.fit_files import Fit
from tokentape.replay.cxl_ndp.fit import calibrate, ratios_of
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.setting import COMPARED, compared
from tokentape.warehouse.load import claims

START = Knobs(fixed_s=1e-4, link_frac=1.0, hobbit_bits=4.0)


def drawn(made: Setup, model: Model) -> dict[int, CXLNDPRouting]:
    """The model's tapes by seed."""
    return {seed: cxl_ndp_routing.drawn(made.shape.geometry, made.study.sequences, seed) for seed in model.seeds}


def gains(made: Setup, model: Model, tapes: Mapping[int, CXLNDPRouting]) -> dict[tuple[int, str], float]:
    """Decode ratios of the headline by bits and baseline, medians over seeds."""
    of = replace(headline(made, model), systems=COMPARED)
    by_seed = [compared(decoded(made, tape, seed, of)) for seed, tape in tapes.items()]
    return {
        (bits, over): float(np.median([found[f"OURS-{bits}"][gain] for found in by_seed]))
        for bits in (2, 3)
        for over, gain in GAINS.items()
    }


def fitted(study: Settings) -> Fit[Knobs]:
    """On claims of role calibrate alone. Under a minute; needs scipy."""
    model = study.models[0]
    start = setup(study, model.name, START)
    tapes = drawn(start, model)

    def ratios(knobs: Knobs) -> Mapping[tuple[int, str], float]:
        return gains(replace(start, knobs=knobs), model, tapes)

    return calibrate(claims().to_pylist(), START, ratios)


def compared_with_claims(study: Settings, knobs: Knobs) -> list[tuple[str, str, float, float]]:
    """Role, what, published and ours, of every decode ratio of the fitted model that the paper prints."""
    model = study.models[0]
    made = setup(study, model.name, knobs)
    ours = gains(made, model, drawn(made, model))
    return [
        (one.role, f"OURS-{one.bits} over {one.over}", one.published, ours[one.bits, one.over])
        for one in ratios_of(claims().to_pylist())
    ]

"""The constants, fitted on the decode of the paper's smaller model over the study's drawn tapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tokentape.flows.cxl_ndp import routing as cxl_ndp_routing
from tokentape.flows.systems.cxl_ndp.points import headline, losses_of
from tokentape.flows.systems.cxl_ndp.settings import Model, Settings, setup
from tokentape.hw.fit_files import Fit
from tokentape.replay.cxl_ndp.fit import Constants, calibrate, ratios_of
from tokentape.replay.cxl_ndp.points import GAINS, decoded
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.setting import COMPARED, compared
from tokentape.replay.cxl_ndp.system import Setup
from tokentape.warehouse.load import claims


def drawn(study: Settings, made: Setup, model: Model) -> dict[int, CXLNDPRouting]:
    """The model's tapes by seed."""
    return {seed: cxl_ndp_routing.drawn(made.geometry, study.sequences, seed) for seed in model.seeds}


def gains(study: Settings, made: Setup, model: Model, tapes: Mapping[int, CXLNDPRouting]) -> dict[tuple[int, str], float]:
    """Decode ratios of the headline by bits and baseline, medians over seeds."""
    of = replace(headline(study, made, model), systems=COMPARED)
    by_seed = [compared(decoded(tape, seed, of, losses_of(study, made, seed))) for seed, tape in tapes.items()]
    return {
        (bits, over): float(np.median([found[f"OURS-{bits}"][gain] for found in by_seed]))
        for bits in (2, 3)
        for over, gain in GAINS.items()
    }


def fitted(study: Settings) -> Fit[Constants]:
    """On claims of role calibrate alone. Under a minute; needs scipy."""
    model = study.models[0]
    tapes = drawn(study, setup(study, model.name), model)

    def ratios(constants: Constants) -> Mapping[tuple[int, str], float]:
        return gains(study, setup(study, model.name, constants), model, tapes)

    return calibrate(claims().to_pylist(), ratios)


def compared_with_claims(study: Settings, constants: Constants) -> list[tuple[str, str, float, float]]:
    """Role, what, published and ours, of every decode ratio of the fitted model that the paper prints."""
    model = study.models[0]
    made = setup(study, model.name, constants)
    ours = gains(study, made, model, drawn(study, made, model))
    return [
        (one.role, f"OURS-{one.bits} over {one.over}", one.published, ours[one.bits, one.over])
        for one in ratios_of(claims().to_pylist())
    ]

"""How far a fit is from ELMoE-3D's open rows: errors, winners, means, by the words of table elmoe3d_checks.

The FORMS of the model were chosen with the table in view; parameter values are out of sample in predicted rows, forms are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.hw import profile as profiles
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.replay.elmoe3d.cells import CALIBRATE, Cell, Setup
from tokentape.replay.elmoe3d.fit import fit_speculation
from tokentape.replay.elmoe3d.points import EAGLE, ELASTIC, SCHEMES, SLICED_FORMATS, as_points
from tokentape.replay.elmoe3d.runs import tokens_until_link_binds
from tokentape.replay.elmoe3d.timing import PAPER, Outcome, evaluate

Floats = NDArray[np.float64]
FAR_BATCH = 4  # from which the paper compares Elastic-SD with EAGLE3
HONESTY = (
    "The forms of the model were chosen with the paper's table in view (KV width, embedding format, GiB, several hit laws and "
    "several forms of acceptance): parameter values are out of sample in predicted rows, forms are not."
)


@dataclass(frozen=True)
class Check:
    """A number about n rows, under its name in table elmoe3d_checks."""

    block: str
    value: float
    unit: str
    n: int


def checks(table: Sequence[Cell], found: Outcome) -> list[Check]:
    """found: the table's points in order. Only open rows count, but for the means over all that the paper states."""
    is_open = np.array([cell.is_open for cell in table])
    opened = [cell for cell in table if cell.is_open]
    ours = {"Phi_AR": found.phi_ar, "Phi_SD": found.phi_sd}
    published = {"Phi_AR": _of(opened, "phi_ar"), "Phi_SD": _of(opened, "phi_sd")}
    made: list[Check] = []
    for name, role in (("Phi_AR", "role_ar"), ("Phi_SD", "role_sd")):
        error = np.abs(ours[name][is_open] / published[name] - 1.0)
        predicted = np.array([getattr(cell, role) != CALIBRATE for cell in opened])
        made += _errors(f"{name} error, open rows", error)
        made.append(_mean(f"{name} error, predicted open rows, mean", error[predicted]))
        for scheme in SCHEMES:
            made.append(_mean(f"{name} error, {scheme}, mean", error[np.array([cell.scheme == scheme for cell in opened])]))
        right = _winners(opened, ours[name][is_open], published[name])
        words = "right, ties count" if name == "Phi_AR" else "right"
        made.append(Check(f"{name} best scheme {words}", float(np.mean(right)), "1", len(right)))
    rank = [pl.Series(values).rank().to_numpy() for values in (found.phi_sd[is_open], published["Phi_SD"])]
    made.append(Check("Phi_SD rank correlation", float(np.corrcoef(rank)[0, 1]), "1", len(opened)))
    return made + _elastic(table, found, is_open)


def _elastic(table: Sequence[Cell], found: Outcome, is_open: NDArray[np.bool_]) -> list[Check]:
    mine = np.array([cell.scheme == ELASTIC for cell in table])
    chosen = [cell for cell in table if cell.scheme == ELASTIC and cell.is_open]
    is_right = found.is_sd_better[mine & is_open] == (_of(chosen, "phi_sd") > _of(chosen, "phi_ar"))
    made = [_mean("Elastic AR-or-SD choice right", is_right.astype(np.float64))]
    for gb in sorted({cell.hb_gb for cell in table}):
        of = mine & np.array([cell.hb_gb == gb for cell in table])
        made.append(_mean(f"Elastic best mode over xPU, {gb} GB, mean", found.phi[of], "x"))
    ratios = elastic_over_eagle(table, found)
    made.append(_mean(f"Elastic over EAGLE3 Phi_SD, batch {FAR_BATCH} and up, mean", ratios, "x"))
    made.append(Check(f"Elastic over EAGLE3 Phi_SD, batch {FAR_BATCH} and up, max", float(ratios.max()), "x", ratios.size))
    return made


def elastic_over_eagle(table: Sequence[Cell], found: Outcome) -> Floats:
    """Ratios of Phi_SD, all scenarios from FAR_BATCH on, withheld ones predicted."""
    of = {(cell.scenario, cell.scheme): phi for cell, phi in zip(table, found.phi_sd, strict=True)}
    scenarios = dict.fromkeys(cell.scenario for cell in table if cell.batch >= FAR_BATCH)
    return np.array([of[scenario, ELASTIC] / of[scenario, EAGLE] for scenario in scenarios])


def held_out(table: Sequence[Cell], setup: Setup, fit: ELMoE3DConstants) -> list[Check]:
    """Speculation refitted without some open rows, and its error on those: by capacity of HB, and without GPT-OSS."""
    opened = [cell for cell in table if cell.is_open]
    splits = {
        "fitted on 8 GB, of 4 GB": [cell.hb_gb == 8 for cell in opened],
        "fitted on 4 GB, of 8 GB": [cell.hb_gb == 4 for cell in opened],
        "fitted without gpt-oss-20b, of it": [cell.model != "gpt-oss-20b" for cell in opened],
    }
    made = []
    for words, kept in splits.items():
        seen = [cell for cell, is_kept in zip(opened, kept, strict=True) if is_kept]
        unseen = [cell for cell, is_kept in zip(opened, kept, strict=True) if not is_kept]
        speculation, _ = fit_speculation(seen, setup, fit.laws, fit.speculation)
        refitted = replace(fit, speculation=speculation)
        found = evaluate(as_points([setup.point(cell, refitted) for cell in unseen]))
        made.append(_mean(f"Phi_SD error, {words}, mean", np.abs(found.phi_sd / _of(unseen, "phi_sd") - 1.0)))
    return made


def link_checks(table: Sequence[Cell], setup: Setup, fit: ELMoE3DConstants, verify_nodes: float) -> list[Check]:
    """Tokens in one expert whose partial sums a link carries while a slice is fetched, and tokens in the hottest expert.

    The latter at the table's largest batch, with so many nodes verified per request. Of sliced models, with the largest HB.
    """
    batch, largest = max(cell.batch for cell in table), max(setup.machines)
    elastic = [cell for cell in table if (cell.scheme, cell.batch, cell.hb_gb) == (ELASTIC, batch, largest)]
    made = []
    for cell in (cell for cell in elastic if setup.models[cell.model][1] in SLICED_FORMATS):
        point = setup.point(cell, fit)
        hottest = float(-np.expm1(-as_points([point]).weights[0, 0])) * batch * verify_nodes
        carried = float(tokens_until_link_binds(point, profiles.load(PAPER)))
        made.append(Check(f"Tokens in one expert a link carries during a slice's fetch, {cell.model}", carried, "tokens", 1))
        made.append(
            Check(f"Tokens in the hottest expert, batch {batch}, {verify_nodes:g} nodes, {cell.model}", hottest, "tokens", 1)
        )
    return made


def _of(table: Sequence[Cell], name: str) -> Floats:
    return np.array([getattr(cell, name) for cell in table], np.float64)


def _mean(block: str, values: Floats, unit: str = "1") -> Check:
    return Check(block, float(values.mean()), unit, values.size)


def _errors(block: str, error: Floats) -> list[Check]:
    values = {
        "mean": error.mean(),
        "median": np.median(error),
        "90th percentile": np.quantile(error, 0.9),
        "max": error.max(),
        "share within 5 %": (error <= 0.05).mean(),
        "share within 20 %": (error <= 0.2).mean(),
    }
    return [Check(f"{block}, {name}", float(value), "1", error.size) for name, value in values.items()]


def _winners(opened: Sequence[Cell], ours: Floats, published: Floats) -> list[bool]:
    """Per scenario, whether the scheme we name best is the paper's best, or level with it."""
    by_scenario: dict[tuple[int, str, int], list[int]] = {}
    for i, cell in enumerate(opened):
        by_scenario.setdefault(cell.scenario, []).append(i)
    return [bool(published[rows][np.argmax(ours[rows])] == published[rows].max()) for rows in by_scenario.values()]

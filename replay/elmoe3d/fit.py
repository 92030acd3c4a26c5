"""Fits the constants of ELMoE-3D's model to Table 3 (the paper gives none): by root finding per model, then least squares.

Of a model, one cell each: beta from Elastic-SD at batch 1, whether EAGLE's head holds a table of its own from EAGLE3 at batch 1,
and at level L1 the exponent from a cell at batch 16. At batch 1 the popularity plays no part: one turn in this order is enough.
What a round costs (K, a, c, w) is fitted on Phi_SD, relative errors squared, at a fixed number of draft steps. Pure: the cells
are passed in.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import polars as pl

from tokentape.hw import profile as profiles
from tokentape.hw.coverage import STEEPEST
from tokentape.hw.elmoe3d_constants import LEVELS, ROWS, ELMoE3DConstants, ModelLaw, Speculation
from tokentape.hw.fit_files import Fit, solver
from tokentape.hw.work import Floats, Rows
from tokentape.replay.elmoe3d.laws import weights_of
from tokentape.replay.elmoe3d.mapping import map_bytes
from tokentape.replay.elmoe3d.points import EAGLE, ELASTIC, Points, Setup, as_points, points_of
from tokentape.replay.elmoe3d.runs import s_per_byte
from tokentape.replay.elmoe3d.timing import PAPER, evaluate

TABLE = "Table 3"
CALIBRATE = "calibrate"
IS_OPEN = pl.col("published_ar").is_not_null() & pl.col("published_sd").is_not_null()
METRICS = ("alpha", "phi_ar", "phi_sd")

START = Speculation(verify_tokens=6.0, draft_tokens=5.0, growth=0.8, fade=0.4)
BOUNDS = {"verify_tokens": (1.0, 64.0), "growth": (0.1, 1.0), "fade": (0.01, 2.0), "draft_tokens": (1.0, 64.0)}
LEAST_BETA = 1e-3


def cells(claims: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows of Table 3 in the claims' order: hb_gb, model (as those that ship are named), scheme, batch and alpha; of Phi_AR and
    Phi_SD the published value (null where withheld, never 0), its role and its claim.

    Raises ValueError for a row that lacks its alpha or one of its speed-ups' claims.
    """
    kept = ("model", "setting", "metric", "value", "role", "claim_id")
    told = [{name: c[name] for name in kept} for c in claims if c["paper"] == PAPER and c["location"] == TABLE]
    wide = pl.DataFrame(told).pivot("metric", index=("model", "setting"), values=("value", "role", "claim_id"))
    for metric in METRICS:
        for model, setting in wide.filter(pl.col(f"claim_id_{metric}").is_null()).select("model", "setting").rows():
            raise ValueError(f"{TABLE}, {model}, {setting}: no claim of {metric}")
    for claim_id in wide.filter(pl.col("value_alpha").is_null())["claim_id_alpha"]:
        raise ValueError(f"{claim_id}: alpha is an input and has no value")
    where = pl.col("setting").str
    return wide.select(
        hb_gb=where.extract(r"hb_gb=(\d+)").cast(pl.Int64),
        model=pl.col("model").str.to_lowercase(),
        scheme=where.extract(r"scheme=(\S+)"),
        batch=where.extract(r"batch=(\d+)").cast(pl.Int64),
        alpha="value_alpha",
        **{f"published_{mode}": f"value_phi_{mode}" for mode in ("ar", "sd")},
        **{f"role_{mode}": f"role_phi_{mode}" for mode in ("ar", "sd")},
        **{f"{mode}_claim": f"claim_id_phi_{mode}" for mode in ("ar", "sd")},
    )


def calibrate(cells: pl.DataFrame, setup: Setup, level: str = "L1", rows: str = ROWS[0]) -> Fit[ELMoE3DConstants]:
    """The constants. rows: `calibrate` fits speculation on the cells whose role_sd says so, `all-open` on every open one.

    Deterministic; a second. Raises ValueError where a model lacks a calibration cell or no constant reproduces it; ImportError
    without scipy.
    """
    solver()
    laws, claims = {}, set[str]()
    for model in cells["model"].unique(maintain_order=True):
        mine = cells.filter((pl.col("model") == model) & (pl.col("role_ar") == CALIBRATE) & pl.col("published_ar").is_not_null())
        laws[model], used = fit_law(mine, setup, level, model)
        claims |= used
    chosen = cells.filter(IS_OPEN & ((pl.col("role_sd") == CALIBRATE) | (rows != ROWS[0])))
    speculation, loss = fit_speculation(chosen, setup, laws)
    return Fit(ELMoE3DConstants(level, rows, speculation, laws), tuple(sorted(claims | set(chosen["sd_claim"]))), loss)


def fit_law(cells: pl.DataFrame, setup: Setup, level: str, model: str) -> tuple[ModelLaw, set[str]]:
    """A model's law from its calibration cells of Phi_AR, and the claims that were used."""
    others = [scheme for scheme in cells["scheme"] if scheme not in (ELASTIC, EAGLE)]
    if not {ELASTIC, EAGLE} <= set(cells["scheme"]) or (level == LEVELS[1] and len(others) != 1):
        raise ValueError(f"{model}: needs open cells to calibrate on, of {ELASTIC}, {EAGLE} and, at {LEVELS[1]}, one more scheme")
    known = ELMoE3DConstants(level, "", START, {model: ModelLaw(beta=1.0, exponent=1.0)})
    at = {scheme: cells.filter(pl.col("scheme") == scheme) for scheme in cells["scheme"]}
    points = {scheme: as_points(points_of(cell, known), setup) for scheme, cell in at.items()}
    geometry, _ = setup.models[model]

    def error(scheme: str, exponent: float = 1.0, **numbers: float) -> float:
        """Of the scheme's Phi_AR with these numbers."""
        weights = weights_of([(geometry.n_experts, geometry.top_k, exponent)])
        told: dict[str, Any] = {"weights": weights} | {name: np.array([number]) for name, number in numbers.items()}
        return float(evaluate(replace(points[scheme], **told)).phi_ar[0] - at[scheme]["published_ar"][0])

    low = _least_beta(points[ELASTIC])
    beta = _root(lambda value: error(ELASTIC, beta=value), low, 1.0, f"{model}: beta")
    own_table = min((False, True), key=lambda has: abs(error(EAGLE, beta=beta, own_table=float(has))))
    law, used = ModelLaw(beta=beta, exponent=1.0 - beta, own_table=own_table), [ELASTIC, EAGLE]
    if level == LEVELS[1]:
        used += others
        of_exponent = partial(error, others[0], beta=beta)
        law = replace(law, exponent=_root(lambda value: of_exponent(exponent=value), 0.0, STEEPEST / 4, f"{model}: exponent"))
    return law, {at[scheme]["ar_claim"][0] for scheme in used}


def _least_beta(points: Points) -> float:
    """From which on Phi_AR falls with beta: below it HB would be the slower tier."""
    share, profile, machine = map_bytes(points).share[0], profiles.load(PAPER), points.groups[0].machine
    hb, ext = (s_per_byte(machine, Rows(kind="expert", tier=tier), profile) for tier in ("expert_cache", "expert_home"))
    return max(LEAST_BETA, float(np.log(ext / (hb + ext)) / np.log(share)))


def _root(error: Callable[[float], float], low: float, high: float, name: str) -> float:
    """Raises ValueError where the error has one sign at both ends."""
    from scipy.optimize import brentq

    if error(low) * error(high) > 0.0:
        raise ValueError(f"{name}: no value from {low:g} to {high:g} reproduces the cell it is read off")
    return float(brentq(error, low, high, xtol=1e-15 * high, rtol=1e-14))


def fit_speculation(
    cells: pl.DataFrame, setup: Setup, laws: dict[str, ModelLaw], start: Speculation = START
) -> tuple[Speculation, float]:
    """K, a, c and w by least squares of relative errors of Phi_SD, and the mean square that is left. Needs scipy."""
    least_squares = solver()
    if cells.height < len(BOUNDS):
        raise ValueError(f"{cells.height} cells cannot fix {len(BOUNDS)} constants of speculation")
    fit = ELMoE3DConstants("", "", start, laws)
    published = cells["published_sd"].to_numpy()
    points = as_points(pl.concat([points_of(cells, fit)] * (1 + len(BOUNDS))), setup)
    low, high = np.array(list(BOUNDS.values())).T

    @lru_cache(maxsize=2)
    def tried(of: bytes) -> tuple[Floats, Floats]:
        """Errors, and their slopes by differences to one side: in one evaluation."""
        values = np.frombuffer(of)
        step = np.sqrt(np.finfo(float).eps) * np.maximum(1.0, np.abs(values))
        step = np.where(values + step > high, -step, step)
        beside = values[:, None] + np.hstack([np.zeros((values.size, 1)), np.diag(step)])
        told = dict(zip(BOUNDS, np.repeat(beside, published.size, axis=1), strict=True))
        errors = evaluate(replace(points, **told)).phi_sd.reshape(-1, published.size) / published - 1.0
        return errors[0], (errors[1:] - errors[0]).T / step

    begin = [getattr(start, name) for name in BOUNDS]
    found = least_squares(
        lambda x: tried(x.tobytes())[0],
        begin,
        lambda x: tried(x.tobytes())[1],
        bounds=(low, high),
        x_scale="jac",
        xtol=1e-12,
    )
    values = {name: float(value) for name, value in zip(BOUNDS, found.x, strict=True)}
    return replace(start, **values), float((found.fun**2).mean())  # type: ignore[arg-type]

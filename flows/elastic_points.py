"""Points of ELMoE-3D's model as the command line asks for them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flows.grid import load_hardware
from flows.systems.elmoe3d.settings import settings
from hw.elastic_constants import ElasticFit, ModelLaw, load
from replay.elastic.cells import Cell, cells
from replay.elastic.energy import joules_per_token, prices_of
from replay.elastic.points import SCHEMES, Compute, Point, Points
from replay.elastic.runs import ours
from replay.elastic.shape import STATIC_FORMAT, drafter_of, machine_of, shape_of
from replay.elastic.timing import Outcome
from warehouse import models
from warehouse.load import claims


def asked_points(
    model: str,
    hardware: str,
    schemes: str,
    batches: str,
    alpha: float | None,
    accepted: float | None,
    context: int,
    hit_model: str,
    expert_format: str | None,
    beta: float | None,
    exponent: float | None,
    head_gb: float | None,
    nodes: str | None,
    fit: str,
) -> list[Point]:
    """Scheme by scheme, batch by batch. Raises ValueError naming the option that is missing or impossible."""
    study, found, constants = settings(), models.load(model), load(fit)
    formats = {m.name: m.expert_format for m in study.models}
    law = _law(constants, found.name, beta, exponent, head_gb)
    sizes = _numbers("--batch", batches)
    verified = _numbers("--nodes", nodes) if nodes else []
    if verified and len(verified) != 2:
        raise ValueError(f"--nodes {nodes!r}: give two numbers, nodes verified per round and drafted per step, such as 16,3")
    table = cells(claims().to_pylist())
    return [
        Point(
            shape=shape_of(found.name, found.geometry, expert_format or formats.get(found.name, STATIC_FORMAT)),
            machine=machine_of(load_hardware(hardware)),
            law=law,
            speculation=constants.speculation,
            scheme=scheme,
            batch=size,
            alpha=alpha if alpha is not None or accepted is not None else _published(table, found.name, hardware, scheme, size),
            accepted_len=accepted,
            context_tokens=context,
            hit_model=hit_model,
            drafter=drafter_of(models.load(study.drafter).geometry),
            compute=Compute(verify_nodes=verified[0], draft_nodes=verified[1]) if verified else None,
        )
        for scheme in map(_scheme, schemes.split(","))
        for size in sizes
    ]


def joules(hardware: str, points: Points, found: Outcome) -> dict[str, NDArray[np.float64]]:
    """Energy per token in either mode, at the machine file's values."""
    unknown = settings().platforms
    prices = prices_of(load_hardware(hardware), unknown.near_pj_per_bit.sourced, unknown.pool_write_frac.sourced)
    runs = {"AR J per token": ours(points, found, "ar"), "SD J per token": ours(points, found, "sd")}
    return {name: np.sum(list(joules_per_token(run, prices).values()), axis=0) for name, run in runs.items()}


def _scheme(name: str) -> str:
    return next((known for known in SCHEMES if known.lower() == name.strip().lower()), name.strip())


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} {text!r}: give numbers with commas between them") from None


def _law(fit: ElasticFit, model: str, beta: float | None, exponent: float | None, head_gb: float | None) -> ModelLaw:
    """What is given, else what is fitted."""
    fitted = fit.laws.get(model)
    if fitted is None and (beta is None or exponent is None):
        raise ValueError(f"no law is fitted for {model}: give --beta and --exponent, or one of {', '.join(fit.laws)}")
    return ModelLaw(
        beta=beta if beta is not None or fitted is None else fitted.beta,  # type: ignore[arg-type]
        exponent=exponent if exponent is not None or fitted is None else fitted.exponent,  # type: ignore[arg-type]
        head_bytes=1e9 * head_gb if head_gb is not None else (fitted.head_bytes if fitted else 0.0),
    )


def _published(table: list[Cell], model: str, hardware: str, scheme: str, batch: float) -> float:
    """The paper's acceptance at the largest of its batches that is not above this one. Raises ValueError where it has none."""
    of_size = {gb for gb, name in settings().machines.items() if name == hardware}
    mine = [cell for cell in table if (cell.model, cell.scheme) == (model, scheme) and cell.hb_gb in of_size]
    known = {cell.batch: cell.alpha for cell in mine if cell.batch <= batch}
    if not known:
        raise ValueError(f"the acceptance of {scheme} with {model} on {hardware} is unknown: give --alpha or --accepted")
    return known[max(known)]

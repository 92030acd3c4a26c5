"""Points of ELMoE-3D's model as the command line asks for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.flows.grid import load_hardware
from tokentape.flows.systems.elmoe3d.settings import Settings
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants, ModelLaw, load
from tokentape.replay.elmoe3d.cells import cells
from tokentape.replay.elmoe3d.energy import joules_per_token, prices_of
from tokentape.replay.elmoe3d.points import SCHEMES, Compute, Point, Points
from tokentape.replay.elmoe3d.runs import ours
from tokentape.replay.elmoe3d.shape import STATIC_FORMAT, drafter_of, machine_of, shape_of
from tokentape.replay.elmoe3d.timing import Outcome
from tokentape.warehouse import models
from tokentape.warehouse.load import claims


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line asks for; scheme, batch and nodes are lists with commas, None is the paper's or the fit's."""

    model: str
    hardware: str
    scheme: str
    batch: str
    context: int
    hit_model: str
    accepted_form: str
    fit: str
    alpha: float | None = None
    accepted: float | None = None
    expert_format: str | None = None
    beta: float | None = None
    exponent: float | None = None
    head_gb: float | None = None
    nodes: str | None = None

    def points(self) -> list[Point]:
        """Scheme by scheme, batch by batch. Raises ValueError naming the option that is missing or impossible."""
        study, found, constants = Settings.shipped(), models.load(self.model), load(self.fit).constants
        formats = {m.name: m.expert_format for m in study.models}
        expert_format = self.expert_format or formats.get(found.name, STATIC_FORMAT)
        law, machine = self._law(constants, found.name), machine_of(load_hardware(self.hardware))
        shape, drafter = shape_of(found.name, found.geometry, expert_format), drafter_of(models.load(study.drafter).geometry)
        is_given = self.alpha is not None or self.accepted is not None
        return [
            Point(
                shape=shape,
                machine=machine,
                law=law,
                speculation=constants.speculation,
                scheme=scheme,
                batch=batch,
                alpha=self.alpha if is_given else _published(found.name, self.hardware, scheme, batch),
                accepted_len=self.accepted,
                accepted_form=self.accepted_form,
                context_tokens=self.context,
                hit_model=self.hit_model,
                drafter=drafter,
                compute=self._compute(),
            )
            for scheme in map(_scheme, self.scheme.split(","))
            for batch in _numbers("--batch", self.batch)
        ]

    def _compute(self) -> Compute | None:
        if self.nodes is None:
            return None
        found = _numbers("--nodes", self.nodes)
        if len(found) != 2 or min(found) <= 0.0:
            raise ValueError(f"--nodes {self.nodes!r}: give two numbers, verified per round and drafted per step, such as 16,3")
        return Compute(verify_nodes=found[0], draft_nodes=found[1])

    def _law(self, fit: ELMoE3DConstants, model: str) -> ModelLaw:
        """What is given, else what is fitted."""
        fitted = fit.laws.get(model)
        beta = self.beta if self.beta is not None or fitted is None else fitted.beta
        exponent = self.exponent if self.exponent is not None or fitted is None else fitted.exponent
        if beta is None or exponent is None:
            raise ValueError(f"no law is fitted for {model}: give --beta and --exponent, or one of {', '.join(fit.laws)}")
        fitted_bytes = fitted.head_bytes if fitted else 0.0
        return ModelLaw(beta=beta, exponent=exponent, head_bytes=fitted_bytes if self.head_gb is None else 1e9 * self.head_gb)


def joules(hardware: str, points: Points, found: Outcome) -> dict[str, NDArray[np.float64]]:
    """Energy per token in either mode, at the machine file's values."""
    unknown = Settings.shipped().platforms
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


def _published(model: str, hardware: str, scheme: str, batch: float) -> float:
    """The paper's acceptance at the largest of its batches that is not above this one. Raises ValueError where it has none."""
    sizes = {gb for gb, name in Settings.shipped().machines.items() if name == hardware}
    table = [cell for cell in cells(claims().to_pylist()) if cell.hb_gb in sizes and cell.batch <= batch]
    known = {cell.batch: cell.alpha for cell in table if (cell.model, cell.scheme) == (model, scheme)}
    if not known:
        raise ValueError(f"the acceptance of {scheme} with {model} on {hardware} is unknown: give --alpha or --accepted")
    return known[max(known)]

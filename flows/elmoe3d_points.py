"""Points of ELMoE-3D's model as the command line asks for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.flows.grid import load_hardware
from tokentape.flows.systems.elmoe3d.settings import Settings
from tokentape.hw import profile as profiles
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants, ModelLaw, load
from tokentape.hw.profile import PHYSICAL
from tokentape.replay.elmoe3d.cells import cells, without_windows
from tokentape.replay.elmoe3d.points import SCHEMES, STATIC_FORMAT, Compute, Point, Points
from tokentape.replay.elmoe3d.runs import Mode, ours
from tokentape.replay.elmoe3d.timing import PAPER, Outcome
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
    profile: str | None = None

    def points(self) -> list[Point]:
        """Scheme by scheme, batch by batch. Raises ValueError naming the option that is missing or impossible."""
        study, found, constants = Settings.shipped(), models.load(self.model), load(self.fit).constants
        formats = {m.name: m.expert_format for m in study.models}
        expert_format = self.expert_format or formats.get(found.name, STATIC_FORMAT)
        law, machine = self._law(constants, found.name), load_hardware(self.hardware)
        geometry = without_windows(found.geometry) if self.is_papers else found.geometry
        drafter = models.load(study.drafter).geometry
        is_given = self.alpha is not None or self.accepted is not None
        return [
            Point(
                model=found.name,
                geometry=geometry,
                expert_format=expert_format,
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
                compute=self._compute(constants.speculation.n_draft_steps),
            )
            for scheme in map(_scheme, self.scheme.split(","))
            for batch in _numbers("--batch", self.batch)
        ]

    @property
    def is_papers(self) -> bool:
        """Counted as the paper's Table 3 is: no windows, and operations of drafts and verification only where nodes are told."""
        return profiles.load(self.profile or PHYSICAL).name == PAPER

    def _compute(self, depth: int) -> Compute | None:
        """Nodes that are told, else those of a chain of drafts, the fewest that a round can have."""
        if self.nodes is None:
            return None if self.is_papers else Compute(verify_nodes=depth + 1.0, draft_nodes=1.0)
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


def joules(points: Points, found: Outcome, profile: str) -> dict[str, NDArray[np.float64]]:
    """Nominal energy per token in either mode, of an outcome with joules."""
    written, costs = Settings.shipped().platforms.pool_write_frac, profiles.load(profile)
    modes: dict[str, Mode] = {"AR J per token": "ar", "SD J per token": "sd"}
    runs = {name: ours(points, found, mode, costs, written) for name, mode in modes.items()}
    return {name: np.asarray(sum(part[0] for part in run.joules_per_token.values())) for name, run in runs.items()}


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

"""Points of ELMoE-3D's model as the command line asks for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.flows.grid import load_hardware
from tokentape.flows.systems.elmoe3d.settings import Settings
from tokentape.hw import profile as profiles
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants, ModelLaw, load
from tokentape.hw.profile import PHYSICAL
from tokentape.replay.elmoe3d.fit import cells
from tokentape.replay.elmoe3d.points import SCHEMES, STATIC_FORMAT, Points, Setup, points_of
from tokentape.replay.elmoe3d.runs import ALL_THAT_MAY, Mode, ours
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
    nodes: str | None = None
    profile: str | None = None

    def points(self) -> tuple[pl.DataFrame, Setup]:
        """Scheme by scheme, batch by batch. Raises ValueError naming the option that is missing or impossible."""
        study, found, constants = Settings.shipped(), models.load(self.model), load(self.fit).constants
        formats = {m.name: m.expert_format for m in study.models}
        geometry = found.geometry.without_windows() if self.is_papers else found.geometry
        expert_format, drafter = self.expert_format or formats.get(found.name, STATIC_FORMAT), models.load(study.drafter).geometry
        own = replace(constants, laws={found.name: self._law(constants, found.name)})
        setup = Setup({found.name: (geometry, expert_format)}, {self.hardware: load_hardware(self.hardware)}, drafter)
        names, known = map(str.strip, self.scheme.split(",")), {name.lower(): name for name in SCHEMES}
        asked = list(product((known.get(name.lower(), name) for name in names), _numbers("--batch", self.batch)))
        is_given = self.alpha is not None or self.accepted is not None
        alphas = [self.alpha if is_given else _published(found.name, self.hardware, *one) for one in asked]
        table = pl.DataFrame(asked, schema=["scheme", "batch"], orient="row").with_columns(
            pl.Series("alpha", alphas), model=pl.lit(found.name), machine=pl.lit(self.hardware)
        )
        told = self._nodes(constants.speculation.n_draft_steps) | {"accepted_len": self.accepted, "context_tokens": self.context}
        return points_of(table, own, accepted_form=self.accepted_form, hit_model=self.hit_model, **told), setup

    @property
    def is_papers(self) -> bool:
        """Counted as the paper's Table 3 is: no windows, and operations of drafts and verification only where nodes are told."""
        return profiles.load(self.profile or PHYSICAL).name == PAPER

    def _nodes(self, depth: int) -> dict[str, Any]:
        """Verified and drafted: those that are told, else of a chain of drafts, the fewest that a round can have."""
        if self.nodes is None:
            return {} if self.is_papers else {"verify_nodes": depth + 1.0, "draft_nodes": 1.0}
        found = _numbers("--nodes", self.nodes)
        if len(found) != 2 or min(found) <= 0.0:
            raise ValueError(f"--nodes {self.nodes!r}: give two numbers, verified per round and drafted per step, such as 16,3")
        return {"verify_nodes": found[0], "draft_nodes": found[1]}

    def _law(self, fit: ELMoE3DConstants, model: str) -> ModelLaw:
        """What is given, else what is fitted."""
        fitted = fit.laws.get(model)
        beta = self.beta if self.beta is not None or fitted is None else fitted.beta
        exponent = self.exponent if self.exponent is not None or fitted is None else fitted.exponent
        if beta is None or exponent is None:
            raise ValueError(f"no law is fitted for {model}: give --beta and --exponent, or one of {', '.join(fit.laws)}")
        return ModelLaw(beta=beta, exponent=exponent, own_table=fitted is not None and fitted.own_table)


def joules(points: Points, found: Outcome, profile: str) -> dict[str, NDArray[np.float64]]:
    """Nominal energy per token in either mode, of an outcome with joules; all that may enter the pool does."""
    costs = profiles.load(profile)
    modes: dict[str, Mode] = {"AR J per token": "ar", "SD J per token": "sd"}
    runs = {name: ours(points, found, mode, costs, ALL_THAT_MAY) for name, mode in modes.items()}
    return {name: run.joules_per_token.sum(axis=0)[0] for name, run in runs.items()}


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} {text!r}: give numbers with commas between them") from None


def _published(model: str, hardware: str, scheme: str, batch: float) -> float:
    """The paper's acceptance at the largest of its batches that is not above this one. Raises ValueError where it has none."""
    sizes = {gb for gb, name in Settings.shipped().machines.items() if name == hardware}
    of = pl.col("hb_gb").is_in(sizes) & (pl.col("batch") <= batch) & (pl.col("model") == model) & (pl.col("scheme") == scheme)
    known = cells(claims().to_pylist()).filter(of).sort("batch")["alpha"]
    if known.is_empty():
        raise ValueError(f"the acceptance of {scheme} with {model} on {hardware} is unknown: give --alpha or --accepted")
    return float(known[-1])

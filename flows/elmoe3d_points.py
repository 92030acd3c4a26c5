"""Points of ELMoE-3D's model as the command line asks for them."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import polars as pl

from tokentape.flows.grid import load_hardware
from tokentape.flows.systems.elmoe3d.settings import Settings
from tokentape.hw import profile as profiles
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants, ModelLaw, load
from tokentape.replay.elmoe3d.fit import cells
from tokentape.replay.elmoe3d.points import SCHEMES, STATIC_FORMAT, Setup, points_of
from tokentape.replay.elmoe3d.timing import PAPER
from tokentape.warehouse import models
from tokentape.warehouse.load import claims


def points(of: SimpleNamespace) -> tuple[pl.DataFrame, Setup]:
    """Scheme by scheme, batch by batch. of: options of `step elmoe3d`; scheme, batch and nodes are lists with commas, None is the
    paper's or the fit's. Raises ValueError naming the option that is missing or impossible."""
    study, found, constants = Settings.shipped(), models.load(of.model), load(of.fit).constants
    # Counted as the paper's Table 3 is: no windows, and operations of drafts and verification only where nodes are told.
    is_papers = profiles.load(of.profile).name == PAPER
    formats = {m.name: m.expert_format for m in study.models}
    geometry = found.geometry.without_windows() if is_papers else found.geometry
    expert_format, drafter = of.expert_format or formats.get(found.name, STATIC_FORMAT), models.load(study.drafter).geometry
    own = replace(constants, laws={found.name: _law(of, constants, found.name)})
    setup = Setup({found.name: (geometry, expert_format)}, {of.hardware: load_hardware(of.hardware)}, drafter)
    names, known = map(str.strip, of.scheme.split(",")), {name.lower(): name for name in SCHEMES}
    asked = list(product((known.get(name.lower(), name) for name in names), _numbers("--batch", of.batch)))
    is_given = of.alpha is not None or of.accepted is not None
    alphas = [of.alpha if is_given else _published(found.name, of.hardware, *one) for one in asked]
    table = pl.DataFrame(asked, schema=["scheme", "batch"], orient="row").with_columns(
        pl.Series("alpha", alphas), model=pl.lit(found.name), machine=pl.lit(of.hardware)
    )
    chain = {} if is_papers else {"verify_nodes": constants.speculation.n_draft_steps + 1.0, "draft_nodes": 1.0}
    told = (chain if of.nodes is None else _nodes(of.nodes)) | {"accepted_len": of.accepted, "context_tokens": of.context}
    return points_of(table, own, accepted_form=of.accepted_form, hit_model=of.hit_model, **told), setup


def _nodes(text: str) -> dict[str, Any]:
    """Verified and drafted, as told; else they are those of a chain of drafts, the fewest that a round can have."""
    found = _numbers("--nodes", text)
    if len(found) != 2 or min(found) <= 0.0:
        raise ValueError(f"--nodes {text!r}: give two numbers, verified per round and drafted per step, such as 16,3")
    return {"verify_nodes": found[0], "draft_nodes": found[1]}


def _law(of: SimpleNamespace, fit: ELMoE3DConstants, model: str) -> ModelLaw:
    """What is given, else what is fitted; che goes by the exponent alone."""
    fitted, unread = fit.laws.get(model), 1.0 if of.hit_model == "che" else None
    beta = of.beta if of.beta is not None else unread if fitted is None else fitted.beta
    exponent = of.exponent if of.exponent is not None or fitted is None else fitted.exponent
    if beta is None or exponent is None:
        asked = "--exponent" if unread else "--beta and --exponent"
        raise ValueError(f"no law is fitted for {model}: give {asked}, or one of {', '.join(fit.laws)}")
    return ModelLaw(beta=beta, exponent=exponent, own_table=fitted is not None and fitted.own_table)


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

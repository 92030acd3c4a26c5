"""What is drawn for which model: generator parameters with their sources, fits, score rules. The numbers are in profiles.toml."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tokentape.capture.synthetic import context, tabled
from tokentape.capture.synthetic.generator import FORMULA, Generator, RouterLogits
from tokentape.capture.synthetic.routes import Length
from tokentape.warehouse.geometry import Geometry

_SHIPPED = tomllib.loads((Path(__file__).parent / "profiles.toml").read_text(encoding="utf-8"))
FITS: dict[str, dict[str, Any]] = _SHIPPED["fits"]  # of the models that have one: sd_b, the claim it was fitted to, the shape
CONTEXT_FIT: dict[str, Any] = _SHIPPED["context_fit"]  # what the similarity of prompt and decode was set to
ROUTINGS = ("popular", "context", "table")
CHOSEN = "softmax over the chosen logits, whatever the model: specification 3 of CXL GPU-NDP"
ANCHOR = "LRU per layer over half of the layer's experts, decoded tokens after the prompt"


@dataclass(frozen=True)
class Profile:
    """How a model's requests are drawn. statistics: where every parameter is from, as the manifest states it."""

    generator: RouterLogits
    score_rule: str
    score_params: dict[str, Any]
    statistics: dict[str, Any]


def calibration() -> tuple[Sequence[int], Length]:
    """The seeds and the length of requests that the fits are made on."""
    setup = _SHIPPED["calibration"]
    return setup["seeds"], Length(setup["n_prompt"], setup["n_output"])


def default_generator() -> Generator:
    return Generator(**{name: number["value"] for name, number in _SHIPPED["generator"].items()})


def profile(name: str, geometry: Geometry, router: Mapping[str, Any] | None = None) -> Profile:
    """The profile of a shipped model, or of any geometry under a name. A fit counts only for the shape it was made for.

    router: parameters of the score rule that the model's own config has. Raises ValueError for those that no router can have.
    """
    generator, sources, fit = default_generator(), _sources("generator"), FITS.get(name.lower())
    if fit is None or fit["shape"] != _shape(geometry):
        note = f"{name} has no fit: the generator's defaults, not fitted to any measurement"
        calibrated: dict[str, Any] = {"is_calibrated": False, "note": note}
    else:
        generator, sources["sd_b"] = replace(generator, sd_b=fit["sd_b"]), f"fitted to claim {fit['claim_id']}"
        calibrated = {"is_calibrated": True, "fit": {"anchor": ANCHOR, **fit, **_SHIPPED["calibration"]}}
    return _profile(generator, {"generator": FORMULA, "sources": sources, **calibrated}, *_score_rule(geometry, router or {}))


def of_routing(routing: str, name: str, geometry: Geometry, counts: str | None, router: Mapping[str, Any]) -> Profile:
    """The profile of a model under one of ROUTINGS; counts: the file of `table`. Raises ValueError for anything else."""
    if routing not in ROUTINGS:
        raise ValueError(f"routing {routing!r} is unknown; choose {', '.join(ROUTINGS)}")
    if (routing == "table") != (counts is not None):
        raise ValueError("routing table is drawn from --counts FILE, and no other routing is: give both or neither")
    if counts is not None:
        return table_profile(counts, geometry)
    return context_profile(name, geometry) if routing == "context" else profile(name, geometry, router)


def context_generator() -> context.Context:
    """Routing whose prompts foretell their answers, as CXL GPU-NDP reports of Mixtral-8x7B."""
    return context.Context(**{name: number["value"] for name, number in _SHIPPED["context"].items()})


def context_profile(name: str, geometry: Geometry) -> Profile:
    """The same for any geometry; calibrated only for the shape that it was set for."""
    if CONTEXT_FIT["shape"] == _shape(geometry):
        calibrated: dict[str, Any] = {"is_calibrated": True, "fit": CONTEXT_FIT}
    else:
        note = f"{name}: prompt and decode are alike as set for Mixtral-8x7B's shape; nothing is known of this one"
        calibrated = {"is_calibrated": False, "note": note}
    told = {"generator": context.FORMULA, "sources": _sources("context"), **calibrated}
    return _profile(context_generator(), told, "softmax_topk", {"top_k": geometry.top_k}, CHOSEN)


def table_profile(source: str, geometry: Geometry) -> Profile:
    """Routing by published counts (tabled.py). Raises as tabled.load."""
    note = "drawn from counts per expert: popularity as counted, nothing that a prompt foretells beyond its domain"
    told = {"generator": tabled.FORMULA, "sources": {"counts": source}, "is_calibrated": False, "note": note}
    return _profile(tabled.load(source, geometry), told, "softmax_topk", {"top_k": geometry.top_k}, CHOSEN)


def _profile(generator: Any, told: dict[str, Any], rule: str, params: dict[str, Any], rule_source: str) -> Profile:
    return Profile(generator, rule, params, {**told, "parameters": asdict(generator), "score_rule_source": rule_source})


def _sources(table: str) -> dict[str, str]:
    return {name: number["source"] for name, number in _SHIPPED[table].items()}


def _shape(geometry: Geometry) -> dict[str, int]:
    return {"n_moe_layers": len(geometry.moe_layers), "n_experts": geometry.n_experts, "top_k": geometry.top_k}


def _score_rule(geometry: Geometry, router: Mapping[str, Any]) -> tuple[str, dict[str, Any], str]:
    """Rule, parameters as a capture of the model would record them, and where they are from."""
    known = _SHIPPED["score_rules"].get(geometry.architecture)
    if known is None:
        source = f"assumed: {geometry.architecture} is not listed; softmax over all experts, not renormalised"
        return "softmax", {"top_k": geometry.top_k, "norm_topk_prob": False}, source
    stated = {name: router[name] for name, usual in known["params"].items() if router.get(name) not in (None, usual)}
    params, source = {"top_k": geometry.top_k, **known.get("fixed", {}), **known["params"], **stated}, known["source"]
    for name, value in stated.items():
        kinds = (int, float) if name == "routed_scaling_factor" else (type(known["params"][name]),)
        if type(value) not in kinds or (kinds[0] is int and not 0 < value < math.inf):
            raise ValueError(f"{name} of the config is {value!r}; give the config.json of a model of {geometry.architecture}")
        source += f"; {name} by its own config"
    groups, best = params.get("n_group", 1), params.get("topk_group", 1)
    if geometry.n_experts % groups or best > groups or geometry.n_experts // groups * best < geometry.top_k:
        raise ValueError(f"n_group={groups}, topk_group={best} of {geometry.n_experts} experts; give the model's own config.json")
    if known.get("has_bias"):
        params["bias"] = {str(layer): [0.0] * geometry.n_experts for layer in geometry.moe_layers}
    return known["rule"], params, source

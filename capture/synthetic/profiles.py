"""What is drawn for which model: generator parameters with their sources, fits, score rules. The numbers are in profiles.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capture.synthetic.generator import FORMULA, Generator
from capture.synthetic.routes import Length
from warehouse.geometry import Geometry

_SHIPPED = tomllib.loads((Path(__file__).parent / "profiles.toml").read_text(encoding="utf-8"))
ANCHOR = "LRU per layer over half of the layer's experts, decoded tokens after the prompt"


@dataclass(frozen=True)
class Profile:
    """How a model's requests are drawn. statistics: where every parameter is from, as the manifest states it."""

    generator: Generator
    score_rule: str
    score_params: dict[str, Any]
    statistics: dict[str, Any]


def fitted_models() -> tuple[str, ...]:
    """Names of the models with a fitted sd_b."""
    return tuple(_SHIPPED["fits"])


def fit_of(name: str) -> dict[str, Any]:
    """A model's fit as it ships: sd_b, achieved_lru_miss_frac, anchor_lru_miss_frac, claim_id, shape."""
    return dict(_SHIPPED["fits"][name])


def calibration() -> tuple[Sequence[int], Length]:
    """The seeds and the length of requests that the fits are made on."""
    setup = _SHIPPED["calibration"]
    return setup["seeds"], Length(setup["n_prompt"], setup["n_output"])


def default_generator() -> Generator:
    """The generator of a model without a fit."""
    return Generator(**{name: number["value"] for name, number in _SHIPPED["generator"].items()})


def profile(name: str, geometry: Geometry) -> Profile:
    """The profile of a shipped model, or of any geometry under a name. A fit counts only for the shape it was made for."""
    parameters = asdict(default_generator())
    sources = {key: number["source"] for key, number in _SHIPPED["generator"].items()}
    fit = _SHIPPED["fits"].get(name.lower())
    shape = {"n_moe_layers": len(geometry.moe_layers), "n_experts": geometry.n_experts, "top_k": geometry.top_k}
    if fit is None or fit["shape"] != shape:
        calibrated = {
            "is_calibrated": False,
            "note": f"{name} has no fit: the generator's defaults, not fitted to any measurement",
        }
    else:
        parameters["sd_b"], sources["sd_b"] = fit["sd_b"], f"fitted to claim {fit['claim_id']}"
        calibrated = {"is_calibrated": True, "fit": {"anchor": ANCHOR, **fit, **_SHIPPED["calibration"]}}
    rule, params, rule_source = _score_rule(geometry)
    statistics = {
        "generator": FORMULA,
        "parameters": parameters,
        "sources": sources,
        **calibrated,
        "score_rule_source": rule_source,
    }
    return Profile(Generator(**parameters), rule, params, statistics)


def _score_rule(geometry: Geometry) -> tuple[str, dict[str, Any], str]:
    """Rule, parameters as a capture of the model would record them, and where they are from."""
    known = _SHIPPED["score_rules"].get(geometry.architecture)
    if known is None:
        source = f"assumed: {geometry.architecture} is not listed; softmax over all experts, not renormalised"
        return "softmax", {"top_k": geometry.top_k, "norm_topk_prob": False}, source
    params = {"top_k": geometry.top_k, **known["params"]}
    if known["rule"] == "sigmoid_bias_groups":
        params["bias"] = {str(layer): [0.0] * geometry.n_experts for layer in geometry.moe_layers}
    return known["rule"], params, known["source"]

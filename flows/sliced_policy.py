"""A SliceMoE composition as a person types it: `--param router=cache_prior --param router.strength=0.2 --param pair=MAT42`.

A part is chosen by its name, a field of it by `part.field`. What is not given has the composition's default.
Buddy's similarity is given as the tape it is taken from: `--param router=buddy --param router.similarity=TRACE`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from tokentape.flows.names import unknown
from tokentape.flows.own_policy import Value, convert
from tokentape.flows.scored import similarity
from tokentape.policies.matryoshka import MAT
from tokentape.policies.sliced import BUDGETS, PRECISIONS, ROUTERS, WARMUPS, SlicedCache, SliceMoE
from tokentape.warehouse.tape import Store

if TYPE_CHECKING:
    from tokentape.capture.evaluate_policy import PolicyRun

NAME = "slicemoe"
PARTS: dict[str, dict[str, type]] = {"router": ROUTERS, "precision": PRECISIONS, "budget": BUDGETS, "warmup": WARMUPS}
DEFAULTS = {"router": "lru", "precision": "dbsc", "budget": "none", "warmup": "pcw"}


def compose(params: Mapping[str, Value], store: Store | None = None) -> SliceMoE:
    """The policy; store: of the tape that router.similarity names.

    Raises ValueError with the nearest name for an unknown part or field, and where parts do not go together.

    Keys: router, precision, budget, warmup (names); `part.field` for their fields; pair (MAT84), lsb_policy,
    skip_lsb_when_over_budget of the cache; free_steps.
    """
    left: dict[str, Any] = dict(params)
    if left.get("router") == "buddy":
        left["router.similarity"] = _similarity(left, store)
    parts = {part: _part(part, names, left) for part, names in PARTS.items()}
    pair = MAT.parse(str(left.pop("pair", "MAT84")))
    of_cache = _fields(SlicedCache, {k: left.pop(k) for k in ("lsb_policy", "skip_lsb_when_over_budget") if k in left}, "cache")
    cache = SlicedCache(bits_high=pair.high, bits_low=pair.low, **of_cache)
    free = {"free_steps": int(convert("free_steps", left.pop("free_steps"), int))} if "free_steps" in left else {}
    if left:
        fields = (f"{part}.{f.name}" for part, made in parts.items() for f in dataclasses.fields(made))
        raise unknown(f"parameter of {NAME}:", next(iter(left)), (*PARTS, "pair", "free_steps", "lsb_policy", *fields))
    return SliceMoE(cache=cache, **parts, **free)


def _similarity(params: Mapping[str, Any], store: Store | None) -> NDArray[np.float32]:
    if "router.similarity" not in params:
        raise ValueError("router buddy needs a tape that says which experts are alike; give --param router.similarity=TRACE")
    return similarity(store or Store(), str(params["router.similarity"]))


def inside_model(
    params: Mapping[str, Value], cache_frac: float, scheme: str = "amat", store: Store | None = None, **windows: int
) -> PolicyRun:
    """How the policy is tried in a live model (capture/evaluate_policy.py), with all that decides it as table `quality` tells it.

    scheme: of the low-bit weights, `none` for weights as loaded. windows: fields of PolicyRun.
    """
    from tokentape.capture.evaluate_policy import PolicyRun  # needs torch, which `compose` does not

    tried = {**params, "cache_frac": cache_frac, "scheme": scheme}
    return PolicyRun(compose(params, store), NAME, tried, cache_frac, None if scheme == "none" else scheme, **windows)


def _part(part: str, names: Mapping[str, type], left: dict[str, Any]) -> Any:
    """The part that `left` names, with its fields; takes both out of `left`."""
    name = str(left.pop(part, DEFAULTS[part]))
    if name not in names:
        raise unknown(part, name, names)
    own = {key.partition(".")[2]: left.pop(key) for key in list(left) if key.startswith(f"{part}.")}
    return names[name](**_fields(names[name], own, f"{part} {name}"))


def _fields(kind: type, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    hints = get_type_hints(kind)
    known = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    for name in given:
        if name not in known:
            raise unknown(f"field of {where}:", name, known)
    return {
        name: value if isinstance(value, np.ndarray) else convert(f"{where}: {name}", value, known[name])
        for name, value in given.items()
    }

"""Text into policies and back: `lru`, `my.py:MyCache` or an entry point, with parameters such as `profile_frac=0.2`.

Parameters are the fields of the dataclass. Where a policy is composed, a part is chosen by its name and has its own as
`part.field` (`router=cache_prior`, `router.strength=0.2`), and a part of one kind lends its fields (`lsb_policy`).
"""

import dataclasses
import types
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from tokentape.policies import registry
from tokentape.policies.kernels import scalar_of
from tokentape.policies.names import refuse_twice, refuse_unknown, unknown

Value = str | int | float | bool | None
NAMES = "names"  # metadata of a field that is a part: name -> class
_IN_ORDER: tuple[type, ...] = (types.NoneType, bool, int, float, str)  # which of a union is tried first
_WORDS = {types.NoneType: "none", bool: "true or false", int: "a whole number", float: "a number"}


def resolve(kind: str, name: str, params: Mapping[str, Any] | None = None) -> Any:
    """The policy of a kind (registry.KINDS) with its parameters: text or typed values, and arrays as they are.

    Raises ValueError with the nearest name for an unknown policy, part or parameter, for a value that does not fit or is missing,
    and for parameters that do not go together.
    """
    found, left, known = registry.find(kind, name), dict(params or {}), list[str]()
    make = _plan(found, name, left, known) if isinstance(found, type) else lambda: found
    if left:
        raise unknown(f"parameter of {name}:", str(next(iter(left))), known)
    with registry.blamed(kind, name):
        return registry.check(kind, name, make())


def told(kind: str, policy: Any) -> tuple[str, dict[str, Any]]:
    """The name and parameters that `resolve` makes the same policy of, every parameter with its value."""
    name = registry.name_of(kind, policy)
    return name, {} if registry.shipped(kind).get(name) is policy else _params_of(policy)


def parse(texts: list[str] | None) -> dict[str, str]:
    """`["a=1", "b=x"]` as a dict of texts."""
    pairs = [text.partition("=") for text in texts or []]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise ValueError(f"--param {name + equals + value!r} is not NAME=VALUE")
    refuse_twice("--param", (name for name, *_ in pairs))
    return {name: value for name, _, value in pairs}


def convert(where: str, value: Any, wanted: Any) -> Any:
    """`value` as a field's type; of a union, the first that fits, text last. Raises ValueError naming `where` it does not."""
    kinds = get_args(wanted) if isinstance(wanted, types.UnionType) or get_origin(wanted) is Union else (wanted,)
    kinds = tuple(sorted(kinds, key=lambda kind: _IN_ORDER.index(kind) if kind in _IN_ORDER else -1))
    for kind in kinds:
        if isinstance(value, np.ndarray) and scalar_of(kind):
            return value
        if kind is types.NoneType and str(value).lower() == "none":
            return None
        if kind is bool and str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        if kind is str and value is not None:
            return str(value)
        if kind in (int, float) and value is not None and not isinstance(value, bool):
            try:
                made = kind(value)
            except (TypeError, ValueError, OverflowError):
                continue
            if kind is int and float not in kinds and not -(2**63) <= made < 2**63:
                raise ValueError(f"{where}={value} is no number of 64 bits")
            if made == value or (made == made and isinstance(value, str)):  # nan is no number that a person gives
                return made
    if not any(kind in _IN_ORDER or scalar_of(kind) for kind in kinds):
        return value  # a type of the policy's own
    given = f"array of {value.shape}" if isinstance(value, np.ndarray) else value
    named = ("an array, which its caller gives" if scalar_of(kind) else f"of type {kind.__name__}" for kind in kinds)
    raise ValueError(f"{where}={given} is not {' or '.join(map(_WORDS.get, kinds, named))}")


_hints = lru_cache(maxsize=256)(get_type_hints)


def _plan(kind: type, where: str, left: dict[str, Any], known: list[str], prefix: str = "") -> Callable[[], Any]:
    """What makes an object of a dataclass of the parameters that are its own, which leave `left`; `known`: all that it has."""
    hints, values, parts, missing = _hints(kind), dict[str, Any](), dict[str, Callable[[], Any]](), list[str]()
    for short, spelt in getattr(kind, "shorthands", {}).items():
        known.append(prefix + short)
        if prefix + short in left:
            left.update((prefix + name, value) for name, value in spelt(str(left.pop(prefix + short))).items())
    for field in dataclasses.fields(kind):
        key, wanted = prefix + field.name, hints[field.name]
        if not field.init:
            continue
        if names := field.metadata.get(NAMES):
            known.append(key)
            chosen = str(left.pop(key)) if key in left else _name_in(names, field.default_factory())  # type: ignore[operator]
            refuse_unknown(field.name, chosen, names)
            parts[field.name] = _plan(names[chosen], where, left, known, f"{key}.")
        elif dataclasses.is_dataclass(wanted):
            parts[field.name] = _plan(wanted, where, left, known, prefix)  # type: ignore[arg-type]
        else:
            known.append(key)
            if key in left:
                values[field.name] = convert(f"{where}: {key}", left.pop(key), wanted)
            elif field.default is field.default_factory is dataclasses.MISSING:
                missing.append(key)

    def make() -> Any:
        if missing:
            raise ValueError(f"{where}: parameter {missing[0]} is missing; give it with --param {missing[0]}=VALUE")
        return kind(**values, **{name: part() for name, part in parts.items()})

    return make


def _params_of(policy: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(policy):
        key, value = prefix + field.name, getattr(policy, field.name)
        if names := field.metadata.get(NAMES):
            found |= {key: _name_in(names, value), **_params_of(value, f"{key}.")}
        elif dataclasses.is_dataclass(value):
            found |= _params_of(value, prefix)
        elif field.init:
            found[key] = value
    return found


def _name_in(names: Mapping[str, type], part: Any) -> str:
    return next(name for name, kind in names.items() if type(part) is kind)

"""A KV policy as a person types it: `--policy aerp --param budget=64 --param importance=mean`, or one's own as my.py:MyPolicy.

`kelle` is AERP whose words lose bits between the refreshes of 2DRP. Inside a model, `storage`, `rate` or `intervals`, `resample`
and `bits` say how keys and values are stored.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from tokentape.flows.names import unknown
from tokentape.flows.own_policy import Value, convert, is_path, policy_class
from tokentape.policies.kv import KV_POLICIES, KVPolicy
from tokentape.policies.kv.refresh import BitRates, Intervals

if TYPE_CHECKING:
    from tokentape.capture.kv.evaluate import KVRun

KELLE = "kelle"
NAMES = (KELLE, *KV_POLICIES)
OF_STORAGE = ("storage", "rate", "intervals", "resample", "bits")
OF_WINDOWS = ("prompt_tokens", "decode_tokens")


def is_kv(name: str) -> bool:
    """Whether a policy typed by name is one of these."""
    return name in NAMES


def make(name: str, params: Mapping[str, Value]) -> KVPolicy:
    """The policy. Raises ValueError with the nearest name for an unknown policy or parameter, or a value that does not fit."""
    if is_path(name):
        kind = policy_class(name)
        if not issubclass(kind, KVPolicy):
            raise ValueError(f"{name}: a KV policy is a dataclass derived from policies.kv.KVPolicy (docs/kv.md)")
    elif name in NAMES:
        kind = KV_POLICIES["aerp" if name == KELLE else name]
    else:
        raise unknown("KV policy", name, NAMES)
    hints = get_type_hints(kind)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    values = {}
    for key, value in params.items():
        if key not in fields:
            raise unknown(f"parameter of {name}:", key, fields)
        values[key] = _typed(f"{name}: {key}", value, fields[key])
    made: KVPolicy = kind(**values)
    return made


def _typed(where: str, value: Value, wanted: Any) -> Any:
    """`value` as a field's type; of `int | None` the word none is None, of `int | str` what is no number stays text."""
    if not isinstance(wanted, types.UnionType):
        return convert(where, value, wanted)
    kinds = get_args(wanted)
    if type(None) in kinds and str(value).lower() == "none":
        return None
    if str in kinds and not str(value).lstrip("-").isdigit():
        return str(value)
    return convert(where, value, int)


def inside_model(name: str, params: Mapping[str, Value], n_items: int) -> KVRun:
    """How the policy is tried in a live model (capture/kv/evaluate.py), with all that decides it as table `quality` tells it."""
    from tokentape.capture.kv.evaluate import KVRun  # needs torch

    of_policy = {k: v for k, v in params.items() if k not in (*OF_STORAGE, *OF_WINDOWS)}
    given = {"storage": "int16"} | ({} if "rate" in params else {"intervals": "2drp"}) if name == KELLE else {}
    given |= {k: str(v) for k, v in params.items() if k in OF_STORAGE}
    storage = given.get("storage", "plain")
    if storage in ("plain", "quarot") and {"rate", "intervals", "resample"} & set(params):
        raise ValueError(f"storage {storage} loses no bits: give rate, intervals or resample with storage int16 or fp16")
    windows = {k: convert(k, params[k], int) for k in OF_WINDOWS if k in params}
    policy = make(name, of_policy)
    run = KVRun(
        policy, name, {}, storage, _rates(given), convert("resample", given.get("resample", "false"), bool),
        convert("bits", given.get("bits", "4"), int), n_items=n_items, **windows,
    )  # fmt: skip
    told = dataclasses.asdict(policy) | {
        "storage": storage,
        "prompt_tokens": run.prompt_tokens,
        "decode_tokens": run.decode_tokens,
    }
    return dataclasses.replace(run, parameters=told | {k: v for k, v in given.items() if k != "storage"})


def _rates(given: Mapping[str, str]) -> BitRates:
    """Bit losses from `rate` or `intervals` (2drp, or in us), one for all bits or four by group."""
    if "rate" in given:
        return BitRates(*_by_group("rate", given["rate"]))
    text = given.get("intervals")
    if text is None:
        return BitRates()
    return BitRates.of(intervals_of(text))


def intervals_of(text: str) -> Intervals:
    """From what was typed: 2drp, one interval in us, or four by group. Raises ValueError for anything else."""
    return Intervals() if text == "2drp" else Intervals(*_by_group("intervals", text))


def _by_group(name: str, text: str) -> list[float]:
    parts = [convert(name, part, float) for part in text.split(",")]
    if len(parts) not in (1, 4):
        raise ValueError(f"{name}={text}: give one for all bits, or four: HST-MSB,HST-LSB,LST-MSB,LST-LSB")
    return parts * 4 if len(parts) == 1 else parts

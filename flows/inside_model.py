"""How a policy is tried in a live model, from what was typed: with the windows, storage or tape that it needs beside it.

`pair`, `router.strength`, ... are of slicemoe; `storage`, `rate` or `intervals`, `resample`, `bits` say how a KV policy's keys
and values are stored; `losses`, `method` are of cxl_ndp's replicas; `prompt_tokens` and `decode_tokens` of the windows of text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from tokentape.flows.scored import composed
from tokentape.policies.kv import KELLE
from tokentape.policies.kv.refresh import Intervals
from tokentape.policies.names import unknown
from tokentape.policies.resolve import Value, convert, resolve
from tokentape.policies.slots import System
from tokentape.replay.capacity import bytes_of
from tokentape.warehouse.losses import loss_table
from tokentape.warehouse.tape import Store

if TYPE_CHECKING:
    from tokentape.capture.cxl_ndp.evaluate import CXLNDPRun
    from tokentape.capture.live.system import SystemTried

SLICEMOE, CXL_NDP = "slicemoe", "cxl_ndp"
OF_STORAGE = ("storage", "rate", "intervals", "resample", "bits")
OF_WINDOWS = ("prompt_tokens", "decode_tokens")
OF_REPLICAS = ("losses", "method")
OF_DRAFTS: dict[str, type] = {"draft_depth": int, "draft_width": int, "draft_bits": int, "pool_frac": float}


def sliced_run(
    params: Mapping[str, Value], cache_frac: float, scheme: str = "amat", store: Store | None = None, **windows: Any
) -> SystemTried:
    """slicemoe as a system. scheme: of the low-bit weights, `none` for weights as loaded. store: of the tape that
    router.similarity names."""
    from tokentape.capture.live.system import SystemTried  # needs torch

    if not 0.0 < cache_frac <= 1.0:
        raise ValueError(f"cache {cache_frac} must be a share of the experts' bytes, above 0 and at most 1")
    tried, room = {**params, "cache_frac": cache_frac, "scheme": scheme}, {"residency": {"budget": f"{100.0 * cache_frac:.10f}%"}}
    system = System(SLICEMOE, {"route": composed(params, store)}, room)
    return SystemTried(system, SLICEMOE, tried, bytes_of, scheme=None if scheme == "none" else scheme, **windows)


def kv_run(name: str, params: Mapping[str, Value], n_items: int) -> SystemTried:
    """A KV policy alone; kelle is stored in int16 that leaks between the refreshes of 2DRP, unless told otherwise."""
    from tokentape.capture.live.system import SystemTried  # needs torch

    policy = resolve("kv", name, {k: v for k, v in params.items() if k not in (*OF_STORAGE, *OF_WINDOWS)})
    given = {"storage": "int16"} | ({} if "rate" in params else {"intervals": "2drp"}) if name == KELLE else {}
    given |= {k: str(v) for k, v in params.items() if k in OF_STORAGE}
    storage = given.get("storage", "plain")
    if storage in ("plain", "quarot") and {"rate", "intervals", "resample"} & set(params):
        raise ValueError(f"storage {storage} loses no bits: give rate, intervals or resample with storage int16 or fp16")
    decided = {"kv": policy} | ({"refresh": Intervals.parse(given["intervals"])} if "intervals" in given else {})
    system = System(name, decided, {"kv": {k: v for k, v in given.items() if k != "intervals"}})
    run = SystemTried(system, name, {}, bytes_of, n_items=n_items, **_windows(params))
    told = dataclasses.asdict(policy) | {"storage": storage} | {length: getattr(run, length) for length in OF_WINDOWS}
    return dataclasses.replace(run, parameters=told | given)


def cxl_ndp_run(params: Mapping[str, Value], n_items: int, store: Store | None = None) -> CXLNDPRun:
    """cxl_ndp; hot: half of the experts where it is not given. Raises ValueError where there is no tape of losses."""
    from tokentape.capture.cxl_ndp.evaluate import CXLNDPRun  # needs torch
    from tokentape.capture.cxl_ndp.replicas import ReplicaExperts

    if "losses" not in params:
        raise ValueError(
            f"{CXL_NDP} needs a tape of losses: run `tokentape capture --model MODEL --dataset docs --tables losses`, then give "
            "--param losses=TRACE"
        )
    of_policy = {k: v for k, v in params.items() if k not in (*OF_WINDOWS, *OF_REPLICAS)}
    resolve("system", CXL_NDP, {"hot": 0} | of_policy)  # what is wrong with them, before a tape is read
    tape, method = (store or Store()).open(str(params["losses"])), str(params.get("method", "gptq"))
    losses = loss_table(tape, method)
    policy = resolve("system", CXL_NDP, {"hot": tape.geometry.n_experts // 2} | of_policy)
    experts = cache(lambda loaded: ReplicaExperts(loaded, tape, method))
    return CXLNDPRun(policy, losses, tape.trace_id, method, experts, None, n_items=n_items, **_windows(params))


def system_tried(
    system: System, params: Mapping[str, Value], n_items: int, scheme: str = "amat", store: Store | None = None
) -> SystemTried:
    """A system. params: `draft_depth`, `draft_width`, `draft_bits`, `pool_frac` of a draft slot; `losses` and `method` of a
    precision slot; `prompt_tokens` and `decode_tokens`. Raises ValueError for others."""
    from tokentape.capture.cxl_ndp.replicas import ReplicaExperts  # needs torch
    from tokentape.capture.live.system import SystemTried
    from tokentape.capture.speculation.settings import DraftSettings

    for name in params:
        if name not in (*OF_DRAFTS, *OF_WINDOWS, *OF_REPLICAS):
            raise unknown("parameter of a system inside a model", name, (*OF_DRAFTS, *OF_WINDOWS, *OF_REPLICAS))
    drafting = {name.removeprefix("draft_"): convert(name, params[name], of) for name, of in OF_DRAFTS.items() if name in params}
    told: dict[str, Any] = {slot: text for slot, text in system.told().items() if text != "none"} | dict(params)
    replicas, losses = None, None
    if "losses" in params:
        tape, method = (store or Store()).open(str(params["losses"])), str(params.get("method", "gptq"))
        replicas, losses = cache(lambda loaded: ReplicaExperts(loaded, tape, method)), loss_table(tape, method)
    tried = SystemTried(
        system, system.name, told, bytes_of, DraftSettings(**drafting), None if scheme == "none" else scheme, replicas, losses,
        n_items=n_items, **_windows(params),
    )  # fmt: skip
    lengths = {length: getattr(tried, length) for length in OF_WINDOWS}
    return dataclasses.replace(tried, parameters=told | lengths)


def _windows(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: convert(name, params[name], int) for name in OF_WINDOWS if name in params}

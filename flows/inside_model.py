"""How a policy or a system is tried in a live model, from what was typed: with the windows, storage or tape that it needs.

A policy alone is a system of one slot. `pair`, `router.strength`, ... are of slicemoe; `storage`, `rate` or `intervals`,
`resample`, `bits` say how a KV policy's keys and values are stored; `losses`, `method` are of replicas; `prompt_tokens` and
`decode_tokens` of the windows of text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from tokentape.flows.tapes import composed
from tokentape.policies import registry
from tokentape.policies.names import refuse_unknown
from tokentape.policies.resolve import Value, convert, resolve
from tokentape.policies.slots import System
from tokentape.replay.capacity import bytes_of
from tokentape.warehouse.losses import loss_table
from tokentape.warehouse.tape import Store, Tape

if TYPE_CHECKING:
    from tokentape.capture.cxl_ndp.evaluate import CXLNDPRun
    from tokentape.capture.live.system import SystemTried

SLICEMOE, CXL_NDP, CACHE, SCHEME = "slicemoe", "cxl_ndp", "37.5%", "amat"
OF_WINDOWS = ("prompt_tokens", "decode_tokens")
OF_REPLICAS = ("losses", "method")
OF_DRAFTS: dict[str, type] = {"draft_depth": int, "draft_width": int, "draft_bits": int, "pool_frac": float}


def sums_of_named(model: str, dataset: str, n_items: int, seeds: Sequence[int], of_answers: bool) -> str:
    """Hashes of a model's files, and of what seeds read of a data set: they change under their names. of_answers: items that have
    an answer are asked; else, and of text, windows are cut from all there is."""
    from tokentape.capture import datasets, evaluate, models, plan  # needs torch

    found = datasets.items(dataset, n_items * (max(seeds) + 1))
    if not of_answers or found[0].answer is None:
        found = datasets.items(dataset, evaluate.ALL_DOCUMENTS)
    return f"{models.find(model).fingerprint}/{plan.digest_of(found)}"


def policy_tried(
    name: str, params: Mapping[str, Value], n_items: int | None, store: Store, room: str = CACHE, scheme: str = SCHEME
) -> SystemTried | CXLNDPRun:
    """A policy alone, by the name that a person types. room, scheme: slicemoe's cache as a share of the experts' bytes, and how
    its low-bit weights are made. Raises ValueError naming what is wrong."""
    if name == SLICEMOE:
        share = room.removesuffix("%")
        if share == room or not share.replace(".", "", 1).isdigit():
            raise ValueError(f"--cache {room!r} is not a share of the experts' bytes; write 37.5%")
        return sliced_run(params, float(share) / 100, scheme, store, **_windows({}, n_items))
    if (room, scheme) != (CACHE, SCHEME):
        raise ValueError(f"--cache and --scheme are of {SLICEMOE}; give what {name} takes by --param")
    if name == CXL_NDP:
        return cxl_ndp_run(params, n_items, store)
    registry.find("kv", name, also=(SLICEMOE, CXL_NDP))
    return kv_run(name, params, n_items)


def sliced_run(
    params: Mapping[str, Value], cache_frac: float, scheme: str = SCHEME, store: Store | None = None, **windows: Any
) -> SystemTried:
    """slicemoe as a system. scheme: of the low-bit weights, `none` for weights as loaded. store: of the tape that
    router.similarity names."""
    from tokentape.capture.live.system import SystemTried  # needs torch

    if not 0.0 < cache_frac <= 1.0:
        raise ValueError(f"cache {cache_frac} must be a share of the experts' bytes, above 0 and at most 1")
    tried, room = {**params, "cache_frac": cache_frac, "scheme": scheme}, {"residency": {"budget": f"{100.0 * cache_frac:.10f}%"}}
    system = System(SLICEMOE, {"route": composed(params, store)}, room)
    if isinstance(of := params.get("router.similarity"), str):
        tried["router.similarity"] = (store or Store()).open(of).trace_id
    return SystemTried(system, SLICEMOE, tried, bytes_of, scheme=None if scheme == "none" else scheme, **windows)


def kv_run(name: str, params: Mapping[str, Value], n_items: int | None) -> SystemTried:
    """A KV policy alone."""
    from tokentape.capture.live.system import SystemTried, kv_alone  # needs torch

    system, stored = kv_alone(name, {k: v for k, v in params.items() if k not in OF_WINDOWS})
    told = dataclasses.asdict(system.kv) | stored
    return _with_lengths(SystemTried(system, name, told, bytes_of, **_windows(params, n_items)))


def cxl_ndp_run(params: Mapping[str, Value], n_items: int | None, store: Store) -> CXLNDPRun:
    """cxl_ndp; hot: half of the experts where it is not given. Raises ValueError where there is no tape of losses."""
    from tokentape.capture.cxl_ndp.evaluate import CXLNDPRun  # needs torch

    if "losses" not in params:
        raise ValueError(
            f"{CXL_NDP} needs a tape of losses: run `tokentape capture --model MODEL --dataset docs --tables losses`, then give "
            "--param losses=TRACE"
        )
    of_policy = {k: v for k, v in params.items() if k not in (*OF_WINDOWS, *OF_REPLICAS)}
    resolve("system", CXL_NDP, {"hot": 0} | of_policy)  # what is wrong with them, before a tape is read
    tape, method, losses, replicas = _replicas(params, store)
    policy = resolve("system", CXL_NDP, {"hot": tape.geometry.n_experts // 2} | of_policy)
    return CXLNDPRun(policy, losses, tape.trace_id, method, replicas, None, **_windows(params, n_items))


def system_tried(
    system: System, params: Mapping[str, Value], n_items: int | None, store: Store, scheme: str = SCHEME
) -> SystemTried:
    """A system. params: `draft_depth`, `draft_width`, `draft_bits`, `pool_frac` of a draft slot; `losses` and `method` of a
    precision slot; `prompt_tokens` and `decode_tokens`. Raises ValueError for others."""
    from tokentape.capture.live.system import SystemTried  # needs torch
    from tokentape.capture.speculation.settings import DraftSettings

    for name in params:
        refuse_unknown("parameter of a system inside a model", name, (*OF_DRAFTS, *OF_WINDOWS, *OF_REPLICAS))
        if getattr(system, slot := "draft" if name in OF_DRAFTS else "precision") is None and name not in OF_WINDOWS:
            raise ValueError(f"--param {name} has no effect: system {system.name} has no policy in slot {slot}; leave it out")
    if scheme != SCHEME and system.route is None:
        raise ValueError(f"--scheme has no effect: system {system.name} has no policy in slot route; leave it out")
    drafting = {name.removeprefix("draft_"): convert(name, params[name], of) for name, of in OF_DRAFTS.items() if name in params}
    told: dict[str, Any] = {slot: text for slot, text in system.told().items() if text != "none"} | dict(params)
    told |= {} if scheme == SCHEME else {"scheme": scheme}
    losses = replicas = None
    if "losses" in params:
        tape, _, losses, replicas = _replicas(params, store)
        told["losses"] = tape.trace_id
    how = (DraftSettings(**drafting), None if scheme == "none" else scheme, replicas, losses)
    return _with_lengths(SystemTried(system, system.name, told, bytes_of, *how, **_windows(params, n_items)))


def _replicas(params: Mapping[str, Value], store: Store) -> tuple[Tape, str, Any, Callable[..., Any]]:
    """The tape of losses, the method of replicas, the losses, and what makes the replicas, once for a model."""
    from tokentape.capture.cxl_ndp.replicas import ReplicaExperts  # needs torch

    tape, method = store.open(str(params["losses"])), str(params.get("method", "gptq"))
    return tape, method, loss_table(tape, method), cache(lambda loaded: ReplicaExperts(loaded, tape, method))


def _windows(params: Mapping[str, Any], n_items: int | None) -> dict[str, Any]:
    found = {name: convert(name, params[name], int) for name in OF_WINDOWS if name in params}
    return found if n_items is None else found | {"n_items": n_items}


def _with_lengths(run: SystemTried) -> SystemTried:
    return dataclasses.replace(run, parameters=run.parameters | {length: getattr(run, length) for length in OF_WINDOWS})

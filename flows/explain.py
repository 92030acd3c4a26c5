"""explain: where a stored run's time and energy go, and what each of its decisions is worth."""

from dataclasses import replace
from typing import NamedTuple

from tokentape.flows.grid import resolve_run
from tokentape.flows.system_runs import VIEW, Asked, asks_scores, key_of, run_asked, setting_of, tape_of
from tokentape.policies.resolve import told
from tokentape.policies.slots import SLOTS, System
from tokentape.replay.result import Metric, ReplayResult
from tokentape.replay.system.breakdown import Share, breakdown
from tokentape.warehouse.results import rows_of_run
from tokentape.warehouse.tape import Store


class Worth(NamedTuple):
    """What the run takes more with a decision off. instead: what stands in its place; reason: why it cannot be had."""

    slot: str
    decides: str
    instead: str
    seconds: Metric | None = None
    joules: Metric | None = None
    reason: str = ""


def explain(store: Store, prefix: str) -> tuple[str, Asked, ReplayResult, list[Share], list[Worth]]:
    """The run's id, what was asked, its result, its shares and its decisions.

    Raises ValueError if no run starts with `prefix`, or if it cannot be made again.
    """
    run_id = resolve_run(store, prefix, VIEW)
    (row,) = rows_of_run(store, VIEW, run_id)
    asked = Asked.from_json(row["asked"])
    system, machine = asked.made(store), asked.hardware
    tape = tape_of(store, asked.trace_id, asked.model, asks_scores(system))
    if key_of(store, asked, system) != run_id:
        raise ValueError(f"result {run_id} cannot be made again: its tape, system, machine or the code has changed; run it again")
    _, result = run_asked(store, asked)
    shares = breakdown(tape, asked.workload.of(tape), system, machine, setting_of(store, asked, system))
    worths = [_worth(store, asked, system, slot, result) for slot in SLOTS if slot in system.policies]
    return run_id, asked, result, shares, worths


def _worth(store: Store, asked: Asked, system: System, slot: str, result: ReplayResult) -> Worth:
    decides = system.told()[slot]
    try:
        other, instead = without(store, asked, system, slot)
        _, off = run_asked(store, other)
    except ValueError as error:
        return Worth(slot, decides, "", reason=str(error))
    return Worth(slot, decides, instead, _more(off, result, "total_s"), _more(off, result, "total_energy_j"))


def without(store: Store, asked: Asked, system: System, slot: str) -> tuple[Asked, str]:
    """The run with a slot off, and what then is in its place: of a schedule whole prompts beside decodes (of that, one batch
    after the other), of a cache the room of one layer's event, of a hot set or slices an LRU of their room, else nothing."""
    kept = {key: of for key, of in asked.changes.items() if key.split(".")[0] != slot or key == "schedule.max_seqs"}
    named = replace(asked, name=f"{system.name} without {slot}")
    if slot == "schedule":
        instead = "static" if told(slot, system.schedule)[0] == "orca" else "orca"
        return replace(named, changes=kept | {slot: instead}), instead
    if slot == "residency":
        geometry = tape_of(store, asked.trace_id, asked.model).geometry
        room = geometry.top_k * max(geometry.expert_bytes(setting_of(store, asked, system).expert_format))
        alone = {"residency.scope": "global", "residency.share_kv": "false"}  # keys and values would not fit
        instead = f"room for one layer's {geometry.top_k} experts"
        others = {key: of for key, of in asked.changes.items() if key != "residency.budget"}
        return replace(named, changes=others | alone, budget=f"{room}B"), instead
    off = kept | {slot: "none"}
    if system.room and not system.without(slot).room:
        # without the widths of what a placement leaves away, and with the room said once
        of_slices = (f"{system.room}.budget", "residency.start")
        off = {key: of for key, of in off.items() if not key.startswith("precision") and key not in of_slices}
        off |= {"residency": "lru"} | ({"precision": "none"} if "precision" in system.policies else {})
        return replace(named, changes=off, budget=system.option(system.room, "budget") or None), "lru in the same room"
    return replace(named, changes=off), "nothing"


def _more(off: ReplayResult, on: ReplayResult, name: str) -> Metric:
    """Of a metric, at every end of the machine's ranges, whose order both share."""
    a, b = off.metrics[name], on.metrics[name]
    ends = [x - y for x, y in ((a.value, b.value), (a.low or 0.0, b.low or 0.0), (a.high or 0.0, b.high or 0.0))]
    return Metric(ends[0], a.unit, min(ends), max(ends))

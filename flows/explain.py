"""explain: where a stored run's time and energy go, and what each of its decisions is worth."""

from dataclasses import dataclass, replace

from tokentape.flows.grid import resolve_run
from tokentape.flows.system_runs import VIEW, Asked, asks_scores, key_of, run_asked, setting_of, tape_of
from tokentape.policies.resolve import resolve, told
from tokentape.policies.slots import SLOTS, System
from tokentape.replay.result import Metric, ReplayResult
from tokentape.replay.system.breakdown import Share, breakdown
from tokentape.warehouse.results import rows_of_run
from tokentape.warehouse.tape import Store


@dataclass(frozen=True)
class Worth:
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
    system, machine = asked.made(), asked.hardware
    tape = tape_of(store, asked.trace_id, asked.model, asks_scores(system))
    if key_of(store, asked, system) != run_id:
        raise ValueError(f"result {run_id} cannot be made again: its tape, system, machine or the code has changed; run it again")
    _, result = run_asked(store, asked)
    shares = breakdown(tape, asked.workload.of(tape), system, machine, setting_of(store, asked, system))
    return (
        run_id,
        asked,
        result,
        shares,
        [_worth(store, asked, system, slot, result) for slot in SLOTS if slot in system.policies],
    )


def _worth(store: Store, asked: Asked, system: System, slot: str, result: ReplayResult) -> Worth:
    decides = system.told()[slot]
    try:
        other, instead = without(store, asked, system, slot)
        _, off = run_asked(store, asked, other)
    except ValueError as error:
        return Worth(slot, decides, "", reason=str(error))
    return Worth(slot, decides, instead, _more(off, result, "total_s"), _more(off, result, "total_energy_j"))


def without(store: Store, asked: Asked, system: System, slot: str) -> tuple[System, str]:
    """The system with a slot off, and what then is in its place: of a schedule whole prompts beside decodes (of that, one batch
    after the other), of a cache the room of one layer's event, of a hot set or slices an LRU of their room, else nothing."""
    name, policies = f"{system.name} without {slot}", dict(system.policies)
    options = {of: dict(given) for of, given in system.options.items()}
    if slot == "schedule":
        instead = "static" if told(slot, policies[slot])[0] == "orca" else "orca"
        policies[slot] = resolve(slot, instead)
    elif slot == "residency":
        geometry = tape_of(store, asked.trace_id, asked.model).geometry
        room = geometry.top_k * max(geometry.expert_bytes(setting_of(store, asked, system).expert_format))
        options[slot] = {"budget": f"{room}B", "scope": "global"}  # which keys and values do not share: they would not fit
        instead = f"room for one layer's {geometry.top_k} experts"
    elif system.room and not system.without(slot).room:
        budget = system.option(system.room, "budget")
        options |= {slot: {}, "residency": {"budget": budget}}
        del policies[slot]
        policies["residency"] = resolve("residency", "lru")
        policies.pop("precision", None)  # gives widths to what a placement leaves away
        instead = "lru in the same room"
    else:
        return replace(system.without(slot), name=name), "nothing"
    return replace(system, name=name, policies=policies, options=options), instead


def _more(off: ReplayResult, on: ReplayResult, name: str) -> Metric:
    """Of a metric, at every end of the machine's ranges, whose order both share."""
    a, b = off.metrics[name], on.metrics[name]
    ends = [x - y for x, y in ((a.value, b.value), (a.low or 0.0, b.low or 0.0), (a.high or 0.0, b.high or 0.0))]
    return Metric(ends[0], a.unit, min(ends), max(ends))

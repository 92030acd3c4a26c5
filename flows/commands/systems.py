"""compare, explain, and replay --system: whole systems of policies on a tape."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated

from tokentape.flows.console import Shown, brief, note, percent, print_metrics, print_table, progress_bar, quantity
from tokentape.flows.options import ProfileOption, StoreOption, TraceArgument, WidthsOption, WorkloadOption, argument, option

if TYPE_CHECKING:
    from tokentape.replay.result import Metric
    from tokentape.warehouse.tape import Store


def compare(
    trace: TraceArgument,
    systems: Annotated[
        str, option("Names or my.toml, by commas; no_offload, lru_offload and its bound come with them.")
    ] = "near_compute,prefill_guided,layered",
    machine: Annotated[str, option("Shipped machines or my.toml, by commas.")] = "workstation-rtx4090-pcie4",
    budget: Annotated[
        str | None,
        option("Rooms for experts in the fast tier: 25%,50%, 24GB, '64 experts'. [default: what it has left, at most half]"),
    ] = None,
    workload: WorkloadOption = None,
    seeds: Annotated[int, option("How many seeds: of arrivals, of a shuffled order, of caches that draw.", min=1)] = 1,
    model: WidthsOption = None,
    expert_format: Annotated[
        str, option("recorded, int8-g32, int4, mxfp4, fp8, bf16; auto: as imported, else int8-g32.")
    ] = "auto",
    profile: ProfileOption = None,
    store: StoreOption = None,
) -> None:
    """Set systems side by side on one tape: every system on every machine, with equal room and the same requests.

    A system is up to nine decisions (schedule, draft, route, precision, residency, prefetch, place, kv, refresh), each a policy
    or none; docs/systems.md says how to write one. What a tape or a machine cannot carry is a cell with the reason. Runs are
    kept in the store: what is there is not made again, and `tokentape load` and `tokentape site` draw them.

    tokentape compare TRACE --budget 25%,50%,75%
    tokentape compare TRACE --systems layered,sarathi,my.toml --machine h100-cxl-ndp,phone-lpddr5x-ufs4 --budget 50%
    tokentape compare TRACE --systems near_compute --workload rate=2,batch=8 --seeds 4 --json
    """
    trace_id = store.resolve(trace)
    from tokentape.flows import system_runs as runs
    from tokentape.flows.grid import format_of

    names, machines, rooms = ([n.strip() for n in text.split(",") if n.strip()] for text in (systems, machine, budget or ""))
    load = runs.workload_of(workload) if workload else runs.workload_for(runs.tape_of(store, trace_id, model))
    shared = (model, expert_format, profile)
    asked = [runs.Asked(trace_id, "lru_offload", "", load, {}, room, *shared) for room in dict.fromkeys(rooms) or [None]]
    for one in asked:
        one.check_budget(store)
    cells = list[runs.Cell]()
    for one in asked:
        with progress_bar(f"compare {one.budget or ''}".strip()) as advance:
            cells += runs.compare(store, one, names, machines, seeds, advance)
    of_lru = {(cell.machine, cell.room): cell for cell in cells if cell.system == "lru_offload"}
    columns = (
        "machine",
        "room",
        "system",
        "tokens/s",
        "against LRU",
        "TTFT",
        "gap p99",
        "J/token",
        "hits",
        "fetched/token",
        "limited by",
    )
    rows = list[tuple[object, ...]]()
    for cell in cells:
        if cell.any is None:
            rows.append((cell.machine, cell.room, cell.system, *("",) * 7, cell.reason))
            continue
        rate, *others = (_banded(cell.metric(name)) for name in runs.METRICS)
        change = _changed(cell.change("tokens_per_s", of_lru[cell.machine, cell.room]))
        hits, fetched = cell.metric("hit_frac"), cell.metric("fetched_bytes_per_token")
        last = (
            percent(hits.value if hits else None, ".1f"),
            quantity(fetched.value if fetched else 0.0, "B"),
            runs.limit_of(cell),
        )
        rows.append((cell.machine, cell.room, cell.system, rate, change, *others, *last))
    n_runs = max(len(cell.runs) for cell in cells)
    drawn = f"; medians and ranges of {n_runs} seeds" if n_runs > 1 else "; nothing of it draws: one seed" * (seeds > 1)
    how = f"experts {format_of(store, trace_id, expert_format)}, priced by {asked[0].profile}"
    print_table(f"tape {trace_id}: {load}, {how}{drawn}", columns, rows)
    best = runs.winners(cells)
    print_table(
        "best by metric, bounds left out",
        ("machine", "room", *runs.METRICS),
        [(*at, *(of.get(metric, "") for metric in runs.METRICS)) for at, of in best.items()],
    )
    if not rooms:
        note("room for experts: what is left beside weights and KV, at most half of all")
    found = ((cell, cell.any.settings) for cell in cells if cell.any)
    outside = (f"{cell.system} on {cell.machine}: {of['outside_envelope']}" for cell, of in found if of["is_extrapolated"])
    note(*dict.fromkeys(outside))


def explain(
    run: Annotated[str, argument("RUN", "A result of replay --system or compare: its id, or the start of one.")],
    store: StoreOption = None,
) -> None:
    """Where a system's time and energy go, and what each of its decisions is worth: the run again with that slot off.

    A schedule's place takes whole prompts beside decodes (or one batch after the other), a cache's the room of one layer's event,
    a hot set's an LRU in its room; anything else is left out.

    tokentape replay TRACE --system near_compute --hardware h100-cxl-ndp
    tokentape explain 3f2a91
    """
    from tokentape.flows.explain import explain as explained

    with progress_bar(f"explain {run}"):
        run_id, asked, result, shares, worths = explained(store, run)
    rows = [
        (s.item, s.decision, s.resource, _banded(s.busy), _banded(s.seconds), percent(s.frac, ".1f"), _banded(s.joules),
         percent(s.j_frac, ".1f"))
        for s in shares
    ]  # fmt: skip
    how = f"experts {result.settings['expert_format']}, priced by {asked.profile}"
    title = f"{asked.name or result.settings['system']} on {asked.machine}, {asked.workload}, {how}: where time and energy go"
    columns = ("object", "decided by", "busiest resource", "busy", "time", "of the time", "energy", "of the energy")
    print_table(title, columns, rows)
    print_table(
        "what each decision is worth: what the run takes more without it",
        ("slot", "decides", "in its place", "time", "energy", "why not"),
        [(*words, _banded(seconds), _banded(joules), reason) for *words, seconds, joules, reason in worths],
    )
    note(f"result {run_id}")


def show_one(of: SimpleNamespace, store: Store) -> None:
    """One system's decisions and metrics. of: options of `replay`. Raises ValueError on bad input."""
    from tokentape.hw import spec
    from tokentape.policies.slots import SLOTS, parse_settings

    given = parse_settings(of.changes)
    spec.load(of.hardware)
    trace_id = store.resolve(of.trace)
    from tokentape.flows import system_runs as runs

    load = runs.workload_of(of.workload)
    how = (None, of.model, of.expert_format, of.profile)
    asked = runs.Asked(trace_id, of.system, of.hardware, load, given, *how)
    name = asked.made(store).name
    with progress_bar(f"replay {name}"):
        key, result = runs.run_asked(store, asked)
    ran = result.settings
    decisions = "; ".join(f"{slot} {ran[slot]}" for slot in SLOTS if ran[slot])
    title = (
        f"{name} on {ran['hardware']}: {decisions}\n"
        f"tape {trace_id} ({ran['origin']}), experts {ran['expert_format']}, "
        f"{quantity(ran['budget_bytes'], 'B')} of room for them\n{load}; priced by {ran['profile']}"
    )
    print_metrics(title, dict(sorted(result.metrics.items())))
    if ran["is_extrapolated"]:
        note(f"to be read with care: {ran['outside_envelope']}")
    note(f"result {key}")


def _banded(metric: Metric | None) -> Shown | str:
    """A metric with its band, in as few digits as tell them apart."""
    if metric is None:
        return ""
    low, high = metric.low, metric.high
    text = brief(metric.unit, metric.value, *(() if low is None or high is None else (low, high)))
    return Shown(text, {"value": metric.value, "low": low, "high": high, "unit": metric.unit})


def _changed(metric: Metric | None) -> Shown | str:
    """A relative change, with the range over seeds where there are several."""
    if metric is None:
        return ""
    ends = f" ({metric.low:+.1%} to {metric.high:+.1%})" if metric.low != metric.high else ""
    return Shown(f"{metric.value:+.1%}{ends}", {"value": metric.value, "low": metric.low, "high": metric.high})

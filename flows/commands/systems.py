"""compare, and replay --system: whole systems of policies on a tape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tokentape.flows.options import ProfileOption, StoreOption, TraceArgument, WidthsOption, WorkloadOption, option

if TYPE_CHECKING:
    from tokentape.replay.result import Metric


def compare(
    trace: TraceArgument,
    systems: Annotated[
        str, option("Names or my.toml, by commas; no_offload, lru_offload and its bound come with them.")
    ] = "near_compute,prefill_guided,layered",
    machine: Annotated[str, option("Shipped machines or my.toml, by commas.")] = "workstation-rtx4090-pcie4",
    budget: Annotated[
        str | None, option("Room for experts in the fast tier: 25%, 24GB, '64 experts'. [default: each system's own]")
    ] = None,
    workload: WorkloadOption = None,
    model: WidthsOption = None,
    expert_format: Annotated[str, option("int8-g32, int4, mxfp4, bf16; auto.")] = "auto",
    profile: ProfileOption = None,
    store: StoreOption = None,
) -> None:
    """Set systems side by side on one tape: every system on every machine, with equal room and the same requests.

    A system is up to eight decisions (schedule, draft, route, precision, residency, place, kv, refresh), each a policy or none;
    docs/systems.md says how to write one. What a tape or a machine cannot carry is a cell with the reason.

    \b
    Examples:
      tokentape compare TRACE --budget 25%
      tokentape compare TRACE --systems layered,sarathi,my.toml --machine h100-cxl-ndp,phone-lpddr5x-ufs4 --budget 50%
      tokentape compare TRACE --systems near_compute --workload rate=2,batch=8,seed=1 --json
    """
    from tokentape.flows.console import note, percent, print_table, progress_bar, quantity
    from tokentape.warehouse.tape import Store

    place = Store(store)
    trace_id = place.resolve(trace)
    from tokentape.flows import system_runs as runs

    load, names = runs.workload_of(workload), [name.strip() for name in systems.split(",") if name.strip()]
    machines = [name.strip() for name in machine.split(",") if name.strip()]
    with progress_bar("compare") as advance:
        cells = runs.compare(place, trace_id, names, machines, budget, load, model, expert_format, profile, progress=advance)
    columns = ("machine", "system", "tokens/s", "TTFT", "gap p99", "J/token", "hits", "fetched/token", "limited by")
    rows = list[tuple[str, ...]]()
    for cell in cells:
        if cell.result is None:
            rows.append((cell.machine, cell.system, *("",) * 6, cell.reason))
            continue
        of = cell.result.metrics
        shown = [_banded(of.get(name)) for name in runs.METRICS]
        hits = percent(of["hit_frac"].value) if "hit_frac" in of else ""
        fetched = quantity(of["fetched_bytes_per_token"].value, "B")
        rows.append((cell.machine, cell.system, *shown, hits, fetched, runs.limit_of(cell.result)))
    print_table(f"tape {trace_id}: {load}", columns, rows)
    best = runs.winners(cells)
    print_table(
        "best by metric, bounds left out",
        ("machine", *runs.METRICS),
        [(name, *(of.get(metric, "") for metric in runs.METRICS)) for name, of in best.items()],
    )
    for said in dict.fromkeys(
        f"{cell.system} on {cell.machine}: {cell.result.settings['outside_envelope']}"
        for cell in cells
        if cell.result and cell.result.settings["is_extrapolated"]
    ):
        note(said)


def show_one(
    trace: str,
    system: str,
    changes: list[str] | None,
    workload: str | None,
    model: str | None,
    hardware: str,
    expert_format: str,
    profile: str | None,
    store: str | None,
) -> None:
    """One system's decisions and metrics. Raises ValueError on bad input."""
    from tokentape.flows.console import note, print_metrics, progress_bar, quantity
    from tokentape.hw import spec
    from tokentape.policies.slots import SLOTS, parse_settings, system_of
    from tokentape.warehouse.tape import Store

    chosen = system_of(system, parse_settings(changes))
    spec.load(hardware)
    place = Store(store)
    trace_id = place.resolve(trace)
    from tokentape.flows import system_runs as runs

    load = runs.workload_of(workload)
    with progress_bar(f"replay {chosen.name}"):
        result = runs.run_system(place, trace_id, chosen, hardware, load, model, expert_format, profile)
    ran = result.settings
    decisions = "; ".join(f"{slot} {ran[f'slot_{slot}']}" for slot in SLOTS if ran[f"slot_{slot}"] != "none")
    title = (
        f"{chosen.name} on {ran['hardware']}: {decisions}\n"
        f"tape {trace_id} ({ran['origin']}), experts {ran['expert_format']}, "
        f"{quantity(ran['budget_bytes'], 'B')} of room for them\n{load}; priced by {ran['profile']}"
    )
    print_metrics(title, result.metrics)
    if ran["is_extrapolated"]:
        note(f"to be read with care: {ran['outside_envelope']}")


def _banded(metric: Metric | None) -> str:
    """A metric with its band; nothing where there is none."""
    from tokentape.flows.console import quantity, spread_of

    return "" if metric is None else f"{quantity(metric.value, metric.unit)} ({spread_of(metric)})"

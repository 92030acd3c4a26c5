"""replay, verify, study, diff: tapes through policies and hardware, and what moved since."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated

import typer

from tokentape.flows.console import Shown, note, number, percent, print_metrics, print_table, progress_bar, quantity, say
from tokentape.flows.options import (
    JsonOption,
    ProfileOption,
    SetOption,
    StoreOption,
    StoreUri,
    SystemOption,
    TraceArgument,
    WidthsOption,
    WorkloadOption,
    argument,
    asked,
    option,
)

if TYPE_CHECKING:
    from tokentape.replay.result import ReplayResult

NO_SCOPE = (
    "--scope is missing: global (one cache that all layers share) or per-layer (an equal share for each layer); "
    "their hit rates differ and are not comparable, so neither is the default"
)


def replay(
    ctx: typer.Context,
    trace: TraceArgument,
    policy: Annotated[
        str | None,
        option(
            "lru, lfu, lfu-lifetime, fifo, sieve, slru, s3-fifo, arc, lfru, gdsf, least-stale, gate-weighted, hysteresis, "
            "hobbit, static, random, belady[-bypass] or my.py:MyCache."
        ),
    ] = None,
    capacity: Annotated[str | None, option("Cache size, all layers together: 50%, 1.5GB, 900MiB or '64 experts'.")] = None,
    scope: Annotated[str | None, option("global or per-layer. Required; there is no default.")] = None,
    param: Annotated[list[str] | None, option("A field of the policy, NAME=VALUE; repeatable.")] = None,
    hardware: Annotated[str, option("A shipped machine or my.toml.")] = "phone-lpddr5x-ufs4",
    lookup: Annotated[str, option("atomic (one event's experts together) or serial (one by one).")] = "atomic",
    recency: Annotated[
        str, option("Of one event's experts: list-order, or hits-first (its hits, then its misses).")
    ] = "list-order",
    prefill: Annotated[str, option("layer-major (each expert loaded once per layer) or token-major.")] = "layer-major",
    start: Annotated[str, option("persistent (the cache lives on) or cold (empty for every request).")] = "persistent",
    overflow: Annotated[
        str, option("An event larger than the cache: evict (no more is kept than fits) or keep (until the next).")
    ] = "evict",
    fetching: Annotated[
        str, option("blocking (a layer waits for its misses) or overlapped (they hide behind work).")
    ] = "blocking",
    expert_format: Annotated[str, option("recorded, int8-g32, int4, mxfp4, fp16; auto: as imported, else int8-g32.")] = "auto",
    seed: Annotated[int, option("For policies that draw at random.")] = 0,
    profile: ProfileOption = None,
    system: SystemOption = None,
    changes: SetOption = None,
    workload: WorkloadOption = None,
    model: WidthsOption = None,
    store: StoreOption = None,
) -> None:
    """Replay one tape through one cache policy on one machine, or through a whole system of policies.

    Prints the metrics and writes them to the store as study 'adhoc', where `tokentape load` finds them.

    tokentape replay TRACE --policy lru --capacity 50% --scope global
    tokentape replay TRACE --policy static --param profile_frac=0.2 --capacity "64 experts" --scope per-layer
    tokentape replay TRACE --policy my.py:MyCache --capacity 1.5GB --scope global --hardware my.toml
    tokentape replay TRACE --system near_compute --set residency.budget=50% --hardware h100-cxl-ndp
    tokentape replay TRACE --system my.toml --workload rate=2,batch=8
    tokentape replay TRACE --system slicemoe --set route.pair=MAT42 --set residency.budget=40% --hardware slicemoe-xpu
    """
    from tokentape.hw import profile as profiles
    from tokentape.hw import spec
    from tokentape.replay.semantics import Semantics

    if system is not None:
        from tokentape.flows.commands.systems import show_one

        show_one(SimpleNamespace(**ctx.params), store)
        return
    for name, given in (("--set", changes), ("--workload", workload), ("--model", model)):
        if given is not None:
            raise ValueError(f"{name} has no effect without --system; leave it out")
    for name, value in (("--policy", policy), ("--capacity", capacity)):
        if value is None:
            raise ValueError(f"{name} is missing; a system has its own: --system (docs/systems.md)")
    if scope is None:
        raise ValueError(NO_SCOPE)
    semantics = asked(Semantics, ctx)
    spec.load(hardware)
    profiles.load(profile)
    trace_id = store.resolve(trace)
    from tokentape.flows.grid import Cell, replay_once  # kernels, once the words are known to be good
    from tokentape.policies.resolve import parse

    others = {"trace_id": trace_id, "params": tuple(parse(param).items()), "semantics": semantics}
    cell = asked(Cell, ctx, **others)
    with progress_bar(f"replay {policy}"):
        made = replay_once(store, cell)
    _print_result(*made)


def _print_result(replay_id: str, result: ReplayResult) -> None:
    ran = result.settings
    bound = " (a bound: it sees the future)" if ran["is_bound"] else ""
    size = f"{quantity(ran['capacity_bytes'], 'B')} = {ran['capacity_experts']:,.1f} experts = {percent(ran['capacity_frac'])}"
    rules = f"{ran['lookup']} lookup, {ran['recency']} recency, {ran['prefill']} prefill, {ran['start']} start"
    title = (
        f"{ran['policy']} {ran['policy_params']}{bound}, {ran['scope']}, {size} of all, on {ran['hardware']}\n"
        f"tape {ran['trace_id']} ({ran['origin']}), experts {ran['expert_format']}, {rules}, {ran['fetching']} fetches; "
        f"one token cycles through {ran['cycle_experts']} experts; priced by {ran['profile'] or 'nothing'}"
    )
    print_metrics(title, dict(sorted(result.metrics.items())))
    if ran["is_extrapolated"]:
        note(f"outside the range of the hardware's costs: {ran['outside_envelope']}; read times and energies as an extrapolation")
    note(f"result {replay_id}")


def timeline(
    result: Annotated[str, argument("RESULT", "A replay's id, or the start of one.")],
    which: Annotated[str, option("The slowest or median decode pass, or a pass number of the tape.", "--pass")] = "slowest",
    hardware: Annotated[str | None, option("my.toml, where it ran on a machine of yours.")] = None,
    profile: Annotated[str | None, option("my.toml, where it was priced by a profile of yours.")] = None,
    store: StoreOption = None,
) -> None:
    """Show when each resource of the machine is busy in one forward pass of a replay, and record it for the hardware page.

    tokentape timeline 3f2a91
    tokentape timeline 3f2a91 --pass 40
    """
    from tokentape.flows import steps
    from tokentape.replay.operations import busy_s, end_s

    step_id, title, operations = steps.of_replay(store, result, which, hardware, profile)
    whole_s, busy = end_s(operations), sorted(busy_s(operations).items(), key=lambda b: -b[1])
    rows = [(name, quantity(seconds, "s"), percent(seconds / whole_s)) for name, seconds in busy]
    print_table(f"{title}: {quantity(whole_s, 's')}", ("resource", "busy", "of the step"), rows, numbers=("busy", "of the step"))
    note(f"step {step_id} recorded: `tokentape load` and `tokentape site` draw it")


def verify(
    trace: TraceArgument,
    budget_mib: Annotated[float, option("Cache budget the engine ran with, in MiB.")],
    store: StoreOption = None,
) -> None:
    """Replay an imported tape under the engine's own semantics and count the rows that agree with its recorded residency.

    Exit code 1 if any differs.

    tokentape verify TRACE --budget-mib 4000
    """
    if not 2**-20 <= budget_mib < 2**33:  # a byte at least
        raise ValueError(f"--budget-mib {budget_mib:g} is no cache size; give the MiB that the engine ran with")
    tape = store.open(trace)
    routing = tape.read("routing")
    if "residency" not in routing.columns:
        raise ValueError(f"tape {tape.trace_id} records no residency: only tapes of an engine that wrote it can be verified")
    residency = routing["residency"].explode().to_numpy()
    from tokentape.flows.grid import load_trace  # kernels, once the tape is known to be one
    from tokentape.replay.verify import verify as check

    with progress_bar("verify"):
        found = check(load_trace(store, tape.trace_id), residency, round(budget_mib * 2**20))
    rows = (
        ("decode rows that agree", f"{found.n_agree:,} of {found.n_decode_rows:,}"),
        ("hit rate, of unique lookups", percent(found.hit_frac)),
        ("hit rate in decode", percent(found.hit_frac_decode)),
        ("prefill misses", number(found.n_prefill_misses, ",")),
        ("read from the backing tier", quantity(found.backing_bytes, "B")),
    )
    print_table(
        f"tape {tape.trace_id}, LRU of {budget_mib:g} MiB as the engine runs it", ("", "replay"), rows, numbers=("replay",)
    )
    if found.n_agree != found.n_decode_rows:
        say(f"the first that differs is decode lookup {found.first_difference}: another budget or policy, or a damaged tape")
        raise typer.Exit(1)


def study(
    name: Annotated[str | None, argument("STUDY", "A shipped study or my.toml; without one, all are listed.")] = None,
    runner: Annotated[
        str | None,
        option(
            "threads, processes, dask or ray, the last two also at an address (dask:tcp://HOST:8786, ray:HOST:6379); results "
            "are the same. [default: processes for published systems, else threads]"
        ),
    ] = None,
    workers: Annotated[int | None, option("On this machine. [default: number of cores]", min=1)] = None,
    live: Annotated[
        bool, option("Also measure inside a live model, which takes minutes and needs torch.", "--live/--no-live")
    ] = True,
    dry_run: Annotated[bool, option("Say what there is to do and what it takes; compute nothing.", "--dry-run")] = False,
    as_json: JsonOption = False,
    store: StoreUri = None,
) -> None:
    """Run the replays of a study that are not done yet, and write their results to the store.

    The studies of published systems make their own inputs and answer the papers' numbers: see `tokentape claims`. Some (cxl_ndp,
    elmoe3d, kelle, slicemoe) also measure inside a live model, unless --no-live: then they need no torch.

    tokentape study baselines
    tokentape study slicemoe
    tokentape study layered_prefill
    tokentape study kelle --no-live
    tokentape study my.toml --dry-run
    tokentape study my.toml --runner processes
    tokentape study my.toml --runner dask:tcp://HOST:8786 --store /shared/tape
    """
    from tokentape.flows.systems import questions

    if name is None:
        listed = [f"{study_name:18} {question}" for study_name, question in questions().items()]
        print(json.dumps(questions(), indent=1) if as_json else "\n".join(listed))  # plain, so that the list is there at once
        return
    from tokentape.flows.study_run import check, plan_study, run_study

    check(name, runner, live)
    from tokentape.flows.workers import gone_soon
    from tokentape.warehouse.tape import Store

    if dry_run:
        plan = plan_study(name, Store(store))
        if as_json:
            print(json.dumps({"study": name} | plan))
        return
    with gone_soon():
        counts = run_study(name, Store(store), runner, workers, live)
    if as_json:
        print(json.dumps({"study": name} | counts))


def diff(
    before: Annotated[str, argument("A", "A run's id or its beginning, STUDY@TIME (its newest runs before it) or STUDY@latest.")],
    after: Annotated[str, argument("B", "The same.")],
    store: StoreOption = None,
) -> None:
    """Which metrics moved from A to B, by how much, and whether beyond the spread over A's seeds (of one seed: at all, by 1e-9).

    Exit code 1 where one moved beyond.

    tokentape diff 3f2a91 8c07d2
    tokentape diff baselines@2026-11-23T02:00 baselines@latest
    """
    from tokentape.flows.moved import difference

    moved, n_metrics, n_same, alone = difference(store, before, after)
    columns = ("metric", "unit", "before", "after", "change", "beyond", "band", "seeds", "run")
    rows = [
        (one.metric, one.unit, number(one.before, ".6g"), number(one.after, ".6g"), percent(one.change_frac, "+.3g"),
         "yes" if one.is_beyond else "no", Shown("" if one.band is None else "{:.6g} to {:.6g}".format(*one.band), one.band),
         one.n_seeds, one.run)
        for one in sorted(moved, key=lambda one: not one.is_beyond)
    ]  # fmt: skip
    print_table(f"{before} to {after}", columns, rows, numbers=("before", "after", "change", "seeds"))
    n_beyond = sum(one.is_beyond for one in moved)
    only = "; conditions that only one has: {} and {}".format(*alone) * any(alone)
    say(f"{n_beyond} of {n_metrics} metrics moved beyond, {len(moved) - n_beyond} within the seeds' band; "
        f"runs that are in both: {n_same}{only}")  # fmt: skip
    raise typer.Exit(int(n_beyond > 0))

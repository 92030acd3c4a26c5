"""Steps as named operations at rest: one forward pass of a stored replay, as rows of table `operations`."""

import dataclasses
import json
from typing import Any

import polars as pl

from tokentape.flows.grid import Cell, load_hardware, lookups_of, replay_key, resolve_run
from tokentape.hw import spec
from tokentape.hw.profile import PHYSICAL
from tokentape.hw.spec import HardwareSpec
from tokentape.replay.operations import replay_step
from tokentape.replay.passes import Pricing
from tokentape.replay.semantics import Semantics
from tokentape.warehouse.results import rows_of_run, run_ids, write_rows
from tokentape.warehouse.tape import Store

WHICH = ("slowest", "median")


def of_replay(
    store: Store, prefix: str, which: str, hardware: str | None = None, profile: str | None = None
) -> tuple[str, str, pl.DataFrame]:
    """Runs the replay again and writes one pass's operations; the step's id and title, and its operations.

    which: slowest or median decode pass, or a pass number. hardware, profile: a user's own, which a result only names.
    Raises ValueError if no result starts with `prefix`, if its machine's file has changed, or if it has no such pass.
    """
    replay_id = resolve_run(store, prefix, "replays", "system_runs")
    if replay_id not in run_ids(store):
        raise ValueError(f"result {replay_id} is of a system; see `tokentape explain`, or `export chrome` without --pass")
    (ran,) = rows_of_run(store, "replays", replay_id)
    semantics = Semantics(**{field.name: ran[field.name] for field in dataclasses.fields(Semantics)})
    given = {field.name: ran[field.name] for field in dataclasses.fields(Cell) if field.name in ran}
    given |= {"params": tuple(json.loads(ran["policy_params"]).items()), "capacity": f"{ran['capacity_bytes']}B"}
    given |= {"semantics": semantics, "hardware": hardware or ran["hardware"], "profile": profile or ran["profile"] or PHYSICAL}
    cell = Cell(**given)
    machine = _machine(ran, hardware)
    if replay_key(store, cell, ran["study"]) != replay_id:
        raise ValueError(f"result {replay_id} cannot be made again: its tape, policy or the code has changed; replay it again")
    pass_id = _pass(pl.DataFrame(rows_of_run(store, "timeline", replay_id)), which, replay_id)
    trace, found, weight_format = lookups_of(store, cell)
    operations = replay_step(trace, found, Pricing(machine, semantics, weight_format, cell.profile), pass_id)
    step_id = f"{replay_id}/{pass_id}"
    kind = f" ({which})" if which in WHICH else ""
    title = f"{ran['policy']} at {100 * ran['capacity_frac']:.0f} % {ran['scope']}, pass {pass_id}{kind} of {ran['trace_id']}"
    write(store, step_id, title, machine, operations)
    return step_id, title, operations


def _machine(ran: dict[str, Any], hardware: str | None) -> HardwareSpec:
    """The machine a result ran on. Raises ValueError where there is none, it is a user's own, or its file has changed."""
    name, replay_id = ran["hardware"], ran["replay_id"]
    if not name:
        raise ValueError(f"result {replay_id} has no machine and so no times; choose one of a replay with --hardware")
    if hardware is None and name not in (*spec.shipped(), *spec.installed()):
        raise ValueError(f"result {replay_id} ran on {name}, a machine of yours; give its file with --hardware")
    machine = load_hardware(hardware or name)
    if machine.sha256 != ran["hardware_sha256"]:
        raise ValueError(f"result {replay_id} ran on another version of {name}; replay it again, or give --hardware its file")
    return machine


def write(store: Store, step_id: str, title: str, machine: HardwareSpec, operations: pl.DataFrame) -> None:
    """Writes a step; an earlier version of it is replaced."""
    where = {"step_id": step_id, "title": title, "hardware": machine.name}
    named = operations.with_columns(**{name: pl.lit(value) for name, value in where.items()}).with_row_index("place")
    write_rows(store, "operations", named.to_dicts(), of=step_id)


def _pass(timeline: pl.DataFrame, which: str, replay_id: str) -> int:
    """The pass a person means: a number, or the slowest or median one in decode (of all, where none decodes)."""
    if which.isascii() and which.isdigit():
        return int(which)
    if which not in WHICH:
        raise ValueError(f"--pass {which!r} is not a pass number, {' or '.join(WHICH)}")
    decode = timeline.filter(pl.col("kind") == "decode")
    by_time = (timeline if decode.is_empty() else decode).sort("step_s", "pass_id")
    if by_time.is_empty():
        raise ValueError(f"result {replay_id} has no passes on a clock; replay it again with --hardware")
    return int(by_time["pass_id"][-1 if which == "slowest" else by_time.height // 2])

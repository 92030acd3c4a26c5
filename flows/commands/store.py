"""ls, show, rm, push, pull, check: what is in the store, whether it is whole, and copies of it elsewhere."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokentape.flows.console import mebibytes, note, number, print_table, progress_bar
from tokentape.flows.options import DatabaseOption, JsonOption, StoreOption, StoreUri, TraceArgument, argument, opened, option

if TYPE_CHECKING:
    from tokentape.warehouse.tape import Store

OTHER = "The other store: a folder, s3://bucket/folder, hf://datasets/user/name."


def ls(store: StoreOption = None) -> None:
    """List the tapes of the store, unfinished captures included."""
    rows: list[tuple[Any, ...]] = []
    tapes, damaged = store.tapes()
    for tape in tapes:
        m = tape.manifest
        lengths = m.rows.get("requests", 0), number(m.rows.get("tokens", 0), ",")
        rows.append((tape.trace_id, m.origin, m.model_id, m.dataset, *lengths, ", ".join(m.tables)))
    rows += [(trace, "damaged", "", "", "", "", "cannot be opened") for trace in damaged]
    rows += [(trace, "unfinished", "", "", "", "", "go on with capture --resume, or rm") for trace in store.unfinished_ids()]
    note(*damaged.values())
    if not rows:
        note(f"no tapes in {store.uri}; make one with `tokentape capture --model embedded --dataset math`")
        return
    columns = ("trace", "origin", "model", "data set", "requests", "tokens", "tables", "MiB")
    sized = [(*row, mebibytes(store.size_bytes(row[0]))) for row in rows]
    print_table("", columns, sized, numbers=("requests", "tokens", "MiB"))
    if store.fs.isdir(store.path("runs")):
        from tokentape.warehouse.results import run_ids

        note(f"{len(run_ids(store))} replay results in {store.uri}")


def show(trace: TraceArgument, store: StoreOption = None) -> None:
    """Print a tape's manifest as JSON: model, geometry, tables, seeds, versions, contamination flags."""
    print(json.dumps(store.open(trace).manifest.model_dump(mode="json"), indent=2))


def rm(
    traces: Annotated[list[str], argument("TRACE...", "Full trace ids, finished or not.")],
    store: StoreOption = None,
) -> None:
    """Delete tapes. Results of replays stay; `tokentape load` leaves out those whose tape is gone."""
    store.remove(*traces)
    note(f"removed {', '.join(traces)}")


def push(
    traces: Annotated[list[str], argument("TRACE...", "Trace ids, or their beginnings.")],
    to: Annotated[Any, option(OTHER, "--to", metavar="<str>", parser=str, callback=opened)],
    store: StoreOption = None,
) -> None:
    """Copy tapes to another store, compared with their sums on both sides; what was stopped goes on.

    tokentape push TRACE --to s3://bucket/tapes
    tokentape push TRACE --to hf://datasets/me/tapes
    """
    _transfer(traces, store, to)


def pull(
    traces: Annotated[list[str], argument("TRACE...", "Trace ids, or their beginnings.")],
    of: Annotated[Any, option(OTHER, "--from", metavar="<str>", parser=str, callback=opened)],
    store: StoreOption = None,
) -> None:
    """Copy tapes from another store into this one, compared with their sums on both sides; what was stopped goes on.

    tokentape pull TRACE --from hf://datasets/me/tapes
    """
    _transfer(traces, of, store)


def _transfer(traces: list[str], here: Store, there: Store) -> None:
    from tokentape.warehouse.transfer import transfer

    if here.absolute == there.absolute:
        raise ValueError(f"{here.uri} and {there.uri} are the same store; give another")
    for trace_id in map(here.resolve, traces):
        with progress_bar(trace_id) as tell:
            is_new = transfer(here, trace_id, there, tell)
        note(f"{trace_id}: {f'copied to {there.uri}' if is_new else f'{there.uri} has it already'}")


def check(
    folder: Annotated[str | None, argument("STORE", "The store; --store says the same.")] = None,
    store: StoreUri = None,
    database: DatabaseOption = None,
    repair: Annotated[
        bool, option("Remove litter, damaged results and a damaged warehouse: they can be made again.", "--repair")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read every tape, result and the warehouse; name what is damaged, missing or orphaned. Exit code 1: something is wrong.

    tokentape check
    tokentape check ./tape --repair
    """
    from tokentape.warehouse import check as checker
    from tokentape.warehouse.load import database_path
    from tokentape.warehouse.tape import Store

    place = Store(folder or store)
    if not place.exists:
        raise ValueError(f"no store at {place.uri}; give the folder that holds traces/")
    found = list(checker.check(place, Path(database) if database else database_path(place)))
    if repair:
        found = [checker.repair(place, finding) for finding in found]
    if as_json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    for finding in () if as_json else found:
        what = finding.what.removeprefix(f"{finding.path}: ")
        print(f"{finding.kind}{' (removed)' if finding.is_repaired else ''}: {finding.path}: {what}")
    n_wrong = sum(finding.is_wrong for finding in found)
    can_mend = any(finding.is_wrong and finding.files for finding in found)
    note(f"{place.uri}: {n_wrong} wrong" + ("; --repair removes what can be made again" if can_mend else ""))
    raise typer.Exit(1 if n_wrong else 0)

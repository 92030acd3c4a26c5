"""ls, show, rm: what is in the store."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from flows.options import StoreOption, TraceArgument


def ls(store: StoreOption = None) -> None:
    """List the tapes of the store, unfinished captures included."""
    from flows.console import mebibytes, note, print_table
    from warehouse.results import result_ids
    from warehouse.tape import Store

    place = Store(store)
    rows: list[tuple[object, ...]] = []
    for trace_id in place.trace_ids():
        m = place.open(trace_id).manifest
        n_tokens, size = m.rows.get("tokens", 0), mebibytes(place.size_bytes(trace_id))
        rows.append(
            (trace_id, m.origin, m.model_id, m.dataset, m.rows.get("requests", 0), f"{n_tokens:,}", ", ".join(m.tables), size)
        )
    for trace_id in place.unfinished_ids():
        size = mebibytes(place.size_bytes(trace_id))
        rows += [(trace_id, "unfinished", "", "", "", "", "go on with capture --resume, or rm", size)]
    if not rows:
        note(f"no tapes in {place.uri}; make one with `tokentape capture --model embedded --dataset math`")
        return
    columns = ("trace", "origin", "model", "data set", "requests", "tokens", "tables", "MiB")
    print_table("", columns, rows, numbers=("requests", "tokens", "MiB"))
    note(f"{len(result_ids(place))} replay results in {place.uri}")


def show(trace: TraceArgument, store: StoreOption = None) -> None:
    """Print a tape's manifest as JSON: model, geometry, tables, seeds, versions, contamination flags."""
    from warehouse.tape import Store

    print(json.dumps(Store(store).open(trace).manifest.model_dump(mode="json"), indent=2))


def rm(
    traces: Annotated[list[str], typer.Argument(metavar="TRACE...", help="Full trace ids, finished or not.", show_default=False)],
    store: StoreOption = None,
) -> None:
    """Delete tapes. Results of replays stay; `tokentape load` leaves out those whose tape is gone."""
    from flows.console import note
    from warehouse.tape import Store

    for trace in traces:
        Store(store).remove(trace)
        note(f"removed {trace}")

"""What `tokentape ls` of a store of 1,000 tapes takes, in CPU time of a new process."""

from __future__ import annotations

import json
import os
import resource
import shutil
import tempfile
from pathlib import Path
from typing import Any

from bench.replay import in_new_process
from tokentape.warehouse import seals
from tokentape.warehouse.tape import Store, Tape

N_TAPES = 1000


def bench(tape: Tape) -> dict[str, Any]:
    """All figures. tape: of a local store; it is what the others are copies of."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        for number in range(N_TAPES):
            _copy(tape, store, f"copy-{number:04d}")
        seconds = []
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            in_new_process("-m", "tokentape.flows.cli", "ls", "--store", folder)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    report = {"ls_1000_tapes_cpu_s": round(min(seconds), 3)}
    print(f"`tokentape ls` of {N_TAPES} tapes {report['ls_1000_tapes_cpu_s']} CPU s")
    return report


def _copy(tape: Tape, store: Store, trace_id: str) -> None:
    """The tape under another id: shards linked, the manifest sealed anew."""
    source, target = Path(tape.store.trace_path(tape.trace_id)), Path(store.trace_path(trace_id))
    shutil.copytree(source, target, copy_function=os.link, ignore=shutil.ignore_patterns("manifest.json"))
    fields = tape.manifest.model_dump(mode="json") | {"trace_id": trace_id, "seal": seals.PLACE}
    (target / "manifest.json").write_bytes(seals.sealed(json.dumps(fields, indent=1, sort_keys=True).encode()))

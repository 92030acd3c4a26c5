"""`python -m bench` (or `make bench`): all speed figures of the project in one run; the last line is one JSON object."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import capture as bench_capture
from bench import closed_loop as bench_closed_loop
from bench import compare as bench_compare
from bench import cxl_ndp as bench_cxl_ndp
from bench import elmoe3d as bench_elmoe3d
from bench import hardware as bench_hardware
from bench import imports as bench_imports
from bench import kelle as bench_kelle
from bench import kv as bench_kv
from bench import long_tape as bench_long_tape
from bench import replay as bench_replay
from bench import serving as bench_serving
from bench import sliced as bench_sliced
from bench import store as bench_store
from bench import system as bench_system
from tokentape.capture.run import CaptureSettings, capture
from tokentape.replay.semantics import Semantics
from tokentape.replay.stream import stream
from tokentape.replay.trace import trace_from_tables
from tokentape.warehouse.tape import Store, Tape


def captured_lookups(tape: Tape) -> tuple[NDArray[np.int32], int]:
    """The tape's lookups in the order executed, and how many experts there are."""
    trace = trace_from_tables(tape.trace_id, tape.geometry, "captured", tape.read("routing"), tape.read("passes"))
    return stream(trace, Semantics("global")).keys, trace.n_keys


def scan_rate(tape: Tape, tables: tuple[str, ...] = ("routing", "scores")) -> float:
    """Rows of routing and scores read from Parquet per CPU second."""
    best, rows = float("inf"), sum(tape.manifest.rows[table] for table in tables)
    for _ in range(5):
        started = time.process_time()
        for table in tables:
            tape.read(table)
        best = min(best, time.process_time() - started)
    return rows / best


def main() -> None:
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        tape = store.open(capture(CaptureSettings("embedded", "math", max_requests=16, max_new_tokens=64), store))
        report |= bench_replay.bench(*captured_lookups(tape), folder, tape.trace_id)
        report |= bench_store.bench(tape)
        report |= bench_long_tape.bench(tape)
        report["parquet_scan_rows_per_cpu_s"] = round(scan_rate(tape))
        print(f"Parquet scan {report['parquet_scan_rows_per_cpu_s'] / 1e6:.2f} M rows/s of routing and scores")
    report |= bench_imports.bench()
    report |= bench_hardware.bench()
    report |= bench_kelle.bench()
    report |= bench_sliced.bench()
    report |= bench_serving.bench()
    report |= bench_system.bench()
    report |= bench_compare.bench()
    report |= bench_elmoe3d.bench()
    report |= bench_cxl_ndp.bench()
    report |= bench_kv.bench()
    report |= {name: round(value, 4) for name, value in (bench_capture.measure() | bench_closed_loop.measure()).items()}
    sys.stdout.flush()
    print(json.dumps(report))


if __name__ == "__main__":
    main()

"""Operations and passes as a Chrome trace: what Perfetto (ui.perfetto.dev) and chrome://tracing open.

Trace Event Format: complete events (ph X) in microseconds, a thread per resource, named by metadata events (ph M).
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from typing import Any

import polars as pl


def chrome_trace(title: str, rows: pl.DataFrame, name: str, thread: str) -> dict[str, Any]:
    """rows: start_s and seconds of each, the column `name` for what it is, `thread` for where; all others are its arguments."""
    threads = {value: i for i, value in enumerate(rows[thread].unique(maintain_order=True).to_list())}
    named = [{"ph": "M", "pid": 0, "name": "process_name", "args": {"name": title}}]
    named += [{"ph": "M", "pid": 0, "tid": tid, "name": "thread_name", "args": {"name": who}} for who, tid in threads.items()]
    events = [
        {
            "ph": "X",
            "pid": 0,
            "tid": threads[row.pop(thread)],
            "name": str(row.pop(name)),
            "ts": 1e6 * row.pop("start_s"),
            "dur": 1e6 * row.pop("seconds"),
            "args": row,
        }
        for row in rows.to_dicts()
    ]
    return {"displayTimeUnit": "ns", "traceEvents": named + events}

"""The table of docs/speed.md, from the last line that `make bench` printed.

make bench | python -m bench.docs.speed docs/speed.md     rewrites `<!-- speed -->`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from bench.docs import rewritten, table, write


def figures(report: Mapping[str, Any]) -> str:
    """A row per number, whole from 100 on; texts are the figures' conditions."""
    rows = []
    for name, value in report.items():
        if isinstance(value, int | float):
            value = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        if isinstance(value, str):
            rows.append((f"`{name}`", value))
    return table(("figure", "value"), rows)


if __name__ == "__main__":
    made = figures(json.loads(sys.stdin.read().splitlines()[-1]))
    write("speed docs/speed.md", sys.argv[1:], lambda text: rewritten(text, "speed", lambda *_: f"\n{made}"))

"""The table of docs/speed.md, from the last line that `make bench` printed.

make bench | python -m bench.page docs/speed.md     rewrites what stands between `<!-- speed -->` and `<!-- end -->`
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"(?s)<!-- speed -->\n.*?<!-- end -->")


def table(report: Mapping[str, Any]) -> str:
    """A row per number, whole from 100 on; texts are the figures' conditions."""
    lines = ["| figure | value |", "|---|---|"]
    for name, value in report.items():
        if isinstance(value, int | float):
            value = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        if isinstance(value, str):
            lines.append(f"| `{name}` | {value} |")
    return "\n".join(lines)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    made = table(json.loads(sys.stdin.read().splitlines()[-1]))
    text = _BLOCK.sub(lambda _: f"<!-- speed -->\n{made}\n<!-- end -->", page.read_text(encoding="utf-8"))
    page.write_text(text, encoding="utf-8")

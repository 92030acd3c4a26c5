"""The schema as Markdown: the column tables of docs/tape.md and docs/warehouse.md are written from columns.toml and schema/.

python -m tokentape.warehouse.reference docs/*.md      rewrites what stands between `<!-- table NAME -->` and `<!-- end -->`
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tokentape.warehouse.tables import TABLES

_PLAIN = {"item: ": "", "halffloat": "float16", "float": "float32", "double": "float64"}  # Arrow's names for types
_BLOCK = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def column_table(name: str) -> str:
    """Markdown of one table: what a row is, its key, its columns with type, unit and meaning."""
    table = TABLES[name]
    lines = [
        f"A row is {table.meaning}. Key: {', '.join(f'`{c}`' for c in table.key)}.",
        "",
        "| column | type | unit | meaning |",
        "|---|---|---|---|",
    ]
    for column in table.columns + table.optional:
        declared = table.column(column)
        kind = re.sub(r"\b(item: |halffloat|float|double)", lambda m: _PLAIN[m[1]], str(declared.type))
        notes = [word for word, names in (("optional", table.optional), ("may be null", table.nullable)) if column in names]
        meaning = declared.meaning + (f" ({', '.join(notes)})" if notes else "")
        lines.append(f"| `{column}` | {kind} | {declared.unit} | {meaning} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def refresh(text: str) -> str:
    """The document with its column tables as declared now."""
    return _BLOCK.sub(lambda match: match[1] + column_table(match[2]) + match[3], text)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(refresh(path.read_text(encoding="utf-8")), encoding="utf-8")

"""The schema as Markdown: the column tables of docs/tape.md and docs/warehouse.md, from columns.toml and schema/.

python -m bench.docs.schema docs/*.md      rewrites every `<!-- table NAME -->`
"""

from __future__ import annotations

import re
import sys

from bench.docs import rewritten, table, write
from tokentape.warehouse.tables import TABLES

_PLAIN = {"item: ": "", "halffloat": "float16", "float": "float32", "double": "float64"}  # Arrow's names for types


def column_table(name: str) -> str:
    """Markdown of one table: what a row is, its key, its columns with type, unit and meaning."""
    of, rows = TABLES[name], []
    for column in of.columns + of.optional:
        declared = of.column(column)
        kind = re.sub(r"\b(item: |halffloat|float|double)", lambda m: _PLAIN[m[1]], str(declared.type))
        notes = [word for word, names in (("optional", of.optional), ("may be null", of.nullable)) if column in names]
        rows.append((f"`{column}`", kind, declared.unit, declared.meaning + (f" ({', '.join(notes)})" if notes else "")))
    key = ", ".join(f"`{column}`" for column in of.key)
    return f"A row is {of.meaning}. Key: {key}.\n\n" + table(("column", "type", "unit", "meaning"), rows)


def refreshed(text: str) -> str:
    """The document with its column tables as declared now."""
    return rewritten(text, r"table (?=\w+ -->)", lambda words, _: "\n" + column_table(words.split()[1]))


if __name__ == "__main__":
    write("schema docs/*.md", sys.argv[1:], refreshed)

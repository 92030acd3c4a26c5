"""The dataset card of a store: what lies in it, how to read it without us. `datasets` reads its header, people the rest."""

from tokentape.warehouse.tables import TABLES, TAPE_TABLES

_TEXT = """# Tapes

What language models did, token by token: a folder of `traces/` is a recording, a folder in it a table. The Parquet fields say
what each column holds and in what unit, `manifest.json` which model it was, how it was recorded, and the SHA-256 of every file.

| table | a row is |
|---|---|
{rows}

```python
datasets.load_dataset("THIS FOLDER", "routing")
polars.scan_parquet("traces/*/routing/*.parquet", hive_partitioning=True)  # trace_id is a column
duckdb.sql("from read_parquet('traces/*/routing/*.parquet', hive_partitioning = true)")
```
"""


def card() -> str:
    """The same for every store: a table that no tape of it holds has no files."""
    configs = "\n".join(
        f"- config_name: {name}\n  data_files: traces/*/{name}/*.parquet" + ("\n  default: true" if name == "routing" else "")
        for name in TAPE_TABLES
    )
    rows = "\n".join(f"| `{name}` | {TABLES[name].meaning} |" for name in TAPE_TABLES)
    return f"---\nconfigs:\n{configs}\n---\n\n" + _TEXT.format(rows=rows)

"""Every table and view, declared once: columns (columns.toml), key, what a row is (schema/). Writers and readers enforce it.

Tape tables are written by capture, importers and synthesis. What an engine leaves are runs with their metrics, steps and series;
its own view of them, with every fact a column, is declared beside it (at_rest.py goes from one to the other). Knows nothing of
files or databases: see tape.py, results.py and load.py.
"""

import pyarrow as pa

from tokentape.warehouse.schema.table import Table, View, tables_of

SCHEMA_VERSION = 2


class BadTable(ValueError):
    """Rows that do not fit their declared table; the message names the table, the column and the remedy."""


_OF_ENGINES = ("replays", "slicemoe", "kv", "serving", "elmoe3d", "kelle", "cxl_ndp", "quality", "hardware", "systems")
_TAPE, _RUNS, _SUMMARIES, _CLAIMS = (tables_of(subject) for subject in ("tape", "runs", "summaries", "claims"))
_DECLARED = {name: table for subject in _OF_ENGINES for name, table in tables_of(subject).items()}
VIEWS = {name: table for name, table in _DECLARED.items() if isinstance(table, View)}
# Of those whose engine names its runs, by the tape that they ran on.
BY_RUN = {name: view.run_id for name, view in VIEWS.items() if view.run_id and not view.of}
# Tables of their own, outside any run; a later row replaces one of the same key.
OWN_TABLES = (*(name for name in _DECLARED if name not in VIEWS), "answers")
# What runs leave, `runs` first.
RESULT_TABLES = tuple(name for name in _RUNS if name != "metric_defs")
TAPE_TABLES = tuple(_TAPE)
SUMMARY_TABLES = tuple(name for name in _SUMMARIES if name != "traces")
WAREHOUSE_TABLES = ("traces", *SUMMARY_TABLES, *_RUNS, *OWN_TABLES, "claims")
TABLES: dict[str, Table] = {**_TAPE, **_RUNS, **_SUMMARIES, **_DECLARED, **_CLAIMS}


def schema(name: str, present: tuple[str, ...] = ()) -> pa.Schema:
    """Arrow schema of a table; `present` names the optional columns to include, in declared order."""
    table = TABLES[name]
    columns = table.columns + tuple(c for c in table.optional if c in present)
    return pa.schema([pa.field(c, table.column(c).type, nullable=c in table.nullable) for c in columns])


def conform(name: str, rows: pa.Table) -> pa.Table:
    """`rows` cast to the declared schema, columns in declared order.

    Raises BadTable naming the column when one is missing, unknown, of a type that cannot be cast, or null where it must not be.
    """
    table = TABLES[name]
    known = set(table.columns) | set(table.optional)
    missing = [c for c in table.columns if c not in rows.column_names]
    unknown = [c for c in rows.column_names if c not in known]
    if missing:
        raise BadTable(f"table {name}: column {missing[0]} is missing; found {', '.join(rows.column_names) or 'none'}")
    if unknown:
        raise BadTable(f"table {name}: column {unknown[0]} is not declared in warehouse/columns.toml; remove or declare it")
    wanted = schema(name, tuple(rows.column_names))
    arrays = []
    for field in wanted:
        column = rows.column(field.name)
        try:
            if column.type != field.type and not (field.type == pa.string() and is_coded(column.type)):
                column = column.cast(field.type)  # imports pyarrow.compute
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise BadTable(f"table {name}: column {field.name} is not {field.type}: {error}") from error
        if column.null_count and not field.nullable:
            raise BadTable(f"table {name}: column {field.name} has {column.null_count} nulls; every row needs a value")
        arrays.append(column)
    return pa.Table.from_arrays(arrays, schema=pa.schema([f.with_type(c.type) for f, c in zip(wanted, arrays, strict=True)]))


def is_coded(kind: pa.DataType) -> bool:
    """Texts by their places in a dictionary, which a file says as it says texts."""
    return bool(pa.types.is_dictionary(kind)) and kind.value_type in (pa.string(), pa.large_string())


def as_shard(name: str, rows: pa.Table) -> pa.Table:
    """`rows` as a tape keeps them: conforming, what optional columns they lack as nulls, and what each field holds said in it.

    Nothing in a list is null, and its field says so, by which it is read a quarter sooner. Raises BadTable where something is.
    """
    table = TABLES[name]
    unused = [c for c in table.optional if c in rows.column_names and rows.column(c).null_count == len(rows)]
    found = conform(name, rows.drop_columns(unused))
    fields, columns = list[pa.Field](), list[pa.ChunkedArray | pa.Array]()
    for field in schema(name, table.optional):
        said = {"meaning": table.column(field.name).meaning, "unit": table.column(field.name).unit}
        column = found.column(field.name) if field.name in found.column_names else pa.nulls(len(found), field.type)
        if pa.types.is_list(field.type):
            field = field.with_type(pa.list_(pa.field("element", field.type.value_type, nullable=False)))
            column = _without_nulls(column, field, name)
        fields.append(field.with_metadata(said).with_nullable(field.nullable or field.name in table.optional))
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _without_nulls(lists: pa.ChunkedArray | pa.Array, field: pa.Field, name: str) -> pa.ChunkedArray:
    """The same buffers, as the field's type; a cast would import Arrow's functions."""
    found = list[pa.Array]()
    for part in lists.chunks if isinstance(lists, pa.ChunkedArray) else [lists]:
        if part.values.null_count:
            raise BadTable(f"table {name}: a list of column {field.name} holds a null; every entry needs a value")
        buffers = part.buffers()[:2]  # which are null, and where each ends
        found.append(pa.Array.from_buffers(field.type, len(part), buffers, part.null_count, part.offset, [part.values]))
    return pa.chunked_array(found, field.type)


def check_schema(name: str, found: pa.Schema, where: str) -> None:
    """Raises BadTable unless `found` (of the file `where`) is table `name` of this schema version."""
    wanted = schema(name, tuple(found.names))
    for field in wanted:
        if field.name not in found.names:
            raise BadTable(f"{where}: not a {name} table of schema {SCHEMA_VERSION}: column {field.name} is missing")
        kind = found.field(field.name).type
        if field.type != (pa.list_(kind.value_type) if pa.types.is_list(kind) else kind):  # whose nulls are looked for at reading
            raise BadTable(
                f"{where}: column {field.name} is {kind}, schema {SCHEMA_VERSION} says {field.type}; "
                "record or import the tape again with this version"
            )

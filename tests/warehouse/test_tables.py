"""Declared columns: what conforms round-trips, what does not is named, and the documents say the same."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from refusing import refuses
from small_store import summed_anew

from bench.docs.schema import refreshed
from tokentape.warehouse.at_rest import declared
from tokentape.warehouse.schema.table import COLUMNS
from tokentape.warehouse.tables import (
    RESULT_TABLES,
    TABLES,
    TAPE_TABLES,
    VIEWS,
    WAREHOUSE_TABLES,
    BadTable,
    check_schema,
    conform,
    schema,
)
from tokentape.warehouse.tape import BadTape, Store

MOST_STORED = 30
DOCS = Path(__file__).resolve().parents[2] / "docs"


def values(kind: pa.DataType) -> st.SearchStrategy[object]:
    if pa.types.is_list(kind):
        return st.lists(values(kind.value_type), max_size=4)
    if pa.types.is_string(kind):
        return st.text(max_size=8)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False)
    signed = pa.types.is_signed_integer(kind)
    bits = kind.bit_width - signed
    return st.integers(-(2**bits) if signed else 0, 2**bits - 1)


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, pa.Table]:
    name = draw(st.sampled_from(sorted(TABLES)))
    present = tuple(draw(st.lists(st.sampled_from(TABLES[name].optional), unique=True)) if TABLES[name].optional else ())
    n = draw(st.integers(0, 4))
    columns = {}
    for field in schema(name, present):
        value = values(field.type) if not field.nullable else st.none() | values(field.type)
        columns[field.name] = pa.array(draw(st.lists(value, min_size=n, max_size=n)), field.type)
    return name, pa.table(columns)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables())
def test_conforming_rows_round_trip_through_parquet(tmp_path: Path, drawn: tuple[str, pa.Table]) -> None:
    name, rows = drawn
    checked = conform(name, rows.select(list(reversed(rows.column_names))))
    assert checked.schema.equals(schema(name, tuple(rows.column_names)))
    assert conform(name, checked).equals(checked)
    path = tmp_path / "rows.parquet"
    pq.write_table(checked, path, compression="zstd")
    check_schema(name, pq.read_schema(path), "rows.parquet")
    assert pq.read_table(path).equals(checked)
    assert checked.to_pylist() == rows.select(checked.column_names).to_pylist()


@settings(max_examples=50, deadline=None)
@given(tables(), st.data())
def test_a_missing_foreign_or_null_column_is_named(drawn: tuple[str, pa.Table], data: st.DataObject) -> None:
    name, rows = drawn
    column = data.draw(st.sampled_from(TABLES[name].columns))
    refuses(f"table {name}: column {column} is missing", conform, name, rows.drop_columns(column), error=BadTable)
    with pytest.raises(BadTable, match=f"column {column} is missing"):
        check_schema(name, rows.schema.remove(rows.schema.get_field_index(column)), "old.parquet")
    refuses("column surprise is not declared", conform, name, rows.append_column("surprise", pa.nulls(len(rows))), error=BadTable)
    if len(rows) and column not in TABLES[name].nullable:
        at = rows.column_names.index(column)
        with pytest.raises(BadTable, match=f"column {column} has {len(rows)} nulls"):
            conform(name, rows.set_column(at, column, pa.nulls(len(rows), TABLES[name].column(column).type)))


def test_values_that_do_not_fit_are_named_and_floats_may_begin_with_a_whole_number() -> None:
    fitting: dict[str, list[object]] = {"trace_id": ["t"], "phase": ["decode"], "gate_rank": [1], "n_routed": [1]}
    with pytest.raises(BadTable, match="column layer is not uint16"):
        conform("gate_curve", pa.table(fitting | {"layer": [70_000], "gate_frac": [0.5]}))
    with pytest.raises(BadTable, match="column gate_frac is not double"):
        conform("gate_curve", pa.table(fitting | {"layer": [1], "gate_frac": ["high"]}))
    rows = [{"run_id": "a", "metric": str(value), "value": value} for value in (4, 1.5)]
    assert declared("metrics", rows)["value"].to_pylist() == [4.0, 1.5]
    refuses("table metrics", declared, "metrics", [*rows, rows[0] | {"value": "four"}], error=BadTable)


def test_declarations_are_complete() -> None:
    for name, table in TABLES.items():
        every = table.columns + table.optional
        assert len(set(every)) == len(every), name
        assert set(table.key) <= set(every), name
        assert set(table.nullable) <= set(every), name
        assert all(table.column(column).meaning for column in every)
    assert set(TAPE_TABLES) | set(WAREHOUSE_TABLES) | set(VIEWS) == set(TABLES)
    assert len(set(TAPE_TABLES) | set(WAREHOUSE_TABLES)) <= MOST_STORED
    assert set(RESULT_TABLES) <= set(WAREHOUSE_TABLES)
    assert {c for table in TABLES.values() for c in table.columns + table.optional if c not in table.own} == set(COLUMNS)


@pytest.mark.parametrize(("document", "names"), [("tape.md", TAPE_TABLES), ("warehouse.md", (*WAREHOUSE_TABLES, *VIEWS))])
def test_documents_show_the_declared_columns(document: str, names: tuple[str, ...]) -> None:
    text = (DOCS / document).read_text(encoding="utf-8")
    assert refreshed(text) == text, f"run `python -m bench.docs.schema docs/{document}`"
    for name in names:
        assert f"<!-- table {name} -->" in text


# ------------------------------------------------------------------------------------------------- tapes that cannot be read


def test_tape_files_that_cannot_be_read(small: Store) -> None:
    path = Path(small.trace_path("hand-made", "routing", "part-00000.parquet"))
    good = pq.read_table(path)

    def refused(error: type[ValueError], message: str) -> None:
        summed_anew(small)
        refuses(message, lambda: small.open("hand-made").read("routing"), error=error)

    for content in (b"", path.read_bytes()[:200], b"not parquet at all"):
        path.write_bytes(content)
        refused(BadTape, r"part-00000\.parquet: not a readable Parquet file")
    pq.write_table(pa.table({"a": [1]}), path)
    refused(BadTable, "column request_id is missing")
    pq.write_table(good.set_column(2, "layer", good["layer"].cast(pa.int64())), path)
    refused(BadTable, "column layer is int64, schema 2 says uint16; record or import the tape again")
    pq.write_table(good.slice(1), path)
    refused(BadTape, "routing has 4 rows, the manifest says 5")
    path.unlink()
    refuses("is missing; the tape is damaged", small.open("hand-made").read, "routing", error=BadTape)


def with_geometry(text: str, **changes: object) -> str:
    fields = json.loads(text)
    return json.dumps(fields | {"geometry": fields["geometry"] | changes})


NEGATIVE = r"manifest\.json: not a manifest \(geometry: Value error, hidden is -8; it must not be negative"
EDITED = r"manifest\.json: changed since it was written; restore it from a copy"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"schema_version": 2', '"schema_version": 0'), "schema version 0, this tokentape reads 2"),
        (lambda text: text[:50], "not a manifest"),
        (lambda text: text.replace('"origin"', '"origins"'), "not a manifest"),
        (lambda text: "[]", "schema version None"),
        (lambda text: with_geometry(text, hidden=-8), NEGATIVE),
        (lambda text: with_geometry(text, moe_layers=(1, 1)), r"geometry: Value error, .*moe_layers \(1, 1\) must rise"),
        (lambda text: with_geometry(text, n_experts=10**9), "geometry: Value error, .*n_experts is 1000000000"),
        (lambda text: with_geometry(text, n_layers=10**6), "geometry: Value error, .*65536 are the most"),
        (lambda text: text.replace('"n_layers": 2', '"n_layers": 3'), EDITED),
        (lambda text: text.replace('"seed": null', '"seed": 3'), EDITED),
        (lambda text: text.replace("tokentape-sha256:", "tokentape-sha257:"), EDITED),
        (lambda text: re.sub(r'"seal": "[^"]*",', "", text), EDITED),
    ],
)
def test_manifests_that_cannot_be_read(small: Store, change: Callable[[str], str], message: str) -> None:
    path = Path(small.trace_path("hand-made", "manifest.json"))
    path.write_text(change(path.read_text()))
    refuses(message, small.open, "hand-made", error=BadTape)


def test_unknown_tables_are_named(small: Store) -> None:
    refuses("holds no scores; capture it with --tables scores", small.open("hand").read, "scores", error=BadTape)
    refuses("unknown table 'nonsense'", small.open("hand").read, "nonsense", error=BadTape)

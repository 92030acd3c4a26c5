"""Tapes whose rows contradict each other, the manifest or another table are refused, with the row."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusing import refuses
from small_store import hand_made, summed_anew, write_tape

from tokentape.warehouse.load import database_path, load
from tokentape.warehouse.tables import BadTable, conform
from tokentape.warehouse.tape import BadTape, Store

Tables = dict[str, pa.Table]


def put(table: str, row: int, **values: object) -> Callable[[Tables], None]:
    """Other values in one row."""

    def change(tables: Tables) -> None:
        rows = conform(table, tables[table]).to_pylist()
        rows[row] |= values
        tables[table] = pa.Table.from_pylist(rows, conform(table, tables[table]).schema)

    return change


def taken(table: str, *rows: int) -> Callable[[Tables], None]:
    """Only these rows, in this order."""

    def change(tables: Tables) -> None:
        tables[table] = tables[table].take(list(rows))

    return change


NAN, INF = float("nan"), float("inf")
WRONG = {
    case: (put(where[0], where[1], **where[2]) if len(where) > 2 else taken(where[0], *where[1]), message)
    for case, (where, message) in json.loads((Path(__file__).parent / "contradictions.json").read_text()).items()
}


@pytest.mark.parametrize("case", WRONG)
def test_a_tape_that_contradicts_itself_is_refused_with_the_row(case: str, store: Store) -> None:
    change, message = WRONG[case]
    write_tape(store, change=change)
    tape = store.open("hand-made")
    with pytest.raises(BadTape) as caught:
        _ = [tape.read(table) for table in ("tokens", "routing")]
    assert message in str(caught.value)
    assert str(caught.value).startswith("tape hand-made: ")


def test_manifests_of_another_folder_and_contradictions_are_left_out(store: Store) -> None:
    write_tape(store)
    write_tape(store, "wrong", change=WRONG["a doubled row"][0])
    report = load(store, database_path(store))
    assert list(report.damaged_tapes) == ["wrong"]
    assert report.rows["traces"] == 1
    write_tape(store)
    Path(store.trace_path("hand-made")).rename(store.trace_path("other"))
    refuses("says that it is tape hand-made, its folder says other; rename the folder back", store.open, "other", error=BadTape)


def test_scores_attention_and_losses_are_looked_at_too(store: Store) -> None:
    keys = {"request_id": [0] * 5, "position": range(5), "layer": [1] * 5}
    attention = {
        "request_id": [0], "pass_id": [1], "position": [3], "layer": [1], "kv_head": [0], "reduction": ["row"], "n_queries": [1],
        "key_positions": pa.nulls(1, pa.list_(pa.int32())), "mass": [[0.5, NAN, 0.2, 0.1]], "rest": [0.0],
    }  # fmt: skip
    losses = {
        "layer": [1], "expert": [0], "bits": [2], "method": ["rtn"], "group": [32], "mse": [INF],
        "heldout_mse": pa.nulls(1, pa.float32()), "n_tokens": [3], "topped_up": [False],
    }  # fmt: skip
    more = {
        "scores": pa.table(keys | {"scores": [[0.1] * 4] * 4 + [[0.1] * 3]}),
        "attention": pa.table(attention),
        "losses": pa.table(losses),
    }
    write_tape(store, change=lambda tables: tables.update(more))
    tape = store.open("hand-made")
    refuses("scores row 4: its scores are not one for each of 4 experts", tape.read, "scores", error=BadTape)
    refuses("attention row 0: its mass holds NaN", list, tape.batches("attention", 10), error=BadTape)
    refuses("losses row 0: its mse is not a finite number", tape.read, "losses", error=BadTape)


def test_missing_rows_that_are_told_of_and_metadata_that_is_no_text_are_read(store: Store) -> None:
    write_tape(store, change=taken("routing", 0, 1, 3, 4), flags={"missing_rows": {"expected": 5, "found": 4}})
    assert len(store.open("hand-made").read("routing")) == 4
    write_tape(store, "second")
    path = next(iter(store.open("second").files("routing")))
    rows = pq.ParquetFile(path).read()
    field = rows.schema.field("layer").with_metadata({b"unit": b"\xff"})
    pq.write_table(rows.set_column(rows.schema.get_field_index("layer"), field, rows["layer"]), path, write_page_checksum=True)
    summed_anew(store, "second")
    assert len(store.open("second").read("routing")) == 5


def test_nothing_in_a_list_is_null_and_a_tape_whose_fields_do_not_say_so_is_read_alike(store: Store) -> None:
    write_tape(store)
    written = store.open("hand-made").read("routing")
    path = next(iter(store.open("hand-made").files("routing")))
    rows = pq.ParquetFile(path).read()
    at, ids = rows.schema.get_field_index("expert_ids"), rows["expert_ids"].to_pylist()
    assert not rows.schema.field(at).type.value_field.nullable
    for first in (ids[0], [0, None]):
        column = pa.array([first, *ids[1:]], pa.list_(pa.uint16()))
        field = pa.field("expert_ids", column.type, nullable=False)
        pq.write_table(rows.set_column(at, field, column), path, write_page_checksum=True)
        summed_anew(store)
        if None not in first:
            assert store.open("hand-made").read("routing").equals(written)
            continue
        with pytest.raises(BadTape, match="routing row 0: its expert_ids go past the model's 4 experts"):
            store.open("hand-made").read("routing")
    with pytest.raises(BadTable, match="table routing: a list of column expert_ids holds a null; every entry needs a value"):
        write_tape(store, "null", change=put("routing", 0, expert_ids=[0, None]))
    assert store.trace_ids() == ["hand-made"]


def test_a_request_in_two_shards_is_refused(store: Store) -> None:
    write_tape(store)
    rows = hand_made()
    store.writer("twice").write_shard(1, rows)
    write_tape(store, "twice", n_shards=2, rows={name: 2 * len(table) for name, table in rows.items()})
    refuses("request 0 is in two shards", list, store.open("twice").shards("routing"), error=BadTape)

"""A tape read without tokentape: Polars, DuckDB and `datasets` over many tapes at once, and `tape.` views in our own SQL."""

from contextlib import closing
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from refusing import refuses
from small_store import IDS, TRACE, write_tape

from tokentape.warehouse.load import database_path, load
from tokentape.warehouse.schema.table import COLUMNS
from tokentape.warehouse.sql import BadQuery, query
from tokentape.warehouse.tables import TABLES
from tokentape.warehouse.tape import BadTape, Store

TWO = (TRACE, "second")


@pytest.fixture
def two(small: Store) -> Store:
    write_tape(small, trace_id="second")
    return small


def test_every_column_is_there_and_says_what_it_holds(two: Store) -> None:
    for table in two.open(TRACE).manifest.tables:
        fields = pq.read_schema(two.trace_path(TRACE, table, "part-00000.parquet"))
        assert fields.names == [*TABLES[table].columns, *TABLES[table].optional]
        for field in fields:
            said = {key.decode(): value.decode() for key, value in field.metadata.items()}
            assert (said["meaning"], said["unit"]) == (COLUMNS[field.name].meaning, COLUMNS[field.name].unit)
    tape = two.open(TRACE)
    assert tape.manifest.recorded["routing"] == ()
    assert tape.read("routing").columns == [*TABLES["routing"].columns], "what was never recorded is not read"


def test_polars_and_duckdb_read_all_tapes_with_their_ids(two: Store) -> None:
    files = f"{two.root}/traces/*/routing/*.parquet"
    rows = pl.scan_parquet(files, hive_partitioning=True).collect()
    assert rows.group_by("trace_id").len().sort("trace_id").rows() == sorted((name, len(IDS)) for name in TWO)
    with closing(duckdb.connect()) as connection:
        asked = f"select trace_id, count(*) from read_parquet('{files}', hive_partitioning = true) group by all order by all"
        assert connection.sql(asked).fetchall() == sorted((name, len(IDS)) for name in TWO)


def test_datasets_loads_the_store_by_its_card(two: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    for config, n in ((None, 2 * len(IDS)), ("requests", 2)):  # routing is the default
        found = datasets.load_dataset(two.root, config, split="train", cache_dir=str(tmp_path / "cache"))
        assert found.num_rows == n
    assert found.features["prefix_blocks"].feature.dtype == "uint32"


def test_sql_sees_tapes_as_views_and_no_other_file(two: Store, tmp_path: Path) -> None:
    load(two, database_path(two))
    asked = "select trace_id, expert_ids[1] as first, dataset from tape.routing join traces using (trace_id) where position = 1"
    assert query(database_path(two), asked, two).sort("trace_id").rows() == [(name, 1, "hand") for name in sorted(TWO)]
    refuses("holds scores", query, database_path(two), "from tape.scores", two, error=BadQuery)
    file = two.trace_path("second", "routing", "part-00000.parquet")
    with pytest.raises(BadQuery, match="disabled by configuration"):
        query(database_path(two), f"from tape.passes, read_parquet('{file}')", two)
    Path(file).write_bytes(Path(file).read_bytes()[:-1])
    refuses("changed since it was written", query, database_path(two), "from tape.routing", two, error=BadTape)
    with pytest.raises(BadQuery, match="tokentape pull --from memory://far"):
        query(database_path(two), "from tape.routing", Store("memory://far"))

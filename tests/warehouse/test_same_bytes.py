"""Views `baselines` and `pareto`: methods of other expert formats meet where their caches have the same bytes, within 1 %."""

from pathlib import Path

import pyarrow as pa
import pytest
from small_store import result_tables

from tokentape.warehouse.load import database_path, load
from tokentape.warehouse.results import write_replays
from tokentape.warehouse.sql import query
from tokentape.warehouse.tape import Store


@pytest.fixture
def with_sliced(small: Store) -> Path:
    """SliceMoE beside an LRU of 200 bytes: half a percent larger, faster and thriftier; and one that is 2 % larger."""
    for key, capacity_bytes in (("near", 201), ("far", 204)):
        made = result_tables(key, "slicemoe", 2, 0.9, 0.5, 0.5, expert_format="MAT84", capacity_bytes=capacity_bytes)
        of = pa.array(["MSB slice lookups", None, None, None], pa.string())
        write_replays(small, made | {"metrics": made["metrics"].set_column(5, "denominator", of)})
    return load(small, database_path(small)).database


def test_a_sliced_replay_has_the_lru_and_the_front_of_its_bytes_beside_it(with_sliced: Path) -> None:
    rows = query(
        with_sliced,
        "select capacity_bytes, expert_format, lru_expert_format, lru_hit_frac, lru_decode_step_s, belady_hit_frac, "
        "hit_denominator, gap_captured_frac from baselines where policy = 'slicemoe' order by 1",
    ).rows()
    # Shares of slices and shares of experts have no gap between them.
    assert rows == [
        (201, "MAT84", "int4", 0.2, 3.0, 0.6, "MSB slice lookups", None),
        (204, "MAT84", None, None, None, None, "MSB slice lookups", None),
    ]
    rows = query(with_sliced, "select capacity_bytes, policy, expert_format from pareto where capacity_bytes > 150 order by all")
    assert rows.rows() == [(201, "slicemoe", "MAT84"), (204, "slicemoe", "MAT84")]


def test_a_replay_is_held_against_the_lru_of_its_own_format_first(small: Store) -> None:
    write_replays(small, result_tables("other", "lru", 2, 0.7, 1.0, 1.0, expert_format="fp8"))
    database = load(small, database_path(small)).database
    rows = query(
        database,
        "select policy, lru_hit_frac, round(gap_captured_frac, 9) from baselines "
        "where capacity_bytes = 200 and expert_format = 'int4'",
    )
    assert set(rows.rows()) == {("lru", 0.2, 0.0), ("lfu", 0.2, 0.5), ("random", 0.2, -0.25), ("belady", 0.2, 1.0)}

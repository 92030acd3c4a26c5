"""A small store by hand: one tape whose summaries can be counted on fingers, and replays with round numbers."""

import shutil

import pytest
from small_store import result_tables, write_tape

from tokentape.warehouse.results import write_replays
from tokentape.warehouse.tape import Store


@pytest.fixture(scope="session")
def small_template(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One tape; LRU, LFU, random and Belady at two capacities. At 2 experts LFU beats random in both time and energy."""
    store = Store(str(tmp_path_factory.mktemp("template") / "store"))
    write_tape(store)
    cells = [
        ("lru", 1, 0.0, 4.0, 4.0),
        ("belady", 1, 0.5, 2.0, 2.0),
        ("lru", 2, 0.2, 3.0, 2.0),
        ("lfu", 2, 0.4, 2.0, 3.0),
        ("random", 2, 0.1, 3.5, 3.5),
        ("belady", 2, 0.6, 1.0, 1.0),
    ]
    for i, cell in enumerate(cells):
        write_replays(store, result_tables(f"r{i}", *cell))
    return store


@pytest.fixture
def small(small_template: Store, store: Store) -> Store:
    """A copy that a test may change."""
    shutil.copytree(small_template.root, store.root)
    return store

"""Tapes between stores: the same bytes, compared on both sides; what was stopped goes on."""

from pathlib import Path

import pytest
from refusing import refuses
from small_store import TRACE

from tokentape.warehouse.tape import BadTape, Store
from tokentape.warehouse.transfer import transfer


@pytest.fixture
def far() -> Store:
    store = Store("memory://far/tapes")
    if store.exists:
        store.fs.rm(store.root, recursive=True)
    return store


def bytes_of(store: Store) -> dict[str, bytes]:
    paths = store.fs.find(store.trace_path(TRACE))
    return {path.removeprefix(store.root): store.fs.cat_file(path) for path in paths}


def test_there_and_back_are_the_same_bytes(small: Store, far: Store, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    assert transfer(small, TRACE, far, lambda done, of: told.append((done, of)))
    assert bytes_of(far) == bytes_of(small)
    assert far.fs.cat_file(far.path("README.md")) == small.fs.cat_file(small.path("README.md"))
    assert told == [(done, 4) for done in range(5)]
    back = Store(str(tmp_path / "back"))
    assert transfer(far, TRACE, back)
    assert bytes_of(back) == bytes_of(small)
    assert not transfer(far, TRACE, back), "it is there already"
    assert back.open(TRACE).read("routing").equals(small.open(TRACE).read("routing"))


def test_what_was_stopped_is_no_tape_and_goes_on(small: Store, far: Store) -> None:
    def stop(done: int, of: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer(small, TRACE, far, stop)
    assert far.trace_ids() == []
    before = {path: far.fs.modified(path) for path in far.fs.find(far.trace_path(TRACE))}
    assert len(before) == 2
    assert transfer(small, TRACE, far)
    assert {path: far.fs.modified(path) for path in before} == before, "files that are there are not copied again"
    assert bytes_of(far) == bytes_of(small)


def test_another_tape_of_the_name_and_a_damaged_one_are_refused(small: Store, far: Store) -> None:
    path = small.trace_path(TRACE, "routing", "part-00000.parquet")
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[:-1] + b"?")
    refuses("changed since it was written", transfer, small, TRACE, far, error=BadTape)
    assert far.trace_ids() == []
    Path(path).write_bytes(whole)
    assert transfer(small, TRACE, far)
    far.fs.pipe_file(far.trace_path(TRACE, "manifest.json"), b"{}")
    refuses("holds another tape", transfer, small, TRACE, far, error=BadTape)


def test_a_store_that_keeps_other_bytes_is_found_out(small: Store, far: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokentape.warehouse.transfer.shutil.copyfileobj", lambda reader, writer, size: writer.write(b"PAR1PAR1"))
    refuses("transfer the tape again", transfer, small, TRACE, far, error=BadTape)
    assert far.trace_ids() == []

"""A thousand damaged tapes: each is refused in one line or gives the same numbers, without a traceback and in time."""

import contextlib
import json
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from refusing import raising
from tiny_tape import write_tiny

from tokentape.flows.grid import load_hardware
from tokentape.policies.residency import CACHES
from tokentape.replay import experts
from tokentape.replay.result import tables_of
from tokentape.replay.semantics import Semantics
from tokentape.replay.trace import trace_from_tables
from tokentape.warehouse.load import load
from tokentape.warehouse.tape import Store

TRACE, N_TAPES = "tiny-0001", 1000
ODD = [None, True, -1, 0, 3, 2**40, 10**30, 1.5, 1e308, "", "x", [], [0], [-1], [2, 1], {}, {"routing": 1}]
Numbers = list[dict[str, Any]]


class Hang(BaseException):
    """Ten seconds for a tape of 300 rows."""


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, raising(Hang()))
    signal.setitimer(signal.ITIMER_REAL, 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def numbers(store: Store) -> Numbers:
    """All that a replay says of the tape."""
    tape = store.open(TRACE)
    for table in ("requests", "tokens"):
        tape.read(table)
    trace = trace_from_tables(TRACE, tape.geometry, tape.manifest.origin, tape.read("routing"), tape.read("passes"))
    machine, semantics = load_hardware("phone-lpddr5x-ufs4"), Semantics(scope="global")
    size = 6 * tape.geometry.expert_bytes("int8-g32")[0]
    found = experts.replay(trace, CACHES["lru"](), machine, semantics, size, "int8-g32", 0)
    return [row for table in tables_of({"key": found}, "test", {"key": None}).values() for row in table.to_pylist()]


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value in a JSON document."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from leaves(value[key])


def edit(draw: random.Random, root: Path) -> None:
    path = root / "manifest.json"
    fields = json.loads(path.read_text())
    container, key = draw.choice(list(leaves(fields)))
    if draw.random() < 0.2 and isinstance(container, dict):
        del container[key]
    else:
        container[key] = draw.choice(ODD)
    path.write_text(json.dumps(fields, indent=1, sort_keys=True))


def on_bytes(change: Callable[[random.Random, bytearray], Any]) -> Callable[[random.Random, Path], None]:
    def mutate(draw: random.Random, root: Path) -> None:
        path = draw.choice(sorted(p for p in root.rglob("*") if p.is_file()))
        data = bytearray(path.read_bytes())
        change(draw, data)
        path.write_bytes(data)

    return mutate


def flip(draw: random.Random, data: bytearray) -> None:
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def splice(draw: random.Random, data: bytearray) -> None:
    """Other bytes in the place of some, more bytes between them, or the end cut off."""
    at = draw.randrange(len(data))
    n_gone, n_new = draw.choice(((16, 16), (0, draw.randrange(1, 40)), (len(data), 0)))
    data[at : at + n_gone] = draw.randbytes(n_new)


def swap(draw: random.Random, root: Path) -> None:
    """Two files, or the first in both places."""
    both = draw.sample(sorted(root.rglob("*.parquet")), 2)
    one, other = (path.read_bytes() for path in both)
    both[1].write_bytes(one)
    both[0].write_bytes(draw.choice((one, other)))


def lose(draw: random.Random, root: Path) -> None:
    draw.choice(sorted(root.rglob("*.parquet"))).unlink()


MUTATIONS = (on_bytes(flip), *[on_bytes(splice)] * 3, edit, *[swap] * 2, lose)


def outcome(store: Store) -> Numbers | None:
    """None: refused in one line."""
    try:
        with in_time():
            return numbers(store)
    except (ValueError, OSError) as error:
        if len(str(error).splitlines()) != 1:
            raise AssertionError("not one line") from error
        return None


@pytest.mark.slow
def test_a_thousand_mutated_tapes_never_change_a_number(tmp_path: Path) -> None:
    """Of every fourth the sums are made anew, as by a writer that went wrong: it may change, but not fall over."""
    whole = Store(str(tmp_path / "whole"))
    write_tiny(whole, is_split=True)
    stated, n_refused = numbers(whole), 0
    for seed in range(N_TAPES):
        draw, store = random.Random(seed), Store(str(tmp_path / "mutated"))
        shutil.copytree(whole.root, store.root)
        root, has_sums = Path(store.trace_path(TRACE)), seed % 4 > 0
        draw.choice(MUTATIONS)(draw, root)
        with contextlib.suppress(ValueError, OSError):
            if not has_sums:
                of = store.open(TRACE).manifest
                Path(store.trace_path(TRACE, "manifest.json")).unlink()
                others = of.model_dump(exclude={"trace_id", "tables", "n_shards"})
                store.writer(TRACE).finish(of.tables, of.n_shards, **others)
        found = outcome(store)
        n_refused += found is None
        assert not has_sums or found in (None, stated), seed
        if seed % 20 == 0:
            report = load(store, tmp_path / "warehouse.duckdb")
            assert not has_sums or not report.damaged_tapes or found is None, seed
        shutil.rmtree(store.root)
    assert n_refused > 0.7 * N_TAPES

"""No file makes an importer fail otherwise than by one line, hang, or write another number than the file has."""

import json
import random
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from importer_cases import KINDS, MAX_BYTES, Kind, run_routing, run_sglang, run_vllm
from refusing import raising
from test_import_chats import Words
from test_import_vllm import arrays

from tokentape.capture.importers.chats import import_chats
from tokentape.capture.importers.vllm import import_vllm
from tokentape.warehouse.tape import Store

CORPUS = Path(__file__).resolve().parents[1] / "data" / "imports"
REFUSED = json.loads((CORPUS / "refused.json").read_text())
N_CASES = 2000
MOST_SECONDS = 10


def outcome(kind: Kind, path: Path, store: Store) -> str | None:
    """The line of a refusal, or None for a file that was imported, whose tape must then hold the file's own numbers."""
    try:
        trace_id = kind.run(path, store)
    except (ValueError, OSError) as refusal:
        line = str(refusal)
        assert "\n" not in line, f"more than one line: {line}"
        assert path.parent.name in line, f"no file named: {line}"
        assert len(line) < 600, f"too long: {line}"
        assert store.trace_ids() == store.unfinished_ids() == []
        return line
    assert kind.found(store.open(trace_id)) == kind.expected(path.read_bytes())
    return None


def run_config(path: Path, store: Store) -> str:
    np.savez(path.with_name("one.npz"), **arrays())
    return import_vllm(path.with_name("one.npz"), path, store, MAX_BYTES)


def run_chats(path: Path, store: Store) -> str:
    return import_chats(str(path), store, Words(), "words", 100)


CORPUS_RUNS = {
    "vllm": run_vllm, "sglang": run_sglang, "config": run_config, "routing": run_routing, "chats": run_chats,
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_the_corpus_is_refused_as_it_says(name: str, tmp_path: Path) -> None:
    importer, _, file = name.partition(".")
    words, *text = told if isinstance(told := REFUSED[name], list) else [told]
    path = tmp_path / file
    path.write_bytes(text[0].encode() if text else (CORPUS / name).read_bytes())
    run = CORPUS_RUNS[importer] if importer in CORPUS_RUNS else KINDS[importer].run
    with pytest.raises((ValueError, OSError)) as caught:
        run(path, Store(str(tmp_path / "store")))
    line = str(caught.value)
    by_python = words.split(" | ")  # by Python 3.11, by later ones
    assert any(said in line for said in (by_python[:1] if sys.version_info < (3, 12) else by_python))
    assert "\n" not in line
    assert len(line) < 600
    assert str(tmp_path) in line
    assert not (tmp_path / "store").exists()


def test_every_file_of_the_corpus_is_listed() -> None:
    assert {path.name for path in CORPUS.iterdir()} - {"refused.json"} == {
        name for name, told in REFUSED.items() if isinstance(told, str)
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_generated_files_are_read_right_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    kind, n_imported = KINDS[name], 0
    before = signal.signal(signal.SIGALRM, raising(TimeoutError(f"more than {MOST_SECONDS} s")))
    try:
        for case in range(N_CASES):
            folder = tmp_path / "case"
            folder.mkdir()
            path = folder / kind.file
            path.write_bytes(kind.make(random.Random(f"{name} {case}")))
            signal.alarm(MOST_SECONDS)
            try:
                n_imported += outcome(kind, path, Store(str(folder / "store"))) is None
            except BaseException as error:
                kept = shutil.copy(path, tmp_path / f"case-{case}{''.join(path.suffixes)}")
                raise AssertionError(f"case {case} of {name}, kept at {kept}: {error!r}") from error
            finally:
                signal.alarm(0)
            shutil.rmtree(folder)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert 0.02 * N_CASES < n_imported < 0.98 * N_CASES, f"{n_imported} imported: the cases are too tame or too wild"

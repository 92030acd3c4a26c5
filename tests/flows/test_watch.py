"""Watching: what arrives becomes a tape, its study and pages once; halves, copies and bad files do not; alerts arrive."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import fsspec
import pytest
from command import Cli
from refusing import refuses
from tiny_tape import STUDY

from tokentape.flows import publish
from tokentape.flows.watch import Watch, Watched, post
from tokentape.warehouse.results import run_ids
from tokentape.warehouse.tape import Store

TRACE = Path(__file__).resolve().parents[1] / "data" / "tiny.route.csv"
REQUESTS = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,10,{}\n"
BESIDE = STUDY + '[[policies]]\nname = "belady"\n'


@pytest.fixture
def incoming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to watch; pages are not drawn."""
    monkeypatch.setattr(publish, "write", lambda database, out: Path(out, "index.html"))
    (tmp_path / "small.toml").write_text(BESIDE)
    (tmp_path / "incoming").mkdir()
    return tmp_path / "incoming"


@pytest.fixture
def unpublished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "publish", lambda store, out: "index.html")


def watch(incoming: Path | str, place: Path, **asked: Any) -> Watch:
    watched = Watched(source=str(incoming), studies=(str(place / "small.toml"),), every_s=0, **asked)
    return Watch(watched, str(place / "tape"), str(place / "site"))


def tapes(place: Path) -> list[str]:
    return Store(str(place / "tape")).trace_ids()


class Heard(BaseHTTPRequestHandler):
    """Takes alerts; the first answer is an error, the second points elsewhere."""

    bodies: list[Any]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        self.send_response({1: 503, 2: 302}.get(len(self.bodies), 204))
        self.send_header("Location", "http://localhost:9/")
        self.end_headers()

    def log_message(self, *told: Any) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[str]:
    Heard.bodies = []
    server = HTTPServer(("127.0.0.1", 0), Heard)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/alerts"
    server.shutdown()
    server.server_close()


def test_a_file_becomes_a_tape_its_study_and_an_alert_that_is_not_lost(incoming: Path, tmp_path: Path, hook: str) -> None:
    (incoming / TRACE.name).write_bytes(TRACE.read_bytes())
    first = watch(incoming, tmp_path, alerts=("lru:0.05",), webhook=hook)
    assert first.look()  # seen, and not yet taken: it may grow
    assert tapes(tmp_path) == []
    assert not first.look()  # all is done but the alert, which is kept
    (tape,) = tapes(tmp_path)
    assert len(run_ids(Store(str(tmp_path / "tape")))) == 2
    again = watch(incoming, tmp_path, alerts=("lru:0.05",), webhook=hook)  # stopped and started
    assert not again.look()  # sent nowhere else
    assert again.look()
    assert len(Heard.bodies) == 3
    body = Heard.bodies[-1]
    assert (body["alert"], body["tape"], body["policy"], body["capacity_frac"]) == ("lru:0.05", tape, "lru", 0.5)
    assert body["short_frac"] == pytest.approx(1 - body["hit_frac"] / body["bound_hit_frac"])
    assert 0.05 < body["short_frac"] < 0.2
    assert not again.is_due


def test_nothing_is_taken_twice_and_no_half(incoming: Path, tmp_path: Path, unpublished: None, monkeypatch: Any) -> None:
    watching, file = watch(incoming, tmp_path), incoming / "azure.csv"
    (incoming / ".azure.csv").write_text(REQUESTS.format(1))
    (incoming / "azure.csv.part").write_text(REQUESTS.format(1))
    file.write_text(REQUESTS.format(2))
    watching.look()
    file.write_text(REQUESTS.format(20))  # grows between two looks
    assert [watching.look() for _ in range(2)] == [True] * 2
    assert len(tapes(tmp_path)) == 1
    (incoming / "copy.csv").write_bytes(file.read_bytes())  # a content that is there
    for _ in range(2):
        watching = watch(incoming, tmp_path)
        watching.once()
    assert len(tapes(tmp_path)) == 1
    get = watching.fs.get_file

    def growing(path: str, copy: str) -> None:
        get(path, copy)
        with Path(path).open("a") as more:
            more.write("2023-11-16 18:17:04.9799600,10,5\n")

    file.write_text(REQUESTS.format(3))
    with monkeypatch.context() as patch:
        patch.setattr(watching.fs, "get_file", growing)
        watching.once()
    assert len(tapes(tmp_path)) == 1  # as it was read it grew
    watching.once()
    assert len(tapes(tmp_path)) == 2  # a file that changed is a tape of its own
    assert watching.bad == watch(file, tmp_path).once() == []  # a file alone is watched too, and is the same tape
    assert len(tapes(tmp_path)) == 2
    file.write_text(REQUESTS.format(4))
    assert (watch(file, tmp_path).once(), len(tapes(tmp_path))) == ([], 3)


def test_a_bad_file_is_told_once_and_stops_nothing(incoming: Path, tmp_path: Path, unpublished: None, tokentape: Cli) -> None:
    (incoming / "a.csv").write_bytes(TRACE.read_bytes()[:3000])
    (incoming / "b.txt").write_text("hello\n")
    (incoming / "c.csv").write_text(REQUESTS.format(2))
    done = tokentape("watch", str(incoming), "--once", "--every", "0")
    assert done.code == 2
    assert f"{incoming / 'a.csv'}: the last line is cut off (it has no line end); record or download the file again\n" in done.err
    assert f"{incoming / 'b.txt'}: no known format" in done.err
    assert done.out.strip() == tapes(tmp_path)[0]
    done = tokentape("watch", str(incoming), "--once", "--every", "0")
    assert (done.code, done.out) == (0, "")
    assert "cut off" not in done.err


def test_a_damaged_state_is_named_and_without_it_the_same_tapes_come(incoming: Path, tmp_path: Path, unpublished: None) -> None:
    (incoming / "azure.csv").write_text(REQUESTS.format(2))
    watching = watch(incoming, tmp_path)
    watching.once()
    for told in ("[]", '{"files": []}', '{"files', "[" * 100_000, "\udcff"):
        Path(watching.path).write_bytes(told.encode(errors="surrogateescape"))
        refuses(f"{watching.path}: damaged; remove it, and what lies in .*incoming is taken", watch, incoming, tmp_path)
    Path(watching.path).unlink()
    assert (watch(incoming, tmp_path).once(), len(tapes(tmp_path))) == ([], 1)


def test_what_cannot_be_read_or_written_now_is_tried_again(incoming: Path, tmp_path: Path, monkeypatch: Any) -> None:
    (incoming / "azure.csv").write_text(REQUESTS.format(2))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    watching, fails = watch(incoming, tmp_path), iter([True, True, False])

    def broken(*asked: str) -> str:
        if next(fails):
            raise OSError("the disk is full")
        return "index.html"

    monkeypatch.setattr(publish, "publish", broken)
    assert watching.once() == []
    assert next(fails, None) is None
    (incoming / "more.csv").write_text(REQUESTS.format(3))
    monkeypatch.setattr(publish, "publish", lambda *asked: (_ for _ in ()).throw(OSError("the disk is full")))
    assert "not all could be" in watching.once()[-1]
    monkeypatch.setattr(publish, "publish", lambda *asked: "index.html")
    assert watch(incoming, tmp_path).is_due  # the tape whose pages are missing


def test_a_named_importer_and_a_store_of_objects(tmp_path: Path, unpublished: None) -> None:
    (tmp_path / "small.toml").write_text(STUDY)
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/watched/trace.csv", b"when,tokens_in,tokens_out\n1,10,3\n")
    watching = watch("memory://watched", tmp_path, form="requests --arrival when --prompt tokens_in --output tokens_out")
    assert watching.once() == []
    assert len(tapes(tmp_path)) == 1


class Busy(SimpleHTTPRequestHandler):
    """Serves a folder; a third of its answers are that it is busy."""

    drawn = random.Random(0)
    n_gets = 0

    def send_head(self) -> Any:
        Busy.n_gets += self.command == "GET"
        return super().send_head() if self.drawn.random() > 0.3 else self.send_error(503)

    def log_message(self, *told: Any) -> None:
        pass


def test_a_log_at_an_address_is_taken_as_it_grows(incoming: Path, tmp_path: Path, unpublished: None, monkeypatch: Any) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    server = HTTPServer(("127.0.0.1", 0), partial(Busy, directory=str(incoming)))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    source = f"http://127.0.0.1:{server.server_port}/azure.csv"
    assert "not all could be read" in watch(source, tmp_path).once()[-1]  # nothing is there
    for n in (1, 2):
        with (incoming / "azure.csv").open("a") as log:
            log.write(REQUESTS.format(n)[REQUESTS.find("2023") * (n > 1) :])
        watching = watch(source, tmp_path)
        assert any(watching.look() and len(tapes(tmp_path)) == n for _ in range(30))
    assert watching.bad == []
    Busy.n_gets = 0
    for _ in range(10):
        watching.look()
    assert Busy.n_gets < 10  # those of headers where it was busy; the log is not read again
    server.shutdown()
    server.server_close()


def test_ctrl_c_ends_a_watch_and_an_alert_that_is_not_taken_says_so(incoming: Path, tokentape: Cli, monkeypatch: Any) -> None:
    monkeypatch.setattr(Watch, "look", lambda watching: os.kill(os.getpid(), signal.SIGINT))
    done = tokentape.ok("watch", str(incoming))
    assert len(done.err.splitlines()) == 1
    refuses("alert not delivered", post, "http://127.0.0.1:9/", {}, error=OSError)

"""`tokentape watch`: files that arrive in a folder or an object store become tapes, tapes their studies, pages and alerts.

A file is taken when two looks find it alike, as a copy that it is compared with once more: no half of one becomes a tape. What
was done stands in the store, watch/<hash>.json. Nothing here knows of Prefect: flows/pipeline.py gives `Watch` other steps.
"""

import hashlib
import json
import re
import shlex
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import typer
from pydantic import BaseModel, Field

from tokentape.flows import publish, study, study_run
from tokentape.flows.commands.imports import importer_of
from tokentape.flows.console import note, percent
from tokentape.policies import registry
from tokentape.policies.names import refuse_unknown
from tokentape.policies.resolve import resolve
from tokentape.warehouse.sums import tags_of
from tokentape.warehouse.tape import Store, located

BOUND = "belady"
UNFINISHED = (".part", ".partial", ".tmp", ".crdownload", ".swp", "~")  # endings of what is renamed once it is whole
NETWORK = {"HTTPClientError", "ClientError"}  # what botocore and aiohttp raise that is no OSError
HERE = ("localhost", "127.0.0.1", "::1")
AGAIN_S = (1.0, 2.0, 4.0)  # until --once tries again what could not be read, written or posted
LONGEST_WAIT_S, POST_TIMEOUT_S = 300.0, 10.0


class Watched(BaseModel):
    """What is watched, and what is done with what arrives."""

    source: str = Field(description="A folder, a file, or an fsspec URI of one.")
    form: str = Field(default="", description="What `tokentape import` is told of every file; found by what is in it if empty.")
    studies: tuple[str, ...] = Field(default=("glance",), description="Grids to run on new tapes, by name or path.")
    alerts: tuple[str, ...] = Field(default=(), description="POLICY:SHARE, for example lru:0.2.")
    webhook: str = Field(default="", description="Where alerts are posted; nowhere if empty.")
    webhook_anywhere: bool = Field(default=False, description="The webhook may be on another machine.")
    every_s: float = Field(default=5.0, ge=0, description="Seconds between looks; a file is taken when two find it alike.")


class Watch:
    """One source, watched. bad: what went wrong for good, a line each. Raises ValueError on bad input.

    state: by path, how a file looked that was taken (`files`); by SHA-256, the tape of a content, none of a bad one (`contents`);
    tapes without studies and pages yet (`left`); alerts to be posted (`unsent`).
    """

    def __init__(self, watched: Watched, store: str | None, site: str) -> None:
        self.watched, self.store, self.site = watched, Store(store), site
        self.fs, self.root = located(watched.source)
        self.uri = str(self.fs.unstrip_protocol(self.root))
        if self.uri.startswith("file:") and not self.fs.exists(self.root):
            raise ValueError(f"{watched.source}: no such folder or file; make it, or check the name")
        host = urlsplit(watched.webhook).hostname
        if watched.webhook and not (host and (host in HERE or watched.webhook_anywhere)):
            raise ValueError(
                f"--webhook: {host or 'it'} is not this machine (http://localhost:8080); others need --webhook-anywhere"
            )
        if words := shlex.split(watched.form):
            command_of("import", words[0]).make_context("tokentape import", [*words[1:], "FILE"])  # which says what is wrong
        for name in watched.studies:
            study_run.check(name, None, traces=("those that arrive",))
        self.alerts = [_alert(text, watched.studies) for text in watched.alerts]
        asked = hashlib.sha256(f"{self.uri} {watched.form}".encode()).hexdigest()[:16]
        self.path = self.store.path("watch", f"{asked}.json")
        self.bad, self.state, self._looks = list[str](), self._read(), dict[str, str]()

    def step(self, name: str, work: Callable[[], Any], command: str, tag: str) -> Any:
        """Does a piece of work. command: that does it again."""
        return work()

    def finish(self, studies: tuple[str, ...], tapes: tuple[str, ...]) -> str:
        """Runs studies on tapes and writes the pages; the index page. Raises ValueError where a study cannot be."""
        for name in studies:
            study_run.run_study(name, self.store, traces=tapes)
        return publish.publish(self.store.absolute, self.site)

    def tell(self, alert: Mapping[str, Any]) -> None:
        """Beside the log and the webhook."""

    def run(self) -> None:
        """Looks again and again; after one that failed it waits twice as long."""
        note(f"watching {self.uri} for {self.store.absolute}; Ctrl-C stops it")
        wait = self.watched.every_s
        while True:
            wait = self.watched.every_s if self.look() else min(2 * max(wait, 1.0), LONGEST_WAIT_S)
            time.sleep(wait)

    def once(self) -> list[str]:
        """Takes what lies there; what went wrong."""
        with suppress(OSError):
            self.new()
        for wait in (self.watched.every_s, *AGAIN_S):
            time.sleep(wait)
            if self.look():
                return self.bad
        self._failed("not all could be read, written or posted; the same command goes on from here")
        return self.bad

    def look(self) -> bool:
        """Takes what is new and makes what is left to make; whether all could be read, written and posted."""
        try:
            with TemporaryDirectory(prefix="tokentape-") as folder:
                for path, stamp in self.new().items():
                    self._take(path, stamp, Path(folder, PurePosixPath(path).name))
            if self.state["left"]:
                self._finish()
            while self.watched.webhook and self.state["unsent"]:
                post(self.watched.webhook, self.state["unsent"][0])
                del self.state["unsent"][0]
                self._save()
        except Exception as error:
            if not isinstance(error, OSError) and NETWORK.isdisjoint(kind.__name__ for kind in type(error).__mro__):
                raise
            note(f"{str(error) or type(error).__name__}; it is tried again")
            return False
        return True

    def new(self) -> dict[str, str]:
        """By path, how a file looks that looked so before and is not taken yet."""
        self.fs.invalidate_cache()
        is_page = self.uri.startswith("http") and not self.uri.endswith("/")  # which a list would be sought in, all of it read
        before, found = self._looks, {self.root: None} if is_page else self.fs.find(self.root, detail=True)
        self._looks = {path: _look(info or self.fs.info(path)) for path, info in found.items() if self._is_wanted(path)}
        return {path: at for path, at in self._looks.items() if before.get(path) == at != self.state["files"].get(path)}

    @property
    def is_due(self) -> bool:
        """Whether a look has something to do, by what the store says now."""
        self.state = self._read()
        return bool(self.new() or self.state["left"] or (self.watched.webhook and self.state["unsent"]))

    def _is_wanted(self, path: str) -> bool:
        """Neither half-written nor our own."""
        ours = tuple(f"{place.rstrip('/')}/" for place in (self.store.root, str(Path(self.site).resolve())))
        is_hidden = any(name.startswith(".") for name in PurePosixPath(path.removeprefix(self.root)).parts)
        return not (is_hidden or path.endswith(UNFINISHED) or path.startswith(ours))

    def _take(self, path: str, stamp: str, copy: Path) -> None:
        """One file, if its content is new too."""
        place = str(self.fs.unstrip_protocol(path)).removeprefix("file://")
        before = self.fs.info(path)  # a listing may tell the same in other words
        try:
            self.fs.get_file(path, str(copy))
        except PermissionError as error:
            self._failed(f"{place}: {error.strerror or error}; let it be read")
            self.state["files"][path] = stamp
            return
        self.fs.invalidate_cache()
        if _look(self.fs.info(path)) != _look(before):
            return  # it grew meanwhile: later
        with copy.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest not in self.state["contents"]:
            form, tape = self.watched.form, None
            again = shlex.join(["tokentape", "watch", place, *(["--from", form] if form else []), "--once"])
            try:
                work = partial(_import, copy, place, form, self.store.absolute)
                tape = self.step(f"import {copy.name}", work, again, f"sum:{digest[:8]}")
            except ValueError as error:
                self._failed(str(error))
            self.state["contents"][digest] = tape
            self.state["left"] += [tape] if tape else []
        copy.unlink()
        self.state["files"][path] = stamp
        self._save()

    def _finish(self) -> None:
        """Studies on the new tapes, the pages, and the bounds that are crossed."""
        tapes = tuple(one.trace_id for one in self.store.tapes()[0] if one.trace_id in self.state["left"] and one.has("routing"))
        try:
            page = self.finish(self.watched.studies if tapes else (), tapes)
        except ValueError as error:
            self._failed(str(error))
            page = self.finish((), ())
        for policy, share in self.alerts if tapes else ():
            for row in publish.answered(self.store, "short_of_bound", policy=policy, share=share, tapes=tapes).to_dicts():
                body = {"alert": f"{policy}:{share:g}", **row, "store": self.store.absolute}
                hits, bound, size = (percent(row[of], ".1f") for of in ("hit_frac", "bound_hit_frac", "capacity_frac"))
                note(f"alert {body['alert']}: {row['tape']}: hits {hits}, the bound {bound}, at {size} {row['scope']}")
                self.tell(body)
                self.state["unsent"] += [body] if self.watched.webhook else []
        self.state["left"] = []
        self._save()
        note(f"pages: {page}")

    def _failed(self, reason: str) -> None:
        self.bad.append(reason)
        note(reason)

    def _read(self) -> dict[str, Any]:
        empty: dict[str, Any] = {"files": {}, "contents": {}, "left": [], "unsent": []}
        kept = self.store.fs.cat_file(self.path) if self.store.fs.exists(self.path) else b"{}"
        with suppress(ValueError, TypeError, RecursionError):
            state = {**empty, **json.loads(kept)}
            if all(isinstance(state[name], type(of)) for name, of in empty.items()):
                return state
        raise ValueError(f"{self.path}: damaged; remove it, and what lies in {self.uri} is taken anew, into the same tapes")

    def _save(self) -> None:
        self.store.write_bytes(self.path, json.dumps(self.state).encode())


def _look(info: Mapping[str, Any]) -> str:
    """Size and times of a file, or an object's tag."""
    return " ".join(map(str, (info.get("size"), *tags_of(info))))


def _import(copy: Path, place: str, form: str, store: str) -> str:
    """The tape of a copy, whose errors name the file itself."""
    try:
        name, *words = shlex.split(form) or [importer_of(copy)]
        return str(command_of("import", name).main([*words, str(copy), "--store", store], name, standalone_mode=False))
    except ValueError as error:
        raise ValueError(str(error).replace(str(copy), place)) from error


def command_of(*names: str) -> Any:
    """A command of the command line, by its words. Raises ValueError for one that is not there."""
    from tokentape.flows.cli import app  # whose commands import this

    found: Any = typer.main.get_command(app)
    for name in names:
        refuse_unknown("command", name, found.commands)
        found = found.commands[name]
    return found


def _alert(text: str, studies: tuple[str, ...]) -> tuple[str, float]:
    """Policy and share of POLICY:SHARE. Raises ValueError where it is none, or no study replays the policy beside the bound."""
    if not (told := re.fullmatch(r"(.+):(0?\.\d+|0)", text)):
        raise ValueError(f"--alert {text!r} is not POLICY:SHARE with a share below 1, for example lru:0.2")
    policy, share = told.groups()
    policy = str(Path(policy).resolve()) if registry.is_path(policy) else policy
    of_studies = [[resolve("residency", of.name, of.params) for of in study.load(name).policies] for name in studies]
    if not any({policy, BOUND} <= {registry.name_of("residency", of) for of in policies} for policies in of_studies):
        raise ValueError(f"--alert {text}: no study replays {policy} beside {BOUND}; give one that does with --study")
    return policy, float(share)


_Stay = type("_Stay", (urllib.request.HTTPRedirectHandler,), {"redirect_request": lambda *told: None})


def post(url: str, body: Mapping[str, Any]) -> None:
    """One JSON body, to that address and to none that its answer names. Raises OSError where it is not taken."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        urllib.request.build_opener(_Stay).open(request, timeout=POST_TIMEOUT_S).close()
    except (OSError, HTTPException) as error:
        raise OSError(f"alert not delivered: {error or type(error).__name__}") from error

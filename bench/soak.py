"""Every command that writes, disturbed again and again in a folder and on S3: `make soak`, or `python -m bench.soak`.

A round makes a store command by command. Each is killed (at its n-th write or request, or after some time), meets a full disk, a
second writer or a clock that jumps; `check` may then find what is unfinished, nothing else. The command run again has to finish,
and in the end store, warehouse and pages have to be those of a round without disturbance, byte for byte but for times. Then a bit
is flipped: `check` has to name its file, and no number may change. Hostile files have to be refused in one line, or read right.
Commands run in forks of a process that has imported them and done nothing else, one such process per store. The last lines are
a table and a JSON object.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.object_store import KEY, SECRET, s3_server
from tokentape.dashboards import site
from tokentape.flows.cli import main as tokentape
from tokentape.flows.planned import COSTS, cpu_per_run
from tokentape.warehouse import check as checker
from tokentape.warehouse.load import database_path
from tokentape.warehouse.sql import connect
from tokentape.warehouse.tape import Store

ROOT = Path(__file__).resolve().parents[1]
MACHINE = "phone-lpddr5x-ufs4"
STUDY = f"""
question = "which?"
capacities = ["25%", "50%"]
scopes = ["global"]
hardware = ["{MACHINE}"]
policies = [{{name = "lru"}}, {{name = "belady"}}]
"""
COMMANDS = {  # in an order in which each finds what it needs; {copy}: another store
    "capture": "capture --model embedded --dataset math --max-requests 4 --max-prompt-tokens 16 --max-new-tokens 4 --resume",
    "import": f"import bigmoe {ROOT}/tests/data/tiny.route.csv",
    "synthesize": "synthesize --like DeepSeek-V2-Lite --requests 2 --prompt 8 --output 4 --no-scores",
    "replay": f"replay tiny-route --policy lru --capacity 50% --scope global --hardware {MACHINE}",
    "study": "study small.toml",
    "compare": f"compare deepseek-v2 --systems layered --machine {MACHINE} --budget 50%",
    "push": "push tiny-route --to {copy}",
    "pull": "pull tiny-route --from {copy} --store back",
    "load": "load",
    "site": "site",
    "site again": "site",  # which tells what is new since
}
IMPORTED = {  # besides what this file names: what commands would import, so that a fork need not
    "capture": ("capture.run",),
    "import": ("capture.importers.bigmoe",),
    "synthesize": ("capture.synthetic.tape", "flows.commands.synthesize"),
    "replay": ("flows.grid", "policies.residency", "warehouse.contradictions"),
    "study": ("flows.study_run",),
    "compare": ("flows.system_grid", "flows.system_runs", "policies.sliced"),
}
LATER = ("numba", "pandas")  # what they import as they run
PAGE = "experts.html"  # beside the index; all are written alike
AGAIN = ("replay", "study", "compare", "load")  # what brings results back that `check --repair` removed
LEFT = ("litter", "incomplete", "unfinished")  # findings of `check` that a killed command may leave
KINDS = ("killed", "killed", "killed", "killed", "full disk", "two writers", "clock jumps")
JUMPS_S = (-3e8, -3600.0, 3600.0, 3e8)
HANG_S = 600.0  # on a machine that others keep busy too
BUG = 70  # exit code of a command that raised what it does not explain


class Lost(Exception):
    """Something was lost, believed or not explained."""


@dataclass(frozen=True)
class World:
    """Where commands run: a folder, a store, another store to copy to."""

    folder: Path
    store: str
    copy: str


@dataclass(frozen=True)
class Ended:
    """How a fork ended: its exit code, or a signal as a negative number; its stderr, ticks and CPU seconds; what its job said."""

    code: int
    err: str
    ticks: int
    cpu_s: float
    said: Any

    def checked(self, *codes: int) -> Any:
        """What its job said. Raises Lost where it ended with none of the codes, or was refused in more than one line."""
        refused = [line for line in self.err.splitlines() if line.startswith("tokentape: ")]
        if self.code not in codes or (self.code == 2 and len(refused) != 1):
            raise Lost(f"exit code {self.code}: {self.err[-600:]}")
        return self.said


@dataclass
class Disturbance:
    """What befalls a fork: killed at a tick or after CPU seconds, no file larger than limit_bytes, a clock that is off."""

    at_tick: int | None = None
    after_s: float = 0.0
    limit_bytes: int = resource.RLIM_INFINITY
    clock_s: float = 0.0
    ticks: int = field(default=0, init=False)

    def tick(self) -> Any:
        self.ticks += 1
        if self.ticks == self.at_tick:
            os.kill(os.getpid(), signal.SIGKILL)

    def befall(self) -> None:
        """In the fork. A tick is a write to the disk or a request to S3, before and after it."""
        events = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}

        def see(event: str, told: tuple[Any, ...]) -> None:
            is_write = event == "open" and isinstance(told[2], int) and told[2] & (os.O_WRONLY | os.O_RDWR)
            if event in events or is_write or (event == "ctypes.dlsym" and told[1] == "renameat2"):
                self.tick()

        sys.addaudithook(see)
        sync, now = os.fsync, time.time
        os.fsync = lambda handle: self.tick() or sync(handle)
        time.time = lambda: now() + self.clock_s
        if "AWS_ENDPOINT_URL" in os.environ:
            from s3fs import S3FileSystem

            call = S3FileSystem._call_s3

            async def counted(*told: Any, **named: Any) -> Any:
                self.tick()
                answer = await call(*told, **named)
                self.tick()
                return answer

            S3FileSystem._call_s3 = counted
        signal.setitimer(signal.ITIMER_PROF, self.after_s)  # which kills, since nobody listens
        signal.setitimer(signal.ITIMER_REAL, HANG_S)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit_bytes, resource.RLIM_INFINITY))


def start(world: World, job: Callable[[], object], disturbed: Disturbance) -> Callable[[], Ended]:
    """Starts a job in a fork; the function waits for it. What the job returns is said as JSON."""
    (err, err_to), (told, told_to) = os.pipe(), os.pipe()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # that threads are at work
        pid = os.fork()
    if pid:
        os.close(err_to)
        os.close(told_to)
        return lambda: _ended(pid, err, told)
    said, code = None, BUG
    try:
        os.dup2(err_to, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.close(err_to)
        os.chdir(world.folder)
        os.environ["TOKENTAPE_STORE"] = world.store
        disturbed.befall()
        said, code = job(), 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc(limit=-5)
    for timer in (signal.ITIMER_REAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)
    os.closerange(1, 3)
    with open(told_to, "w") as pipe:
        json.dump([disturbed.ticks, time.process_time(), said], pipe)
    os._exit(code)


def _ended(pid: int, err: int, told: int) -> Ended:
    with open(err, errors="replace") as shown, open(told) as said:
        texts = shown.read(), said.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == -signal.SIGALRM:
        raise Lost(f"still running after {HANG_S:.0f} s")
    return Ended(code, texts[0], *json.loads(texts[1] or "[0, 0, null]"))


def command(world: World, name: str, **disturbed: Any) -> Callable[[], Ended]:
    words = COMMANDS.get(name, name).format(copy=world.copy).split()
    return start(world, lambda: tokentape(words), Disturbance(**disturbed))


def survey(world: World) -> dict[str, str]:
    """Everything that was made, by its place: a sum of its content, times left out: of what runs took only
    that it can be read. Raises Lost for a credential in it."""
    found, data = dict[str, str](), dict[str, bytes]()
    for name, uri in (("store", world.store), ("copy", world.copy), ("back", "back")):
        store = Store(uri)
        places = {path.removeprefix(store.root).lstrip("/"): path for path in store.fs.find(store.root)}
        data |= {f"{name}/{place}": store.fs.cat_file(path) for place, path in places.items() if ".duckdb" not in place}
        cpu_per_run(store)
        found |= {f"{name} {tape.trace_id}": tape.content_sha256 for tape in store.readable()}
    data |= {str(path): path.read_bytes() for path in Path("site").rglob("*") if path.is_file()}
    for place in (place for place, content in data.items() if SECRET.encode() in content or KEY.encode() in content):
        raise Lost(f"{place} holds a credential")
    timed = ("manifest.json", *(place for place in data if f"/{COSTS}/" in place))
    found |= {place: hashlib.sha256(of).hexdigest() for place, of in data.items() if not place.endswith(timed)}
    database = database_path(Store(world.store))
    if database.exists():
        with connect(database) as warehouse:
            for (table,) in warehouse.execute("select table_name from duckdb_tables()").fetchall():
                when = {"traces": "created_utc", "runs": "written"}.get(table)
                rows = f"select * exclude ({when}) from {table}" if when else f"from {table}"
                found[f"rows of {table}"] = str(warehouse.execute(f"select count(*), sum(hash(t)) from ({rows}) t").fetchone())
    return found


def check(world: World, *allowed: str) -> list[str]:
    """What `tokentape check` finds in the store, a line each. Raises Lost for a kind that is not `allowed`, "all" for any."""

    def findings() -> list[tuple[str, str, str]]:
        store = Store()
        return [(f.kind, f.path, f.what) for f in checker.check(store, database_path(store))] if store.exists else []

    found = start(world, findings, Disturbance())().checked(0)
    for kind, path, what in found if "all" not in allowed else ():
        if kind not in allowed:
            raise Lost(f"check: {kind}: {path}: {what}")
    return [" ".join(finding) for finding in found]


def flip(path: str, at: float) -> str:
    """Flips a bit of a file of the store, at a share of its length; what the file was, as hexadecimal digits."""
    fs = Store().fs
    old = fs.cat_file(path)
    new, bit = bytearray(old), int(at * 8 * len(old))
    new[bit // 8] ^= 1 << bit % 8
    fs.pipe_file(path, bytes(new))
    return str(old.hex())


def hostile(seed: float, number: int, uri: str) -> None:
    """Spoiled files of importers: each read right or refused in one line, in time (tests/capture/test_import_fuzz.py)."""
    sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "capture")]
    fuzz, drawn = importlib.import_module("test_import_fuzz"), random.Random(seed)
    for name in range(number):
        kind, folder = drawn.choice(list(fuzz.KINDS.values())), Path(f"hostile-{name}")
        folder.mkdir()
        (folder / kind.file).write_bytes(kind.make(drawn))
        fuzz.outcome(kind, folder / kind.file, Store(f"{uri}-{folder}"))


@dataclass
class Soak:
    """On one kind of store. usual: what each command took in an undisturbed round; reference: what that made."""

    kind: str
    root: Path
    names: tuple[str, ...]
    usual: dict[str, Ended] = field(default_factory=dict)
    reference: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    losses: int = 0

    def world(self, name: str) -> World:
        folder = self.root / f"{self.kind}-{name}"
        folder.mkdir()
        (folder / "small.toml").write_text(STUDY)
        is_s3 = self.kind == "S3"
        return World(folder, f"s3://soak/{name}", f"s3://soak/{name}-copy") if is_s3 else World(folder, "tape", "copy")

    def undisturbed(self) -> None:
        world = self.world("reference")
        for name in self.names:
            self.usual[name] = command(world, name)()
            self.usual[name].checked(0)
        check(world)
        self.reference = start(world, partial(survey, world), Disturbance())().checked(0)
        shutil.rmtree(world.folder)

    def rounds(self, first: int, last: int, seed: int, until: float) -> Soak:
        """As many of these as there is time for, at least one; itself."""
        for number in range(first, last):
            self.round(number, seed, until)
            if time.monotonic() > until:
                break
        return self

    def round(self, number: int, seed: int, until: float) -> None:
        """One that is not over by the time `until` ends behind the command that it is at, and is not counted as a round."""
        rng, world, at = random.Random(f"{seed} {self.kind} {number}"), self.world(str(number)), "start"
        try:
            for at in self.names:
                self.disturb(world, at, rng)
                command(world, at)().checked(0)
                if time.monotonic() > until:
                    check(world, *LEFT)
                    return
            at = "end"
            check(world)
            self.compare(world)
            at = "flipped bit"
            self.rot(world, rng)
            at, n_files = "hostile files", rng.randint(5, 15)
            self.counts[at] += n_files
            start(world, partial(hostile, rng.random(), n_files, world.store), Disturbance())().checked(0)
        except Lost as lost:
            self.losses += 1
            print(f"lost: {self.kind}, seed {seed}, round {number}, {at}: {lost}", file=sys.stderr)
        finally:
            shutil.rmtree(world.folder)
        self.counts["rounds"] += 1

    def compare(self, world: World, but: str = "") -> None:
        """Raises Lost where what is there is not what an undisturbed round made."""
        found = start(world, partial(survey, world), Disturbance())().checked(0)
        differ = sorted(place for place in found.keys() | self.reference.keys() if found.get(place) != self.reference.get(place))
        differ = [place for place in differ if not but or but not in place]
        if differ:
            raise Lost(f"{len(differ)} differ: {', '.join(differ[:5])}")

    def disturb(self, world: World, name: str, rng: random.Random) -> None:
        what, usual = rng.choice(KINDS), self.usual[name]
        for _ in range(rng.randint(1, 5) if what == "killed" else 0):
            at_tick = rng.randint(1, usual.ticks) if rng.random() < 0.7 else None
            after_s = 0.0 if at_tick else 1e-3 + rng.random() * usual.cpu_s
            ended = command(world, name, at_tick=at_tick, after_s=after_s)()
            ended.checked(0, -signal.SIGKILL, -signal.SIGPROF)
            self.counts[f"killed: {name.split()[0]}" if ended.code else "ended before its kill"] += 1
            check(world, *LEFT)
        if what == "killed":
            return
        self.counts[what] += 1
        if what == "full disk":
            command(world, name, limit_bytes=int(10 ** rng.uniform(0, 6)))().checked(0, 2)
        elif what == "two writers":
            for wait in [command(world, name), command(world, name)]:
                wait().checked(0)
        else:
            command(world, name, clock_s=rng.choice(JUMPS_S))().checked(0)
            for path in world.folder.rglob("*"):
                os.utime(path, (time.time() + rng.choice(JUMPS_S),) * 2)
        check(world, *LEFT)

    def rot(self, world: World, rng: random.Random) -> None:
        """Flips a bit of a file of a tape or a result; it is named, and nothing is made of it."""
        files = start(world, lambda: Store().fs.find(Store().root), Disturbance())().checked(0)
        path = rng.choice([path for path in files if path.endswith((".parquet", "manifest.json"))])
        old = start(world, partial(flip, path, rng.random()), Disturbance())().checked(0)
        self.counts["flipped bits"] += 1
        found = check(world, "all")
        if not any(path in line for line in found):
            raise Lost(f"a bit of {path} flipped; check finds {found}")
        names, tape = [name for name in AGAIN if name in self.names] or ["ls"], path.partition("trace_id=")[2]
        ended = command(world, rng.choice(names))()
        ended.checked(0, 2)
        if ended.code == 0 and "left out" not in ended.err:
            self.compare(world, but=tape.split("/")[0] if tape else path.rsplit("/", 1)[1])
        if tape:
            start(world, lambda: Store().fs.pipe_file(path, bytes.fromhex(old)), Disturbance())().checked(0)
        else:
            command(world, "check --repair")().checked(0)
        for name in names:
            command(world, name)().checked(0)
        self.compare(world)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=str(__doc__).splitlines()[0])
    parser.add_argument("--minutes", type=float, default=45.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", default="0:", help="first:last of each store; the time may end them sooner")
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--stores", default="folder,S3")
    how = parser.parse_args(arguments)
    kinds, names, (first, _, last) = how.stores.split(","), tuple(how.commands.split(",")), how.rounds.partition(":")
    for module in (*LATER, *(f"tokentape.{module}" for name in names for module in IMPORTED.get(name, ()))):
        importlib.import_module(module)
    site.TOPICS = {PAGE: site.TOPICS[PAGE]}
    until = (began := time.monotonic()) + how.minutes * 60
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        environment = stack.enter_context(s3_server()) if "S3" in kinds else {}
        os.environ.update(environment, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
        nowhere, soaks = World(Path(root), "", ""), [Soak(kind, Path(root), names) for kind in kinds]
        if "S3" in kinds:
            make = lambda: importlib.import_module("s3fs").S3FileSystem().mkdir("soak")  # noqa: E731
            start(nowhere, make, Disturbance())().checked(0)
        gc.freeze()  # which leaves pages shared with forks
        for soak in (soaks[0], *soaks):  # the first time compiles kernels
            soak.undisturbed()
        for soak in soaks[1:]:
            if differ := dict(soak.reference.items() ^ soaks[0].reference.items()):
                raise Lost(f"{soak.kind} and {soaks[0].kind} do not hold the same: {', '.join(sorted(differ))}")
        with ProcessPoolExecutor(len(kinds), get_context("fork")) as pool:
            run = partial(Soak.rounds, first=int(first), last=int(last or 10**9), seed=how.seed, until=until)
            soaks = list(pool.map(run, soaks))
    print("\n".join((f"| | {' | '.join(kinds)} |", "|---|" + "---|" * len(kinds))))
    for name in sorted({name for soak in soaks for name in soak.counts}, key=lambda name: (name != "rounds", name)):
        print(f"| {name} | {' | '.join(str(soak.counts[name]) for soak in soaks)} |")
    print(f"| losses | {' | '.join(str(soak.losses) for soak in soaks)} |")
    said = {soak.kind: {**soak.counts, "losses": soak.losses} for soak in soaks}
    print(json.dumps({"seed": how.seed, "minutes": round((time.monotonic() - began) / 60, 1), **said}))
    return int(any(soak.losses for soak in soaks))


if __name__ == "__main__":
    sys.exit(main())

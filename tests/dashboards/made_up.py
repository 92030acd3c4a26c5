"""Made-up warehouses in the declared schemas. The numbers are smooth formulas, plausible in size and order, and mean nothing."""

import hashlib
import json
import math
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa

from tokentape import warehouse
from tokentape.dashboards.engine import say
from tokentape.dashboards.engine.ask import words_of
from tokentape.dashboards.engine.figures import load
from tokentape.dashboards.engine.pages import Declared
from tokentape.dashboards.shell import Page
from tokentape.warehouse.at_rest import at_rest, metric_defs, view_sql
from tokentape.warehouse.claim_errors import COMPARED
from tokentape.warehouse.sql import connect
from tokentape.warehouse.tables import VIEWS, WAREHOUSE_TABLES, schema

Rows = dict[str, list[dict]]
Adder = Callable[[Rows], None]
MACHINES = {"phone-lpddr5x-ufs4": (0.9, 0.35, 11.0), "workstation-rtx4090-pcie4": (0.11, 0.018, 14.0)}  # ms base, ms per miss, mJ
CAPACITIES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 0.95)
# exponent of hit = capacity ** exponent; smaller is better
POLICIES = {
    "lru": 0.62,
    "lfu": 0.75,
    "lfu-lifetime": 0.7,
    "fifo": 0.72,
    "static": 0.85,
    "random": 0.9,
    "belady": 0.33,
}


@dataclass(frozen=True)
class Tape:
    trace_id: str
    model: str
    dataset: str
    origin: str
    layers: int
    experts: int
    top_k: int
    flags: str = "{}"


CUT = {"top_k_override": {"model": 8, "recorded": 6}, "missing_rows": {"expected": 7488, "missing_by_layer": {"47": 27}}}
TAPES = (
    Tape("embedded-code-0a1b2c3d", "embedded", "code", "captured", 4, 16, 4),
    Tape("embedded-math-4e5f6a7b", "embedded", "math", "captured", 4, 16, 4),
    Tape("qwen3-30b-a3b-q4km-8c9d", "Qwen3-30B-A3B Q4_K_M", "bigmoe", "imported", 48, 128, 6, json.dumps(CUT)),
    Tape("synthetic-zipf-e0f1", "made by </script><script>hostile()</script> & co", "zipf(0.8)", "synthetic", 26, 64, 6),
)

# What the loader's views make of tapes, here made up by themselves.
SUMMARIES = {
    "similarity": "trace_id varchar, layer usmallint, cosine double",
    "locality": "trace_id varchar, layer usmallint, phase varchar, overlap_frac double, chance_frac double",
    "early_popularity": "trace_id varchar, layer usmallint, expert usmallint, n_selected bigint",
}
VIEWS_SQL = (Path(str(warehouse.__path__[0])) / "views.sql").read_text()  # its first statement is a macro
# Curves, and where along them what is told is: the first rate at which a level is lost, from which batch speculation pays.
READ_OFF = json.loads(Path(__file__).with_name("read_off.json").read_text())
NAMES = (*VIEWS, *WAREHOUSE_TABLES, *SUMMARIES)


@cache
def empty_database() -> bytes:
    """The file of a database with every declared table, none of which has a row, and the views that pages read."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "empty.duckdb")
        with duckdb.connect(str(path)) as connection:
            connection.begin()
            for name in WAREHOUSE_TABLES:
                connection.register("declared", schema(name).empty_table())
                connection.execute(f"create table {name} as from declared")
            connection.register("declared", metric_defs().to_arrow())
            connection.execute("insert into metric_defs from declared")
            connection.execute(f"create view claim_answers as {COMPARED}")
            connection.execute(VIEWS_SQL.partition(";")[0])
            for name in VIEWS:
                connection.execute(view_sql(name))
            connection.execute(next(of for of in VIEWS_SQL.split(";\n") if "create view draws" in of))
            for name, columns in SUMMARIES.items():
                connection.execute(f"create table {name} ({columns})")
            connection.commit()
        return path.read_bytes()


def write(path: Path, rows: Rows) -> Path:
    """A database with every declared table, holding `rows` of tables and of views; `metrics` are of replays."""
    path.write_bytes(empty_database())
    with duckdb.connect(str(path)) as connection:
        connection.begin()
        for name in filter(rows.get, NAMES):
            for table, of_table in _at_rest(name, rows[name]).items():
                connection.register("made_up", of_table)
                connection.execute(f"insert into {table} by name from made_up")
        connection.execute("update runs set written = rowid")  # as they come
        connection.commit()
    return path


def _at_rest(name: str, rows: list[dict]) -> dict[str, pa.Table]:
    """The tables that rows lie in."""
    if name in VIEWS:
        return at_rest(name, [_nothing(name) | row for row in rows])
    if name in SUMMARIES:
        return {name: pa.Table.from_pylist(rows)}
    return {name: pa.Table.from_pylist([{"n_early": 0} | row for row in rows], schema=schema(name))}


@cache
def _nothing(name: str) -> dict[str, Any]:
    """What the columns of a view hold where a row does not say: no text, no, 0."""
    zeros = {pa.string(): "", pa.bool_(): False}
    return {column.name: zeros.get(column.type, 0) for column in schema(name) if column.name not in VIEWS[name].nullable}


def catalogue(tape: Tape) -> dict:
    return {
        "trace_id": tape.trace_id, "model_id": tape.model, "dataset": tape.dataset, "origin": tape.origin, "n_requests": 8,
        "n_tokens": 3072, "n_layers": tape.layers, "n_moe_layers": tape.layers, "n_experts": tape.experts, "top_k": tape.top_k,
        "tables": "requests,tokens,routing", "flags": tape.flags, "created_utc": "2026-11-20T12:00:00Z",
    }  # fmt: skip


def add_claim(rows: Rows, ours: float | None = None, **claim: object) -> None:
    """A claim, of a value and to report where it says no more, and what is answered to it, a tenth to both sides."""
    rows["claims"].append({"statistic": "value", "comparator": "=", "unit": "x", "role": "report"} | claim)
    if ours is not None:
        low, high = sorted((0.9 * ours, 1.1 * ours))
        key = {"claim_id": claim["claim_id"], "study": claim["paper"], "mode": "paper"}
        rows["answers"].append(key | {"value": ours, "low": low, "high": high, "how": "computed"})


def add_orderings(rows: Rows, *told: tuple, **of_all: object) -> None:
    """told: study, assertion, margin, mean, low, high, and whether it holds."""
    names = ("study", "assertion", "margin", "mean", "low", "high", "holds")
    at = {"model_id": "embedded", "dataset": "code"} | of_all
    rows["orderings"] += [at | dict(zip(names, row, strict=True)) for row in told]


def replay(tape: Tape, policy: str, machine: str, scope: str, capacity: float, seed: int, key: str, rows: Rows) -> None:
    total, cycle = tape.layers * tape.experts, tape.layers * tape.top_k
    hit = capacity ** POLICIES[policy] - 0.01 * seed - (0.01 if scope == "per-layer" else 0.0)
    if policy in ("lru", "fifo") and scope == "global" and capacity * total < cycle:
        hit = 0.0
    base_ms, miss_ms, millijoule = MACHINES[machine]
    step_s = (base_ms + (1 - hit) * cycle * miss_ms) / 1e3
    joule = (millijoule + (1 - hit) * cycle * miss_ms * 3) / 1e3
    rows["replays"].append({
        "replay_id": key, "trace_id": tape.trace_id, "study": "baselines", "policy": policy, "policy_params": "{}",
        "is_bound": policy.startswith("belady"), "hardware": machine,
        "hardware_sha256": hashlib.sha256(machine.encode()).hexdigest(), "scope": scope,
        "lookup": "atomic", "recency": "list-order", "prefill": "layer-major", "start": "persistent", "overflow": "evict",
        "fetching": "blocking",
        "expert_format": "int4",
        "capacity_bytes": round(capacity * total * 2.4e6), "capacity_experts": capacity * total, "capacity_frac": capacity,
        "cycle_experts": cycle, "seed": seed, "origin": tape.origin, "is_extrapolated": capacity > 0.9,
        "outside_envelope": "cache and other weights do not fit" if capacity > 0.9 else "",
        "assumed": "engine.efficiency_frac, tiers.dram.latency_s",
    })  # fmt: skip
    of = "unique lookups"
    metrics = [
        ("hit_frac_decode", "1", hit, of), ("hit_frac_prefill", "1", hit * 0.4, of), ("hit_frac", "1", hit * 0.9, of),
        ("decode_step_s", "s", step_s, None), ("decode_step_p99_s", "s", step_s * 1.7, None),
        ("decode_tokens_per_s", "1/s", 1 / step_s, None), ("decode_energy_j_per_token", "J", joule, None),
    ]  # fmt: skip
    for name, unit, value, denominator in metrics:
        ranged = unit in ("s", "J")
        band = {"low": value * 0.8, "high": value * 1.3} if ranged else {"low": None, "high": None}
        rows["metrics"].append({"run_id": key, "metric": name, "value": value, "denominator": denominator, **band})


def curve(tape: Tape, scope: str, rows: Rows) -> None:
    """Hits of every capacity: nothing below one cycle in a global cache, then rising to 95 %."""
    key = next(
        r["replay_id"] for r in rows["replays"]
        if r["trace_id"] == tape.trace_id and r["scope"] == scope and r["policy"] == "lru"
    )  # fmt: skip
    total, cycle = tape.layers * tape.experts, tape.layers * tape.top_k if scope == "global" else 0
    for capacity in range(1 if scope == "global" else tape.layers, total + 1, 1 if scope == "global" else tape.layers):
        share = 0.95 * (1 - math.exp(-4 * max(0, capacity - cycle) / total))
        n_hits = round(1e5 * share)
        rows["lru_curves"].append(
            {
                "replay_id": key,
                "capacity_experts": float(capacity),
                "n_lookups": 100_000,
                "n_hits": n_hits,
                "hit_frac": n_hits / 1e5,
            }
        )


def summaries(tape: Tape, rows: Rows) -> None:
    chance = tape.top_k / tape.experts
    told = {"trace_id": tape.trace_id}
    rows["profiles"] += [told | {"metric": "accepted_frac", "x": depth, "value": 1 / depth, "n": 40} for depth in (1, 2)]
    for layer in range(tape.layers):
        rows["profiles"] += [
            told | {"metric": "attention_frac", "layer": layer, "part": part, "value": 0.2, "n": 32}
            for part in ("first", "sinks", "recent", "heavy", "others")
        ]
        for phase, n in product(("prefill", "decode"), (1, 2, 4, 8)):  # less than tokens would touch that draw afresh
            touched = 1 - (1 - chance) ** n**0.8
            made = told | {"metric": "coverage_frac", "layer": layer, "phase": phase, "x": n, "value": touched, "n": 9}
            rows["profiles"].append(made)
        for phase, expert in product(("prefill", "decode"), range(tape.experts)):
            wave = math.sin(expert * (layer + 1.7) * (1.1 if phase == "decode" else 1.0))
            n = round(100 * math.exp(1.2 * wave)) if wave > -0.97 else 0
            if n:
                rows["popularity"].append(
                    {"trace_id": tape.trace_id, "layer": layer, "expert": expert, "phase": phase, "n_selected": n}
                )
        for phase, gain in (("prefill", 0.12), ("decode", 0.22)):
            overlap = chance + gain * (1 + 0.4 * math.sin(layer))
            rows["locality"].append(
                {"trace_id": tape.trace_id, "layer": layer, "phase": phase, "overlap_frac": overlap, "chance_frac": chance}
            )
        rows["similarity"].append({"trace_id": tape.trace_id, "layer": layer, "cosine": 0.85 + 0.1 * math.sin(layer * 2.1)})


def gates(tape: Tape, rows: Rows) -> None:
    """Early selections, critical experts and gate curves: what popularity of decode says, weaker with every rank and tau."""
    tables = ("early_popularity", "critical_experts", "gate_curve")
    for layer in range(tape.layers):
        at = {"trace_id": tape.trace_id, "layer": layer}
        made = (
            [at | {"expert": e, "n_selected": round(9 * (1.1 + math.sin(e * (layer + 1.8))))} for e in range(tape.experts)],
            [
                at | {"tau": tau, "first_position": 16 * n, "bin_tokens": 16, "n_routed": 97, "n_critical": round(97 * critical)}
                for tau, n in product((0.35, 0.5, 0.7), range(32))
                for critical in (1.2 - 1.5 * (tau - 0.35) + 0.2 * math.sin(n + layer),)
            ],
            [
                at | {"phase": phase, "gate_rank": rank, "gate_frac": 0.6 * 0.5**rank, "n_routed": 500}
                for phase, rank in product(("prefill", "decode"), range(1, tape.top_k + 1))
            ],
        )
        for name, found in zip(tables, made, strict=True):
            rows[name] += found


def of_file(page: str) -> Callable[[str], Adder]:
    """What adds the rows that made_up_PAGE.toml has by a name; `null`: none."""
    told = tomllib.loads(Path(__file__).with_name(f"made_up_{page}.toml").read_text(encoding="utf-8"))

    def adder(name: str) -> Adder:
        def add(rows: Rows) -> None:
            for table, parts in told[name].items():
                for of in parts if isinstance(parts, list) else [parts]:
                    each = (of.get("all", {}) | dict(zip(of["columns"], row, strict=True)) for row in of["rows"])
                    rows[table] += [{name: None if value == "null" else value for name, value in row.items()} for row in each]

        add.__name__ = f"add_{name}"
        return add

    return adder


def made(*adders: Adder) -> Rows:
    """The rows that `adders` put into the tables."""
    rows: Rows = defaultdict(list)
    for add in adders:
        add(rows)
    return rows


@contextmanager
def opened(*adders: Adder) -> Iterator[duckdb.DuckDBPyConnection]:
    """A warehouse of such rows, open for reading."""
    with TemporaryDirectory() as folder, connect(write(Path(folder, "rows.duckdb"), made(*adders))) as connection:
        yield connection


def page_of(topic: Declared, *adders: Adder, size: int = 16) -> Page:
    """A page of the rows that `adders` put into the tables."""
    with opened(*adders) as connection:
        return topic.page(connection, size)


def answers_of(topic: Declared, *adders: Adder) -> dict[str, dict[str, str]]:
    """Figure -> selection -> sentence, on such a page."""
    return {figure.name: dict(figure.answers) for figure in page_of(topic, *adders).figures}


def told(page: str) -> dict[tuple[str, str], str]:
    """(figure, what is chosen) -> sentence, of said_PAGE.toml beside this file."""
    said = tomllib.loads(Path(__file__).with_name(f"said_{page}.toml").read_text(encoding="utf-8"))
    return {(figure, chosen): sentence for figure, of in said.items() for chosen, sentence in of.items()}


def assert_says(said: dict[str, dict[str, str]], page: str) -> None:
    """Every sentence is as told; what its `...` stands for is left open."""
    sentences = told(page)
    found = {(figure, chosen): said[figure][chosen] for figure, chosen in sentences}
    forms = {key: re.escape(wanted).replace(re.escape("..."), ".*") for key, wanted in sentences.items()}
    wrong = [key for key in sentences if not re.fullmatch(forms[key], found[key])]
    assert {key: found[key] for key in wrong} == {key: sentences[key] for key in wrong}


def said_of(page: Declared, figure: str, rows: pl.DataFrame, **facts: Any) -> str:
    """The sentence of a page's figure over rows of one's own. facts: what else it names."""
    named = {name: say.Rows(fact) if isinstance(fact, pl.DataFrame) else fact for name, fact in {"rows": rows, **facts}.items()}
    return say.filled(load(page.folder, figure)["answer"], {**words_of(page.folder.name), **named})

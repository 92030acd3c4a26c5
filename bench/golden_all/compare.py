"""What differs between two folders of one part: rows of every table and view, claims, pages, words.

Rows are compared as multisets, exactly; of those that differ in floating-point numbers alone it is told by how much.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

# Columns that differ between two makes of the same numbers, and why.
VOLATILE = {
    "created_utc": "when a manifest was written",
    "written": "in which order results were",
    "hardware_sha256": "of the whole file of a machine, its comments included; its numbers are in hardware_numbers",
}
# Ids that hash sources: (table that says what they stand for, what they stand for). A row is found by these in their place.
IDENTITIES = {
    "replay_id": (
        "replays",
        (
            *("trace_id", "study", "policy", "policy_params", "hardware", "scope", "lookup", "recency", "prefill", "start"),
            *("overflow", "fetching", "expert_format", "capacity_bytes", "seed"),
        ),
    ),
    "point_id": (
        "serving_points",
        (
            *("study", "series", "model_id", "workload", "arrival", "rate_per_s", "scheduler", "policy_params", "hardware"),
            "coverage",
        ),
    ),
}
# Tables that are stored otherwise since results are runs, as they were: how the new side is asked for them.
AS_BEFORE = {
    "metrics": "select m.run_id as replay_id, m.* exclude (run_id), d.unit from metrics m join metric_defs d using (metric) "
    "join runs r using (run_id) where r.view_name = 'replays'",
    "request_metrics": "select run_id as replay_id, * exclude (run_id) from request_metrics",
    "curves": "from lru_curves",
}
# Other ids within words: a SHA-256, a git commit, the id of a result, the end of a tape's name.
HASH = re.compile(r"(?<![0-9a-z])(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{20})(?![0-9a-z])|(?<=[a-z0-9]-)[0-9a-f]{8}(?![0-9a-z])")
# Names of before, wherever they stand, and what they are now.
NAMES = {
    re.compile(r"cxl-ndp|(?<![a-z0-9_-])ndp(?![a-z0-9])"): "cxl_ndp",
    re.compile("layered-prefill"): "layered_prefill",
    re.compile("(?<![a-z0-9_])elastic_"): "elmoe3d_",
    re.compile("(?<![a-z0-9_])sliced_"): "slicemoe_",
}
PAYLOAD = re.compile(r'<script type="application/json" id="page-data">(.*?)</script>', re.S)
SAME = 1e-12  # relative; what lies closer may have been added up in another order
EXAMPLES = 3
Row = dict[str, Any]


@dataclass(frozen=True)
class Finding:
    """What was found at a place of a part. differs: False for what the new side has beside the old, which is listed only."""

    part: str
    where: str
    what: str
    examples: tuple[str, ...] = ()
    differs: bool = True

    def __str__(self) -> str:
        mark = "DIFFERS" if self.differs else "new    "
        return "\n".join((f"{mark} {self.part}: {self.where}: {self.what}", *(f"          {text}" for text in self.examples)))


def compare(part: str, old: Path, new: Path) -> Iterator[Finding]:
    """old, new: folders that Side.make filled."""
    found: list[Finding] = []
    if (old / "store" / "warehouse.duckdb").is_file():
        found += _tables(part, old / "store" / "warehouse.duckdb", new / "store" / "warehouse.duckdb")
    for kind, suffix, read in (("out", ".txt", _words), ("out", ".json", _json), ("site", ".html", _page)):
        before, after = ({path.stem: path for path in (side / kind).glob(f"*{suffix}")} for side in (old, new))
        found += _names(part, f"{kind}/", before, after)
        for name in sorted(before.keys() & after.keys()):
            found += read(part, name, *(path.read_text(encoding="utf-8") for path in (before[name], after[name])))
    yield from found


def _names(part: str, where: str, old: Any, new: Any) -> Iterator[Finding]:
    """Tables, columns, commands, pages: those that are gone, and those that are new."""
    gone, added = sorted(set(old) - set(new)), sorted(set(new) - set(old))
    if gone:
        yield Finding(part, where, f"gone: {', '.join(gone)}")
    if added:
        yield Finding(part, where, f"only in the new: {', '.join(added)}", differs=False)


def _tables(part: str, old: Path, new: Path) -> Iterator[Finding]:
    with closing(duckdb.connect(old, read_only=True)) as before, closing(duckdb.connect(new, read_only=True)) as after:
        sides = before, after
        columns = [_columns(side) for side in sides]
        asked = AS_BEFORE if "metric_defs" in columns[1] and "metric_defs" not in columns[0] else {}
        gone = columns[0].keys() - columns[1].keys()
        asked = asked | {table: f"from {masked(table)}" for table in gone if masked(table) in columns[1]}
        for table, sql in asked.items():
            columns[1][table] = [name for name, *_ in after.execute(f"describe {sql}").fetchall()]
        yield from _names(part, "tables and views", *columns)
        meanings = [_meanings(side, *columns) for side in sides]
        for table in sorted(columns[0].keys() & columns[1].keys()):
            yield from _names(part, f"table {table}", *(of[table] for of in columns))
            common = [name for name in columns[0][table] if name in columns[1][table] and name not in VOLATILE]
            sources = f'"{table}"', f"({asked[table]})" if table in asked else f'"{table}"'
            frames = [_frame(side, source, common, of) for side, source, of in zip(sides, sources, meanings, strict=True)]
            yield from _rows(part, f"table {table}", *_left(*frames))


def _columns(side: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    """Columns of every table and view, by its name."""
    found = defaultdict(list)
    listed = "select table_name, column_name from information_schema.columns where table_schema = 'main' order by all"
    for table, column in side.execute(listed).fetchall():
        found[table].append(column)
    return found


def _meanings(side: duckdb.DuckDBPyConnection, *columns: dict[str, list[str]]) -> dict[str, str]:
    """What the ids of IDENTITIES stand for, by what both sides tell of them."""
    found: dict[str, str] = {}
    for key, (table, told) in IDENTITIES.items():
        if all(key in of.get(table, ()) for of in columns):
            common = ", ".join(name for name in told if all(name in of[table] for of in columns))
            for name, *values in side.execute(f"select distinct {key}, {common} from {table}").fetchall():
                found[name] = masked("|".join(map(str, values)))
    return found


def _frame(side: duckdb.DuckDBPyConnection, source: str, columns: Sequence[str], meanings: dict[str, str]) -> pl.DataFrame:
    listed = ", ".join(f'"{name}"' for name in columns)
    frame = side.sql(f"select {listed} from {source}").pl()
    for name in (name for name, kind in frame.schema.items() if kind == pl.String):
        seen = frame[name].drop_nulls().unique().to_list()
        changed = {text: after for text in seen if (after := meanings.get(text) or masked(text)) != text}
        frame = frame.with_columns(pl.col(name).replace(changed))
    return frame


def _left(old: pl.DataFrame, new: pl.DataFrame) -> tuple[list[Row], list[Row]]:
    """Rows of either frame that the other has not, or not as often."""
    with closing(duckdb.connect()) as connection:
        connection.register("old", old)
        connection.register("new", new)
        return tuple(
            connection.sql(f"from {one} except all from {other}").pl().to_dicts()
            for one, other in (("old", "new"), ("new", "old"))
        )


def _rows(part: str, where: str, lost: Sequence[Row], added: Sequence[Row]) -> Iterator[Finding]:
    """Rows that have no like on the other side; two that differ in floating-point numbers alone are one that moved."""
    waiting = defaultdict(list)
    for row in sorted(added, key=_floats, reverse=True):
        waiting[_rest(row)].append(row)
    moved, gone = [], []
    for row in sorted(lost, key=_floats):
        if waiting[_rest(row)]:
            moved.append(max(_moves(row, waiting[_rest(row)].pop())))
        else:
            gone.append(row)
    if moved:
        moved.sort(reverse=True)
        far = sum(by > SAME for by, _ in moved)
        what = f"{len(moved)} rows moved, {far} of them by more than {SAME:g} of the value, at most by {moved[0][0]:.3g}"
        yield Finding(part, where, what, tuple(text for _, text in moved[:EXAMPLES]))
    for rows, what in ((gone, "lost"), ([row for of in waiting.values() for row in of], "added")):
        if rows:
            yield Finding(part, where, f"{len(rows)} rows {what}", tuple(map(_told, rows[:EXAMPLES])))


def _floats(row: Row) -> tuple[float, ...]:
    return tuple(value for value in row.values() if isinstance(value, float))


def _rest(row: Row) -> tuple[tuple[str, Any], ...]:
    return tuple((name, type(value) if isinstance(value, float) else value) for name, value in row.items())


def _moves(old: Row, new: Row) -> Iterator[tuple[float, str]]:
    for name, value in old.items():
        other = new[name]
        if isinstance(value, float) and value != other and not (math.isnan(value) and math.isnan(other)):
            by = abs(other - value) / max(abs(value), abs(other))
            named = {beside: of for beside, of in old.items() if not isinstance(of, float)}
            yield math.inf if math.isnan(by) else by, f"{name} {value!r} -> {other!r} of {_told(named)}"


def _told(row: Row) -> str:
    text = ", ".join(f"{name}={value}" for name, value in row.items())
    return text if len(text) < 400 else text[:400] + " ..."


def masked(value: Any) -> Any:
    """A JSON value without the hashes in its words, with today's names. What then has one name in an object is a sorted list."""
    if isinstance(value, str):
        for before, now in NAMES.items():
            value = before.sub(now, value)
        return HASH.sub("#", value)
    if isinstance(value, dict):
        named = defaultdict(list)
        for name, of in value.items():
            named[masked(name)].append(masked(of))
        return {name: of[0] if len(of) == 1 else sorted(of, key=json.dumps) for name, of in named.items()}
    return [masked(of) for of in value] if isinstance(value, list) else value


def _json(part: str, name: str, old: str, new: str) -> Iterator[Finding]:
    yield from _values(part, name, masked(json.loads(old)), masked(json.loads(new)))


def _page(part: str, name: str, old: str, new: str) -> Iterator[Finding]:
    payloads = ["".join(PAYLOAD.findall(text)) or "{}" for text in (old, new)]
    yield from _json(part, f"page {name}", *payloads)
    yield from _words(part, f"page {name}", *("\n".join(_Words(text).lines) for text in (old, new)))


def _values(part: str, where: str, old: Any, new: Any) -> Iterator[Finding]:
    """Lists of flat rows as multisets, on the columns that both have; everything else value by value."""
    tables: list[tuple[str, list[Row], list[Row]]] = []
    leaves = list(_leaves("", old, new, tables))
    if leaves:
        examples = tuple(f"{path}: {before} -> {after}"[:400] for path, before, after in leaves[:EXAMPLES])
        yield Finding(part, where, f"{len(leaves)} values differ", examples)
    for path, before, after in tables:
        columns = [dict.fromkeys(name for row in rows for name in row) for rows in (before, after)]
        yield from _names(part, f"{where}{path}", *columns)
        common = [name for name in columns[0] if name in columns[1] and name not in VOLATILE]
        texts = [Counter(json.dumps({name: row.get(name) for name in common}) for row in rows) for rows in (before, after)]
        lost, added = (list(map(json.loads, one.elements())) for one in (texts[0] - texts[1], texts[1] - texts[0]))
        yield from _rows(part, f"{where}{path}", lost, added)


def _leaves(path: str, old: Any, new: Any, tables: list[tuple[str, list[Row], list[Row]]]) -> Iterator[tuple[str, Any, Any]]:
    """Places where two values differ. Rows, which lie in `data` of a page or at the top of a document, go to `tables`."""
    if (path.count("/") < 2 or path.startswith("/data/")) and _are_rows(old) and _are_rows(new):
        tables.append((path, old, new))
    elif isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from _leaves(f"{path}/{name}", old.get(name, "absent"), new.get(name, "absent"), tables)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _leaves(f"{path}/{i}", before, after, tables)
    elif old != new:
        yield path, old, new


def _are_rows(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, dict) and not any(isinstance(of, dict | list) for of in row.values()) for row in value
    )


def _words(part: str, name: str, old: str, new: str) -> Iterator[Finding]:
    before, after = (masked(text).splitlines() for text in (old, new))
    lines = [line for line in difflib.unified_diff(before, after, lineterm="", n=0) if not line.startswith(("---", "+++", "@@"))]
    if lines:
        yield Finding(part, name, f"{len(lines)} lines of words differ", tuple(line[:400] for line in lines[: 4 * EXAMPLES]))


class _Words(HTMLParser):
    """What a page says outside its scripts and styles: one line per stretch of text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._tag = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._tag = tag

    def handle_data(self, data: str) -> None:
        if self._tag not in ("script", "style") and data.strip():
            self.lines.append(" ".join(data.split()))

"""Do a tape's rows agree with each other, with its manifest and with its other tables? Any reader's rows pass here.

Whole columns at a time. A tape that fails is refused with the first row that does not fit: what it would give is not a number
of any run. Knows rows, not files; what an import may leave out it has flagged in the manifest.
"""

import math
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.tables import TABLES

KINDS = ("prefill", "decode", "draft", "verify")
_CHOSEN = ("expert_ids", "natural_ids")
_EXPERTS = (*_CHOSEN, "pool", "next_pool", "entered")  # lists of expert ids
_NUMBERS = ("gate_weights", "scores", "hotness", "query", "key_min", "key_max")
_SHORT = 32  # values in a list that are compared pair by pair
_PASSES = 1 << 14  # compared at once
_MAY_BE_INFINITE = ("nll",)  # of a token that the model held for impossible
_PER_TOKEN = {"tokens": "tokens", "routing": "tokens in each MoE layer"}  # tables that hold every token of a pass


class Contradiction(ValueError):
    """Rows that do not fit; the message names the table and the row."""


class Rows:
    """Takes one table's rows in order, shard by shard (`see`) or in smaller parts (`see_part`), and what ends them (`end`).

    may_miss: rows of some layers were never recorded, as the manifest's flags say. requests, passes: the tape's tables, where it
    has them and the table at hand refers to them. Every method raises Contradiction.
    """

    def __init__(
        self,
        table: str,
        geometry: Geometry,
        may_miss: bool = False,
        requests: pl.DataFrame | None = None,
        passes: pl.DataFrame | None = None,
    ) -> None:
        self.table, self.geometry, self.may_miss, self.passes = table, geometry, may_miss, passes
        self._n_seen, self._requests_seen = 0, set[int]()
        self._requests = None if requests is None else _sorted(requests["request_id"])
        self._pass_ids = None if passes is None else _sorted(passes["pass_id"])
        self._layers = np.array(geometry.moe_layers, np.int64)
        if table in _PER_TOKEN and passes is not None:
            n_layers = max(1, len(self._layers)) if table == "routing" else 1
            most = int(passes["n_tokens"].to_numpy().max(initial=0))
            self._counts = np.zeros((passes.height, n_layers), np.min_scalar_type(most + 1))

    def see(self, rows: pa.Table) -> pl.DataFrame:
        """A whole shard, as a frame: a request's rows are all in one."""
        frame = self.see_part(rows)
        if "request_id" in frame.columns:
            here = set(frame["request_id"].unique().to_list())
            again = here & self._requests_seen
            if again:
                raise Contradiction(f"{self.table}: request {min(again)} is in two shards")
            self._requests_seen |= here
        if self.table == "tokens" and not self.may_miss:
            _refuse_gaps(frame)
        more = [name for name in ("node", "query_head") if self.table == "attention" and name in frame.columns]
        key = [*TABLES[self.table].key, *more]
        bad = _first(_is_double(frame, key))
        if bad is not None:
            named = ", ".join(f"{name} {value}" for name, value in zip(key, frame.select(key).row(bad), strict=True))
            raise Contradiction(f"{self.table} row {self._n_seen - frame.height + bad} is there twice ({named})")
        return frame

    def see_part(self, rows: pa.Table | pa.RecordBatch) -> pl.DataFrame:
        """Some rows of a shard, as a frame. Polars falls over metadata that is no text: it is left out."""
        frame = pl.DataFrame(type(rows).from_arrays(rows.columns, rows.schema.names))
        for is_bad, what in self._rules(frame):
            bad = _first(is_bad)
            if bad is not None:
                raise Contradiction(f"{self.table} row {self._n_seen + bad}: {what}")
        if self.table in _PER_TOKEN and self.passes is not None:
            self._count(frame)
        self._n_seen += frame.height
        return frame

    def end(self, stated: int | None) -> None:
        """After the last row; stated: how many the manifest names."""
        if self._n_seen != stated:
            raise Contradiction(f"{self.table} has {self._n_seen} rows, the manifest says {stated}")
        if self.passes is not None and self.table in _PER_TOKEN:
            self._refuse_missing()

    def _rules(self, rows: pl.DataFrame) -> Iterator[tuple[NDArray[np.bool_], str]]:
        """(which rows break a rule, the rule broken), one after the other: later rules may rest on earlier ones."""
        for name in rows.columns:
            if rows[name].null_count() and name not in TABLES[self.table].nullable:
                yield rows[name].is_null().to_numpy(), f"it has no {name}"
        if "request_id" in rows.columns and self._requests is not None:
            yield _is_unknown(rows["request_id"], self._requests), "its request_id is not in `requests`"
        if "pass_id" in rows.columns and self._pass_ids is not None:
            yield _is_unknown(rows["pass_id"], self._pass_ids), "its pass_id is not in `passes`"
        if "position" in rows.columns:
            yield _outside(rows["position"].to_numpy(), 0), "its position is negative"
        if "layer" in rows.columns:
            layers = np.arange(self.geometry.n_layers) if self.table == "attention" else self._layers
            kind = "layer of the model" if self.table == "attention" else "MoE layer of the manifest"
            yield _is_unknown(rows["layer"], layers), f"its layer is no {kind}"
        for name in rows.columns:
            if rows[name].dtype.is_float() and name not in _MAY_BE_INFINITE:
                yield ~rows[name].is_finite().fill_null(True).to_numpy(), f"its {name} is not a finite number"
            elif rows[name].dtype == pl.List:
                yield from self._list_rules(rows, name)
        if self.table == "passes":
            yield (~rows["kind"].is_in(KINDS)).to_numpy(), f"its kind is none of {', '.join(KINDS)}"
            yield (rows["n_tokens"] == 0).to_numpy(), "its n_tokens is 0"
        if self.table == "requests":
            yield (rows["arrival_s"] < 0).to_numpy(), "its arrival_s is negative"

    def _list_rules(self, rows: pl.DataFrame, name: str) -> Iterator[tuple[NDArray[np.bool_], str]]:
        lists, g = _Lists(rows[name]), self.geometry
        lengths = lists.lengths
        if name == "request_ids":
            yield lengths == 0, "it has no member requests"
            yield lists.is_repeating(), "it names a member twice"
            if self._requests is not None:
                known = self._requests
                yield lists.any(lambda ids: _not_in(ids, known)), "a member is not in `requests`"
        elif name in _EXPERTS:
            if self.table == "routing" and name in _CHOSEN:
                yield _differ(lengths, g.top_k), f"its {name} are not top-k: the manifest says {g.top_k}"
            is_bad = lists.any(lambda ids: _outside(ids, 0, g.n_experts - 1))
            yield is_bad, f"its {name} go past the model's {g.n_experts} experts"
            if name in _CHOSEN:
                yield lists.is_repeating(), f"its {name} name an expert twice"
        elif name == "residency":
            yield _differ(lengths, _Lists(rows["expert_ids"]).lengths), "its residency is not one per expert"
            yield lists.any(lambda flags: flags > 1), "its residency is neither 0 nor 1"
        elif name == "mass":
            yield _differ(lengths, _Lists(rows["key_positions"]).lengths), "its mass is not one per key position"
            yield lists.any(lambda mass: ~(mass >= 0) | np.isinf(mass)), "its mass holds NaN, an infinity or less than 0"
        elif name in _NUMBERS:
            if name == "scores":
                yield _differ(lengths, g.n_experts), f"its scores are not one for each of {g.n_experts} experts"
            if name == "gate_weights":
                yield _differ(lengths, _Lists(rows["expert_ids"]).lengths), "its gate_weights are not one per expert"
            yield lists.any(lambda values: ~np.isfinite(values)), f"its {name} hold NaN or an infinity"

    def _count(self, rows: pl.DataFrame) -> None:
        """Adds to the rows of each pass, and for routing of each MoE layer in it, up to a number that is too many."""
        assert self._pass_ids is not None
        if rows.is_empty():
            return
        at, n_layers = _places(rows["pass_id"].to_numpy(), self._pass_ids), self._counts.shape[1]
        first, last = int(at.min()), int(at.max()) + 1  # few of all passes: rows are ordered by them
        cell = (at - first) * n_layers
        if self.table == "routing":
            cell += _places(rows["layer"].to_numpy(), self._layers)
        found = self._counts[first:last] + np.bincount(cell, minlength=(last - first) * n_layers).reshape(-1, n_layers)
        self._counts[first:last] = np.minimum(found, np.iinfo(self._counts.dtype).max)

    def _refuse_missing(self) -> None:
        """Every pass has the tokens it says, in every MoE layer. A verify pass counts its rejected nodes too; drafts none."""
        assert self.passes is not None
        passes = self.passes.sort("pass_id")
        n_tokens = passes["n_tokens"].to_numpy().astype(np.int64)[:, None]
        exact = passes["kind"].is_in(["prefill", "decode"]).to_numpy()[:, None] & (not self.may_miss)
        for first in range(0, len(n_tokens), _PASSES):
            part = slice(first, first + _PASSES)
            counts, wanted = self._counts[part], n_tokens[part]
            wrong = (counts > wanted) | (exact[part] & (counts != wanted))
            if not self.may_miss:
                wrong |= counts != counts[:, :1]
            if wrong.any():
                at, layer = np.argwhere(wrong)[0]
                where = f", layer {self._layers[layer]}" if self.table == "routing" else ""
                pass_id, found = passes["pass_id"][int(first + at)], counts[at, layer]
                raise Contradiction(
                    f"{self.table}: pass {pass_id}{where} has {found} rows, its n_tokens in `passes` is {wanted[at, 0]}"
                )


def _sorted(column: pl.Series) -> NDArray[np.int64]:
    values = column.to_numpy().astype(np.int64)
    return values if (values[1:] > values[:-1]).all() else np.unique(values)  # as they mostly are


def _first(is_bad: NDArray[np.bool_]) -> int | None:
    return int(np.argmax(is_bad)) if is_bad.any() else None


def _not_in(values: NDArray[Any], known: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    """known: sorted."""
    if known is None or not known.size:
        return np.ones(values.size, np.bool_)
    if _is_dense(known):
        return _outside(values, known[0], known[-1])
    return np.asarray(known[np.minimum(_places(values, known), known.size - 1)] != values)


def _outside(values: NDArray[Any], least: int, most: float = math.inf) -> NDArray[np.bool_]:
    """Which values are less than the least or more than the most. Hardly ever one is, which their extremes tell sooner."""
    if not values.size or (values.min() >= least and values.max() <= most):
        return np.zeros(values.size, np.bool_)
    return np.asarray((values < least) | (values > most))


def _is_dense(known: NDArray[np.int64]) -> bool:
    """Every whole number from the first to the last, as most ids are."""
    return bool(known.size and known[-1] - known[0] + 1 == known.size)


def _places(values: NDArray[Any], known: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where in `known` (sorted) the values are, or would be."""
    return values.astype(np.int64) - known[0] if _is_dense(known) else np.searchsorted(known, values)


def _is_unknown(column: pl.Series, known: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Null is no value and therefore not an unknown one."""
    if not column.null_count():
        return _not_in(column.to_numpy(), known)
    unknown: NDArray[np.bool_] = _not_in(column.fill_null(0).to_numpy(), known) & column.is_not_null().to_numpy()
    return unknown


class _Lists:
    """A column of lists. lengths: -1 of a null; values: of all lists, one after the other."""

    def __init__(self, column: pl.Series) -> None:
        self.column, held = column, column.to_arrow()  # whose own to_numpy imports pandas, a quarter of a second
        self.values, ends = pl.Series(held.flatten()), pl.Series(held.offsets).to_numpy()
        self.lengths: NDArray[np.int64] = ends[1:] - ends[:-1]
        if column.null_count():
            self.lengths[column.is_null().to_numpy()] = -1

    def any(self, is_bad: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """Which rows hold a null, or a value for which `is_bad` (values -> flags)."""
        flags = is_bad((self.values.fill_null(0) if self.values.null_count() else self.values).to_numpy())
        if self.values.null_count():
            flags |= self.values.is_null().to_numpy()
        if not flags.any():
            return np.zeros(self.lengths.size, np.bool_)
        of_row = np.repeat(np.arange(self.lengths.size), np.maximum(self.lengths, 0))
        return np.bincount(of_row[flags], minlength=self.lengths.size) > 0

    def is_repeating(self) -> NDArray[np.bool_]:
        """Which rows hold a value twice."""
        n = self.lengths[0] if self.lengths.size else 0
        if 0 <= n <= _SHORT and (self.lengths == n).all() and not self.values.null_count():
            places = np.ascontiguousarray(self.values.to_numpy().reshape(self.lengths.size, n).T)
            bad = np.zeros(self.lengths.size, np.bool_)
            for one, other in combinations(places, 2):  # a list is short: several times faster than sorting it
                bad |= one == other
            return bad
        return (self.column.list.n_unique() != self.column.list.len()).fill_null(False).to_numpy()


def _differ(found: NDArray[np.int64], wanted: NDArray[np.int64] | int) -> NDArray[np.bool_]:
    """Lengths that differ; null differs from nothing."""
    return np.asarray((found != wanted) & (found >= 0) & (np.asarray(wanted) >= 0))


def _refuse_gaps(tokens: pl.DataFrame) -> None:
    """A request's tokens follow each other."""
    position = pl.col("position")
    spans = (
        tokens.group_by("request_id")
        .agg(n=pl.len(), span=position.max() - position.min() + 1)
        .filter(pl.col("n") < pl.col("span"))
    )
    if not spans.is_empty():
        request = int(spans["request_id"].min())  # type: ignore[arg-type]
        places = np.sort(tokens.filter(pl.col("request_id") == request)["position"].to_numpy())
        missing = places[int(np.argmax(np.diff(places) > 1))] + 1
        raise Contradiction(f"tokens: request {request} has no token at position {missing}, but later ones")


def _is_double(rows: pl.DataFrame, key: list[str]) -> NDArray[np.bool_]:
    """Which rows repeat the key of an earlier one. Whole numbers are packed into one, which is several times faster."""
    spans = [int(rows[name].max()) + 1 if _is_count(rows[name]) else 2**64 for name in key]  # type: ignore[arg-type]
    if math.prod(spans) < 2**64:
        packed = pl.zeros(len(rows), pl.UInt64, eager=True)
        for name, span in zip(key, spans, strict=True):
            packed = packed * span + rows[name].cast(pl.UInt64)
    else:
        packed = rows.select(pl.struct(key)).to_series()
    if packed.n_unique() == len(packed):
        return np.zeros(len(packed), np.bool_)
    return ~packed.is_first_distinct().to_numpy()


def _is_count(column: pl.Series) -> bool:
    """Whole numbers from 0, all given."""
    return bool(len(column)) and column.dtype.is_integer() and not column.null_count() and int(column.min()) >= 0  # type: ignore[arg-type]

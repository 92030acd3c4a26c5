"""The SliceMoE page on tapes: does the prompt tell which experts decoding uses, and how many of a token's are critical?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import duckdb
import polars as pl

from tokentape.dashboards.answers import percent
from tokentape.dashboards.shell import Control, Figure, Part
from tokentape.dashboards.slicemoe import tape_charts as charts
from tokentape.dashboards.slicemoe import tape_rows as rows
from tokentape.dashboards.units import joined

RECORD = "tokentape capture --model embedded --dataset math, then tokentape load and tokentape site."
NO_EARLY = f"Nothing to draw: the tape does not route tokens in both prefill and decode. Run: {RECORD}"
NO_GATES = f"Nothing to draw: the tape has no gate weights. Run: {RECORD}"
TELLS, TELLS_IN_PART = 0.7, 0.3  # correlations from which the prompt is said to tell


def part(connection: duckdb.DuckDBPyConnection, size: int) -> Part:
    """The figures over the first `size` tapes (tape_rows.tapes)."""
    tapes = rows.tapes(connection, size)
    trace_ids = tapes["trace_id"].to_list()
    early, critical, gates = (ask(connection, trace_ids) for ask in (rows.early, rows.critical, rows.gates))
    choices = _choices(trace_ids, early, critical)
    named = {tape["trace_id"]: "{trace_id}: {model_id}, {dataset} ({origin})".format(**tape) for tape in tapes.to_dicts()}
    controls = Control("trace", "Tape", named), Control("layer", "Layer of the tape", {rows.ALL: "all layers"})
    taus = critical["tau"].unique().sort().to_list()
    data = {"early": early, "critical": critical, "gates": gates}
    return Part(
        figures=(
            Figure(
                "early",
                "Does the prompt tell which experts decoding uses first?",
                None if early.is_empty() else charts.early(_choices(trace_ids, early)[0]),
                {f"{row['trace']}|{row['layer']}": _early_answer(row) for row in early.to_dicts()},
                ("trace", "layer"),
                "Early decode: the first ten decode steps of every request. Dotted: an even share. The cosine is high wherever "
                "both have every share above zero; the correlation, of the shares less their mean, is not. PCW keeps what the "
                "prompt used most, so it gains where the correlation is high. Ten steps of few requests are few selections: "
                "chance alone lowers both.",
                NO_EARLY,
            ),
            Figure(
                "critical",
                "How many of a token's experts are critical, and does that change along the text?",
                None if critical.is_empty() else charts.critical(_choices(trace_ids, critical)[0], taus),
                dict(_critical_answers(critical, gates)),
                ("trace", "layer"),
                "Critical: the expert's share of the gate weights of those selected for the token exceeds tau; DBSC reads the "
                "low bits of these alone. Left: means over the tokens at these positions, prefill and decode together. Right: "
                "means over the tokens of a phase.",
                NO_GATES,
            ),
        ),
        controls=controls if choices else (),
        choices=tuple(choices),
        data={name: frame for name, frame in data.items() if not frame.is_empty()},
    )


def _choices(trace_ids: list[str], *frames: pl.DataFrame) -> list[dict[str, str]]:
    """Every tape with its layers, then all layers."""
    told = pl.concat([frame.select("trace", "layer", pl.col("place").cast(pl.Int64)) for frame in frames]).unique()
    order = pl.col("trace").replace_strict({trace: n for n, trace in enumerate(trace_ids)}, return_dtype=pl.Int64)
    return told.sort(order, "place", nulls_last=True).select("trace", "layer").to_dicts()


def _where(layer: str) -> str:
    return "over all layers" if layer == rows.ALL else f"in layer {layer}"


def _early_answer(row: Mapping[str, Any]) -> str:
    """How alike the two uses are, and what keeping the prompt's favourites would hold of early decode."""
    where, correlation, half = _where(row["layer"]), row["correlation"], percent(row["of_first_half"], 0)
    alike = f"{where}, prefill and the first ten decode steps use the experts alike to a cosine of {row['cosine']:.2f}"
    share = f"the half of the experts that prefill used most takes {half} of the early selections (by chance: 50 %)."
    if correlation is None:
        return f"Not to tell: {alike}, and one of them uses all experts evenly, so they have no correlation; {share}"
    verdict = "Yes" if correlation >= TELLS else "In part" if correlation >= TELLS_IN_PART else "Hardly"
    return f"{verdict}: {alike} and a correlation of {correlation:.2f}; {share}"


def _critical_answers(critical: pl.DataFrame, gates: pl.DataFrame) -> Iterator[tuple[str, str]]:
    by_place = gates.sort("phase").rows_by_key(["trace", "layer"], named=True)  # decode before prefill
    for (trace, layer), of_taus in critical.group_by(["trace", "layer"], maintain_order=True):
        yield f"{trace}|{layer}", _critical_answer(of_taus.to_dicts(), by_place[trace, layer][:1])


def _critical_answer(of_taus: list[dict[str, Any]], gates: list[dict[str, Any]]) -> str:
    """Critical experts of a token at every tau, how far the least tau moves along the text, and the gates at both ends."""
    first = of_taus[0]
    per_layer = " per layer" if first["layer"] == rows.ALL else ""
    most = f"{first['mean']:.2f} critical experts{per_layer} on average with tau {first['tau']}"
    others = joined([f"{row['mean']:.2f} with {row['tau']}" for row in of_taus[1:]])
    bins = [value for value in first["critical"] if value is not None]
    said = (
        f"{_where(first['layer']).capitalize()}, a token has {', '.join(filter(None, (most, others)))}; along the text the first "
        f"moves between {min(bins):.2f} and {max(bins):.2f}."
    )
    ends = [
        f" In {gate['phase']} the largest of {len(gate['share'])} gates takes {gate['share'][0]:.1f} % of a token's weight, the "
        f"smallest {gate['share'][-1]:.1f} %."
        for gate in gates
    ]
    return said + "".join(ends)

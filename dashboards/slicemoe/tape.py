"""The SliceMoE page on tapes: does the prompt tell which experts decoding uses, and how many of a token's are critical?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Control, Drawn, some, turn_of
from tokentape.dashboards.units import joined, percent

ALL = "all"  # sorted behind every layer
TAUS = (theme.SKY, theme.BLUE, theme.INK)  # rising
TELLS, TELLS_IN_PART = 0.7, 0.3  # correlations from which the prompt is said to tell


def early(ask: Ask) -> Drawn:
    found = some(ask("early"))
    said = {f"{row['trace']}|{row['layer']}": _early_answer(row) for row in found.to_dicts()}
    return Drawn({"early": found}, said, **_menus(ask))


def critical(ask: Ask) -> Drawn:
    found, gates = some(ask("critical")), ask("gates")
    taus = found["tau"].unique().sort().to_list()
    own = {"taus": taus, "colours": list(TAUS[: len(taus)])}
    return Drawn({"critical": found, "gates": gates}, dict(_critical_answers(found, gates)), own, **_menus(ask))


def _menus(ask: Ask) -> dict[str, Any]:
    """Menus of both figures: every tape with its layers, then all layers."""
    tapes = ask("tapes").to_dicts()
    named = {tape["trace_id"]: "{trace_id}: {model_id}, {dataset} ({origin})".format(**tape) for tape in tapes}
    controls = Control("trace", "Tape", named), Control("layer", "Layer of the tape", {ALL: "all layers"})
    return {"controls": controls, "choices": tuple(_choices(list(named), ask("early"), ask("critical")))}


def _choices(trace_ids: list[str], *frames: pl.DataFrame) -> list[dict[str, str]]:
    """Every tape with its layers, then all layers."""
    told = pl.concat([frame.select("trace", "layer", pl.col("place").cast(pl.Int64)) for frame in frames]).unique()
    order = turn_of("trace", trace_ids)
    return told.sort(order, "place", nulls_last=True).select("trace", "layer").to_dicts()


def _where(layer: str) -> str:
    return "over all layers" if layer == ALL else f"in layer {layer}"


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
    per_layer = " per layer" if first["layer"] == ALL else ""
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

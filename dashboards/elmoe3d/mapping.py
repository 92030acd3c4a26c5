"""The ELMoE-3D page on what a batch does to a pass (Figure 4), what lies where, and what a round takes (Figures 12, 13)."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.elmoe3d import rows
from tokentape.dashboards.elmoe3d.words import EAGLE, MODES, PARTS, PASS_PARTS, facts
from tokentape.dashboards.engine import Ask, Drawn, in_words, some, turn_of

KNEES = {"knee hb": "HB", "knee ext": "EXT"}
TIERS = {"hb": "HB (fast, small)", "ext": "EXT (LPDDR5, large)"}


def intensity(ask: Ask) -> Drawn:
    found, table = some(ask("intensity")), some(ask.made(rows.table))
    passes, touched = _passes(found), _touched(table)
    data = {
        "passes": passes,
        "knees": _knees(found),
        "touched": touched.drop("gain", "published"),
        "gained": touched.drop("ar", "verify"),
    }
    return Drawn(data, facts={**facts(touched), **facts(found), "intensity": found}, said=table)


def _passes(intensity: pl.DataFrame) -> pl.DataFrame:
    found = intensity.filter(pl.col("part").is_in(list(PASS_PARTS)))
    return found.with_columns(words=pl.col("part").replace(PASS_PARTS), mode=pl.col("mode").replace(MODES))


def _knees(intensity: pl.DataFrame) -> pl.DataFrame:
    found = intensity.filter(pl.col("part").is_in(list(KNEES)))
    return found.select("machine", "model", "ops_per_byte", words=pl.format("{} bends", pl.col("part").replace(KNEES)))


def _touched(table: pl.DataFrame) -> pl.DataFrame:
    """Experts of a layer in AR and in verification, and SD over AR, of EAGLE3."""
    of = table.filter(pl.col("scheme") == EAGLE)
    keys = ["law", "level", "machine", "gib", "model", "batch", "fidelity", "is_withheld"]
    return of.select(
        *keys,
        ar="ar_experts",
        verify="verify_experts",
        gain=pl.col("phi_sd") / pl.col("phi_ar"),
        published=pl.col("published_sd") / pl.col("published_ar"),
    )


def mapping(ask: Ask) -> Drawn:
    found, rounds = some(ask("mapping")), some(ask.made(_rounds))
    placed = found.with_columns(
        tier_words=pl.col("tier").replace(TIERS),
        words=in_words("part", PARTS),
        place=turn_of("part", PARTS),
        batch_words=pl.col("batch").cast(pl.String),
    )
    data = {"placed": placed.drop("part", "batch"), "rounds": rounds.drop("fidelity", "gib")}
    room = placed.filter(pl.col("tier") == "hb", pl.col("part") == "experts")
    return Drawn(data, facts={**facts(rounds), "room": room}, said=rounds)


def latency(ask: Ask) -> Drawn:
    found = some(ask.made(_rounds))
    return Drawn({"rounds": found.drop("fidelity", "gib")}, facts=facts(found), said=found)


def _rounds(ask: Ask) -> pl.DataFrame:
    """Accept length and latencies of a round, one row per cell."""
    kept = ("law", "level", "machine", "gib", "model", "scheme", "batch", "accepted_len", "draft_ms", "verify_ms", "phi_sd")
    more = ("published_sd", "fidelity", "is_withheld")
    return ask.made(rows.table).select(*kept, *more, batch_words=pl.col("batch").cast(pl.String))

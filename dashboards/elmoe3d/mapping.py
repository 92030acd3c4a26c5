"""The ELMoE-3D page on what a batch does to a pass (Figure 4), what lies where, and what a round takes (Figures 12, 13)."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.elmoe3d import rows
from tokentape.dashboards.elmoe3d.words import EAGLE, ELASTIC, MODES, PARTS, PASS_PARTS, SCHEMES, facts
from tokentape.dashboards.engine import Ask, Drawn, in_words, known, rows_like, sentences, some, turn_of
from tokentape.dashboards.units import highest, joined, lowest, mean_of, percent, significant

KNEES = {"knee hb": "HB", "knee ext": "EXT"}
TIERS = {"hb": "HB (fast, small)", "ext": "EXT (LPDDR5, large)"}
FLAT = 0.01  # two latencies nearer than this are called alike


def intensity(ask: Ask) -> Drawn:
    found, table = some(ask("intensity")), some(ask.made(rows.table))
    passes, touched = _passes(found), _touched(table)
    said = sentences(table, ["law", "level", "machine"], lambda of: intensity_answer(rows_like(found, of, "machine"), of))
    data = {
        "passes": passes,
        "knees": _knees(found),
        "touched": touched.drop("gain", "published"),
        "gained": touched.drop("ar", "verify"),
    }
    return Drawn(data, said, {**facts(touched), **facts(found)})


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


def intensity_answer(intensity: pl.DataFrame, table: pl.DataFrame) -> str:
    """How far below the roofline's bend experts stay, how many more a verification touches, and where the head's drafts gain."""
    experts = intensity.filter((pl.col("part") == "experts") & (pl.col("mode") == "ar"))
    knee = intensity.filter(pl.col("part") == "knee hb")
    touched = _touched(table)
    most = int(highest(touched["batch"]))
    last = touched.filter(pl.col("batch") == most)
    more = (last["verify"] / last["ar"]).to_list()
    gaining = touched.filter(pl.col("gain") > 1)
    said = []
    if not experts.is_empty() and not knee.is_empty():
        said.append(
            f"At most {significant(highest(experts['ops_per_byte']))} operations per byte of an expert in AR, where even "
            f"HB's roofline bends at {significant(lowest(knee['ops_per_byte']))}: decoding waits for memory at every "
            f"batch up to {most}"
        )
    said.append(f"At batch {most} a verification touches {min(more):.1f} to {max(more):.1f} × the experts of an AR step")
    cells = [
        f"{model} ({joined([str(b) for b in of['batch'].to_list()])})"
        for (model,), of in gaining.group_by(["model"], maintain_order=True)
    ]
    said.append(f"{EAGLE} gains over AR, at batches, on {joined(cells)}" if cells else f"{EAGLE} gains over AR nowhere")
    return f"{'. '.join(said)}."


def mapping(ask: Ask) -> Drawn:
    found, rounds = some(ask("mapping")), some(ask.made(_rounds))
    placed = found.with_columns(
        tier_words=pl.col("tier").replace(TIERS),
        words=in_words("part", PARTS),
        place=turn_of("part", PARTS),
        batch_words=pl.col("batch").cast(pl.String),
    )
    data = {"placed": placed.drop("part", "batch"), "rounds": rounds.drop("fidelity", "gib")}
    experts = placed.filter(pl.col("tier") == "hb", pl.col("part") == "experts")
    keys = ["model", "machine", "batch_words"]
    said = sentences(rounds, ["law", "level", *keys], lambda of: mapping_answer(rows_like(experts, of, *keys), of))
    return Drawn(data, said, facts(rounds))


def latency(ask: Ask) -> Drawn:
    found = some(ask.made(_rounds))
    said = sentences(ask.made(rows.table), ["law", "level", "model"], latency_answer)
    return Drawn({"rounds": found.drop("fidelity", "gib")}, said, facts(found))


def _rounds(ask: Ask) -> pl.DataFrame:
    """Accept length and latencies of a round, one row per cell."""
    kept = ("law", "level", "machine", "gib", "model", "scheme", "batch", "accepted_len", "draft_ms", "verify_ms", "phi_sd")
    more = ("published_sd", "fidelity", "is_withheld")
    return ask.made(rows.table).select(*kept, *more, batch_words=pl.col("batch").cast(pl.String))


def mapping_answer(placed: pl.DataFrame, rounds: pl.DataFrame) -> str:
    """Room for experts by scheme, and accept length, draft and verify of each. placed: the experts in HB."""
    names, experts = known(SCHEMES, rounds["scheme"]), dict(placed.select("scheme", "gb").iter_rows())
    room = joined([f"{significant(experts[n]) if n in experts else 'none'}{' GB' if n in experts else ''} ({n})" for n in names])
    by_name = {row["scheme"]: row for row in rounds.to_dicts()}
    said = [
        f"{n} accepts {by_name[n]['accepted_len']:.1f} tokens of a round of {significant(by_name[n]['draft_ms'])} + "
        f"{significant(by_name[n]['verify_ms'])} ms"
        for n in names
    ]
    return f"Room for experts in HB: {room}. {'; '.join(said)}."


def latency_answer(table: pl.DataFrame) -> str:
    """Elastic-SD's verification over EAGLE3's by machine and batch, and the share of its draft."""
    said = []
    for (machine,), of in table.sort("gib", "batch").group_by(["machine"], maintain_order=True):
        ours, theirs = (of.filter(pl.col("scheme") == name) for name in (ELASTIC, EAGLE))
        if ours.is_empty() or ours.height != theirs.height:
            continue
        ratios = (ours["verify_ms"] / theirs["verify_ms"]).to_list()
        ends = [f"{r:.2f} × at batch {b}" for r, b in zip(ratios, ours["batch"].to_list(), strict=True)]
        share = mean_of(ours["draft_ms"] / (ours["draft_ms"] + ours["verify_ms"]))
        kept = [ends[0], ends[-1]] if len(ends) > 1 else ends
        less = sum(r < 1 - FLAT for r in ratios)
        said.append(
            f"with {machine}, verification takes {joined(kept)} (shorter at {less} of {len(ratios)} batches), its draft "
            f"{percent(share, 0)} of the round"
        )
    return f"{ELASTIC} beside {EAGLE}: {'; '.join(said)}." if said else f"{ELASTIC} and {EAGLE} were not computed side by side."

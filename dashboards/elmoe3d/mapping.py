"""The ELMoE-3D page on one round: what lies in which memory (Figure 12), and what drafting and verification take (12, 13)."""

from __future__ import annotations

from collections.abc import Iterator

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent, significant
from tokentape.dashboards.elmoe3d.words import EAGLE, ELASTIC, HEADER, LEGEND, SCHEMES, STUDY, scheme_colour, source
from tokentape.dashboards.panels import known, params, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

NO_MAPPING = f"Nothing to draw: no mapping of weights to memories was computed. {STUDY}"
NO_TABLE = f"Nothing to draw: the paper's Table 3 was not computed. {STUDY}"
PARTS = {
    "static": ("static weights", theme.QUIET),
    "kv": ("KV cache", theme.SKY),
    "embedding": ("input embedding", "#b9c0c9"),
    "draft weights": ("drafter's weights", theme.ORANGE),
    "draft kv": ("drafter's KV", "#f4d58d"),
    "experts": ("experts", theme.BLUE),
    "free": ("free", "#eef0f3"),
}
TIERS = {"hb": "HB (fast, small)", "ext": "EXT (LPDDR5, large)"}
ROUND = {"draft_ms": "draft", "verify_ms": "verify"}
MEASURES = {"accepted_len": "accept length (tokens)", "draft_ms": "draft, all steps (ms)", "verify_ms": "verify (ms)"}
FLAT = 0.01  # two latencies nearer than this are called alike


def mapping_part(mapping: pl.DataFrame, table: pl.DataFrame, start: dict[str, str]) -> Part:
    """Figure 12. mapping: rows.mapping; table: rows of Table 3."""
    question = "What lies in which memory, and what does a round then take?"
    rounds = _rounds(table)
    if mapping.is_empty() or rounds.is_empty():
        return Part((Figure("mapping", question, None, {}, (), "", NO_MAPPING),))
    order = {name: n for n, name in enumerate(PARTS)}
    placed = mapping.with_columns(
        tier_words=pl.col("tier").replace(TIERS),
        words=pl.col("part").replace({name: said for name, (said, _) in PARTS.items()}),
        place=pl.col("part").replace_strict(order, default=len(order), return_dtype=pl.Int64),
        batch_words=pl.col("batch").cast(pl.String),
    )
    reading = (
        "First fit: static weights and the KV cache first, then what the drafter needs, then experts. Elastic-SD keeps no "
        "copy: slices of the experts in HB draft, and the memory that a head or a small model would take holds more of them. "
        "All of the target's experts lie in EXT. Latencies are of one round, the accept length is without the bonus token. "
        "The paper's Figure 12 has Qwen3-30B-A3B at batch 16 with 8 GB."
    )
    chart = _mapping_chart(placed, rounds, start)
    figure = Figure(
        "mapping",
        question,
        chart,
        dict(_mapping_answers(placed, rounds)),
        ("law", "level", "model", "machine", "batch"),
        reading,
        NO_MAPPING,
    )
    return Part((figure,), data={"placed": placed.drop("part", "batch"), "rounds": _carried(rounds)})


def _rounds(table: pl.DataFrame) -> pl.DataFrame:
    """Accept length and latencies of a round, one row per cell."""
    if table.is_empty():
        return table
    return table.select(
        *(
            "law",
            "level",
            "machine",
            "gib",
            "model",
            "scheme",
            "batch",
            "accepted_len",
            "draft_ms",
            "verify_ms",
            "phi_sd",
            "published_sd",
        ),
        *("fidelity", "is_withheld"),
        batch_words=pl.col("batch").cast(pl.String),
    )


def _carried(rounds: pl.DataFrame) -> pl.DataFrame:
    """What the charts need."""
    return rounds.drop("fidelity", "gib")


def _mapping_answers(placed: pl.DataFrame, rounds: pl.DataFrame) -> Iterator[tuple[str, str]]:
    keys = ["law", "level", "model", "machine", "batch_words"]
    for key, of in rounds.group_by(keys, maintain_order=True):
        _, _, model, machine, batch = key
        here = placed.filter(
            pl.col("model") == model, pl.col("machine") == machine, pl.col("batch_words") == batch, pl.col("tier") == "hb"
        )
        experts = dict(here.filter(pl.col("part") == "experts").select("scheme", "gb").iter_rows())
        yield "|".join(map(str, key)), mapping_answer(experts, of)


def mapping_answer(experts: dict[str, float], rounds: pl.DataFrame) -> str:
    """Room for experts by scheme, and accept length, draft and verify of each."""
    names = known(SCHEMES, rounds["scheme"])
    room = joined([f"{significant(experts[n]) if n in experts else 'none'}{' GB' if n in experts else ''} ({n})" for n in names])
    by_name = {row["scheme"]: row for row in rounds.to_dicts()}
    said = [
        f"{n} accepts {by_name[n]['accepted_len']:.1f} tokens of a round of {significant(by_name[n]['draft_ms'])} + "
        f"{significant(by_name[n]['verify_ms'])} ms"
        for n in names
    ]
    return f"Room for experts in HB: {room}. {'; '.join(said)}."


def _mapping_chart(placed: pl.DataFrame, rounds: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    at = "datum.model === model && datum.machine === machine && datum.batch_words === batch"
    names = known(SCHEMES, rounds["scheme"])
    base = alt.Chart(alt.NamedData("placed")).transform_filter(at)
    y = alt.Y("scheme:N", title=None, sort=names, axis=alt.Axis(domain=False, ticks=False))
    scale = alt.Scale(domain=[said for said, _ in PARTS.values()], range=[colour for _, colour in PARTS.values()])
    colour = alt.Color("words:N", scale=scale, legend=alt.Legend(title=None, orient="top", columns=7))
    tips = [alt.Tooltip("scheme:N"), alt.Tooltip("words:N", title="part"), alt.Tooltip("gb:Q", title="GB", format=".3f")]
    tiers = []
    for tier, words in TIERS.items():
        of = base.transform_filter(f"datum.tier === {theme.quote(tier)}")
        x = alt.X("gb:Q", title=f"{words}: bytes at rest (GB)", stack="zero", axis=alt.Axis(tickCount=6))
        axis = y if tier == "hb" else alt.Y("scheme:N", title=None, sort=names, axis=None)
        tiers.append(
            of.mark_bar(height=20).encode(x, axis, colour, alt.Order("place:Q"), tooltip=tips).properties(width=430, height=130)
        )
    every = alt.Chart(alt.NamedData("rounds")).transform_filter(f"{at} && datum.law === law && datum.level === level")
    panels = []
    for n, (column, title) in enumerate(MEASURES.items()):
        x = alt.X(f"{column}:Q", title=title, axis=alt.Axis(tickCount=5))
        side = alt.Y("scheme:N", title=None, sort=names, axis=alt.Axis(domain=False, ticks=False) if n == 0 else None)
        bars = every.mark_bar(height=18).encode(
            x, side, scheme_colour(None), tooltip=[alt.Tooltip("scheme:N"), alt.Tooltip(f"{column}:Q", format=".3f")]
        )
        text = every.mark_text(align="left", dx=5, fontSize=12).encode(
            x, side, text=alt.Text(f"{column}:Q", format=".3~g" if n else ".2f")
        )
        panels.append(alt.layer(bars, text).properties(width=265, height=120))
    rows = [
        alt.hconcat(*tiers, spacing=34).resolve_scale(color="shared"),
        alt.hconcat(*panels, spacing=44),
    ]
    title = source(rounds, "no open value in the paper for these panels", level="level")
    return stacked(rows, title, params(start, "law", "level", "model", "machine", "batch"), spacing=30).resolve_scale(
        color="independent"
    )


def latency_part(table: pl.DataFrame, start: dict[str, str]) -> Part:
    """Figure 13. table: rows of Table 3."""
    question = "Where do a round's milliseconds go, as the batch grows?"
    found = _rounds(table)
    if found.is_empty():
        return Part((Figure("latency", question, None, {}, (), "", NO_TABLE),))
    reading = (
        "A round drafts several steps and verifies once; a speed-up also needs the tokens that it accepts. Elastic-SD "
        "verifies from slices: half of every hit still comes from EXT, but twice as many experts fit. Pale: draft; full: "
        "verify. The paper's Figure 13 has Qwen3-30B-A3B; its bars carry no printed value."
    )
    said = {
        f"{law}|{level}|{model}": latency_answer(of)
        for (law, level, model), of in table.group_by(["law", "level", "model"], maintain_order=True)
    }
    figure = Figure("latency", question, _latency_chart(found, start), said, ("law", "level", "model"), reading, NO_TABLE)
    return Part((figure,), data={"rounds": _carried(found)})


def latency_answer(table: pl.DataFrame) -> str:
    """Elastic-SD's verification over EAGLE3's by machine and batch, and the share of its draft."""
    said = []
    for (machine,), of in table.sort("gib", "batch").group_by(["machine"], maintain_order=True):
        ours, theirs = (of.filter(pl.col("scheme") == name) for name in (ELASTIC, EAGLE))
        if ours.is_empty() or ours.height != theirs.height:
            continue
        ratios = (ours["verify_ms"] / theirs["verify_ms"]).to_list()
        ends = [f"{r:.2f} × at batch {b}" for r, b in zip(ratios, ours["batch"].to_list(), strict=True)]
        share = float((ours["draft_ms"] / (ours["draft_ms"] + ours["verify_ms"])).mean())
        kept = [ends[0], ends[-1]] if len(ends) > 1 else ends
        less = sum(r < 1 - FLAT for r in ratios)
        said.append(
            f"with {machine}, verification takes {joined(kept)} (shorter at {less} of {len(ratios)} batches), its draft "
            f"{percent(share, 0)} of the round"
        )
    return f"{ELASTIC} beside {EAGLE}: {'; '.join(said)}." if said else f"{ELASTIC} and {EAGLE} were not computed side by side."


def _latency_chart(found: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("rounds")).transform_filter(
        "datum.law === law && datum.level === level && datum.model === model"
    )
    base = base.transform_fold(list(ROUND), as_=["column", "ms"])
    base = base.transform_calculate(step=f"({theme.literal(ROUND)})[datum.column]")
    names = known(SCHEMES, found["scheme"])
    x = alt.X("batch:O", title="batch (requests)", axis=alt.Axis(labelAngle=0))
    y = alt.Y("ms:Q", title="a round (ms)", stack="zero")
    beside = alt.XOffset("scheme:N", sort=names)
    strength = alt.Opacity(
        "step:O",
        scale=alt.Scale(domain=list(ROUND.values()), range=[0.4, 1]),
        legend=alt.Legend(title=None, orient="top", symbolType="square", symbolOpacity=1),
    )
    tips = [
        alt.Tooltip("scheme:N"),
        alt.Tooltip("machine:N", title="HB"),
        alt.Tooltip("batch:Q"),
        alt.Tooltip("step:N"),
        alt.Tooltip("ms:Q", title="ms", format=".2f"),
        alt.Tooltip("is_withheld:N", title="speed-ups withheld"),
    ]
    bars = base.mark_bar().encode(
        x, y, beside, scheme_colour(LEGEND), strength, alt.Order("step:N", sort="descending"), tooltip=tips
    )
    machines = found.select("machine", "gib").unique().sort("gib")["machine"].to_list()
    drawn = bars.properties(width=480, height=260).facet(
        alt.Facet("machine:N", title=None, sort=machines, header=HEADER), columns=2, spacing=24
    )
    return stacked(
        [drawn], source(found, "the tooltip tells withheld cells", level="level"), params(start, "law", "level", "model")
    )

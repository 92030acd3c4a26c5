"""The ELMoE-3D page on what a batch does to a pass (Figure 4): operations per byte, experts touched, gains of a head."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.elmoe3d import rows
from tokentape.dashboards.elmoe3d.words import EAGLE, MODES, PASS_PARTS, facts
from tokentape.dashboards.engine import Ask, Drawn, some
from tokentape.dashboards.units import highest, joined, lowest, significant

KNEES = {"knee hb": "HB", "knee ext": "EXT"}


def intensity(ask: Ask) -> Drawn:
    found, table = some(ask("intensity")), some(ask.made(rows.table))
    passes, touched = _passes(found), _touched(table)
    said = {
        f"{law}|{level}|{machine}": answer(found.filter(pl.col("machine") == machine), of)
        for (law, level, machine), of in table.group_by(["law", "level", "machine"], maintain_order=True)
    }
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


def answer(intensity: pl.DataFrame, table: pl.DataFrame) -> str:
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

"""The ELMoE-3D page on what is reproduced: errors against their bars under every hit model, and the paper's summary numbers."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import claims
from tokentape.dashboards.elmoe3d.words import HEADLINE_FIT, HONESTY, LAWS, PAPER, facts
from tokentape.dashboards.engine import Ask, Drawn, known, some
from tokentape.dashboards.units import joined, percent

ERRORS, SHARES = "error (%; lower is better)", "share, ratio or rank correlation (%; 100 is best)"
TABLE_PLACE = "Table 3"  # shown cell by cell in figures of its own
MOST_ERROR = 0.32  # of the axis; larger ones stand at its end


def checks(ask: Ask) -> Drawn:
    found = some(held(ask("checks")))
    panels = [
        {
            "item": panel,
            "scale": scale,
            "width": width,
            "names": found.filter(pl.col("panel") == panel)["block"].unique().sort().to_list(),
        }
        for panel, width, scale in ((ERRORS, 290, f"domain=[0,{MOST_ERROR}]"), (SHARES, 230, "zero=no nice=yes"))
    ]
    own = {
        "most": percent(MOST_ERROR, 0),
        "panels": panels,
    }
    return Drawn({"checks": found}, {"": checks_answer(found)}, facts(found) | own)


def summary(ask: Ask) -> Drawn:
    """The paper's other numbers; Table 3 is shown cell by cell."""
    stated = claims.rows(ask.connection, PAPER).filter(pl.col("location") != TABLE_PLACE)
    answered = some(stated.drop_nulls("replay"))
    return Drawn({"claims": answered}, {"": f"{claims.answer(stated)} {HONESTY}"}, {"ours": "replay (over what is not given)"})


def held(checks: pl.DataFrame) -> pl.DataFrame:
    """Errors, shares and ratios of the fit that predicts, the panel they belong to, and whether the bar is held."""
    if checks.is_empty():
        return checks
    is_error = pl.col("block").str.contains("error") & ~pl.col("block").str.contains("share within")
    kept = checks.filter((pl.col("fit") == HEADLINE_FIT) & (pl.col("unit") == "1"))
    inside = (pl.col("bar_low") <= pl.col("value")) & (pl.col("value") <= pl.col("bar_high"))
    return kept.with_columns(
        panel=pl.when(is_error).then(pl.lit(ERRORS)).otherwise(pl.lit(SHARES)),
        law_words=pl.col("law").replace(LAWS),
        inside=inside,
        shown=pl.when(is_error).then(pl.min_horizontal("value", pl.lit(MOST_ERROR))).otherwise("value"),
        form=pl.format("{}, {}", pl.col("law").replace(LAWS), "level"),
    )


def checks_answer(found: pl.DataFrame) -> str:
    """How many bars the headline and each other hit model hold, and the mean errors of each."""
    said = []
    for law in known(LAWS, found["law"]):
        of = found.filter(pl.col("law") == law, pl.col("level") == "L1")
        barred = of.drop_nulls("bar_low")
        if barred.is_empty():
            continue
        missed = barred.filter(~pl.col("inside"))["block"].to_list()
        errors = dict(of.select("block", "value").iter_rows())
        means = [
            f"{words} {percent(errors[block])}"
            for words, block in (("AR", "Phi_AR error, open rows, mean"), ("SD", "Phi_SD error, open rows, mean"))
            if block in errors
        ]
        kept = f"{LAWS.get(law, law)} holds {barred.height - len(missed)} of {barred.height} bars"
        said.append(kept + (f" (mean errors over open rows: {joined(means)})" if means else ""))
    first = "; ".join(said)
    return f"{first[:1].upper()}{first[1:]}. {HONESTY}" if said else f"No bar is set. {HONESTY}"

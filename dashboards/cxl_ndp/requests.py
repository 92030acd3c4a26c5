"""The CXL GPU-NDP page on whole requests: a batch from prompt to last token, by length and by what the clock is spent on."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.cxl_ndp.words import COLUMNS, HOBBIT, MAIN, MONDE, OURS, SYSTEMS, setups, times
from tokentape.dashboards.engine import Ask, Control, Drawn, known, some, turn_of
from tokentape.dashboards.units import highest, joined, lowest, percent, quantity

LENGTHS = Control("lengths", "Lengths")


def requests(ask: Ask) -> Drawn:
    found = some(ask("requests").filter(pl.col("system").is_in(MAIN)))
    published = ask("published")
    found = found.with_columns(at=pl.format("{} → {}", "prompt", "answer"), turn=turn_of("system", MAIN)).sort(
        "setup", "lengths", "prompt", "answer", "turn"
    )
    said = {
        f"{setup}|{lengths}": answer(of, published.filter((pl.col("over") == "e2e") & (pl.col("model") == setup)))
        for (setup, lengths), of in found.group_by(["setup", "lengths"], maintain_order=True)
    }
    kept = (
        "setup",
        "lengths",
        "at",
        "system",
        "turn",
        "batch",
        "streamed",
        *COLUMNS,
        "ndp_s",
        "e2e_s",
        "e2e_gain",
        "low",
        "high",
    )
    seconds = "format(datum.e2e_s, datum.e2e_s < 10 ? '.1f' : ',.0f') + ' s'"
    gain = " + ' | ' + format(datum.e2e_gain, '.1f') + ' ×'"
    each = [
        {
            "system": system,
            "words": seconds + (gain if system != MONDE else ""),
            "heading": "prompt → answer (tokens)" if n == 0 else None,
            "side": "bare labelFontSize=12" if n == 0 else "none",
            "width": 248 if n == 0 else 240,
        }
        for n, system in enumerate(known(SYSTEMS, found["system"]))
    ]
    extended = " Answers longer than the routing go on with its mean step." if found["is_extrapolated"].any() else ""
    ats = found.select("prompt", "answer", "at").unique().sort("prompt", "answer")["at"].to_list()
    return Drawn(
        {"requests": found.select(*kept)},
        said,
        {"each": each, "ats": ats, "extended": extended, "setup": setups(found)[0]},
        controls=(LENGTHS,),
        choices=tuple(found.select("setup", "lengths").unique(maintain_order=True).to_dicts()),
    )


def answer(found: pl.DataFrame, published: pl.DataFrame) -> str:
    """Gains over MoNDE from the least to the most over the lengths, the order of the systems, and where ours spends its time.

    published: the paper's ranges, of this setup.
    """
    said = []
    for system in known(SYSTEMS, set(OURS) & set(found["system"])):
        of = found.filter(pl.col("system") == system)
        paper = dict(published.filter(pl.col("system") == system).select("statistic", "published").iter_rows())
        beside = f" (paper {paper['min']:g} to {paper['max']:g})" if paper.keys() >= {"min", "max"} else ""
        said.append(f"{system} is {lowest(of['e2e_gain']):.1f} to {times(highest(of['e2e_gain']))}{beside}")
    first = found.filter(pl.col("system").is_in(OURS)).head(1).to_dicts()
    if not said:
        return "None of our own systems was computed."
    over = first[0]["system"]
    hobbit = found.filter(pl.col("system") == over)["gain_over_hobbit"].drop_nulls()
    up_to = f", {over} up to {times(highest(hobbit))} {HOBBIT}" if hobbit.len() else ""
    row = first[0]
    parts = sorted(((row[name] / row["e2e_s"], words) for name, words in COLUMNS.items()), reverse=True)
    spent = joined([f"{percent(share, 0)} {words}" for share, words in parts[:3]])
    return (
        f"Over {found['at'].n_unique()} pairs of lengths {joined(said)} as fast as {MONDE}{up_to}. {_order(found)} {row['at']} "
        f"takes {over} {quantity(row['e2e_s'], 's')}: {spent}; its NDP is busy for {quantity(row['ndp_s'], 's')}."
    )


def _order(found: pl.DataFrame) -> str:
    """Whether the systems come in the same order at every pair of lengths."""
    orders = [tuple(of.sort("e2e_s")["system"]) for _, of in found.group_by(["at"], maintain_order=True)]
    usual = max(dict.fromkeys(orders), key=orders.count)
    where = "every pair" if orders.count(usual) == len(orders) else f"{orders.count(usual)} of {len(orders)} pairs"
    return f"{' < '.join(usual)} in time at {where}."

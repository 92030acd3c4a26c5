"""The CXL GPU-NDP page on systems: decode throughput by model, whole requests from prompt to last token, and the clock of one
layer-step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tokentape.dashboards.cxl_ndp.words import COLUMNS, HEADLINE, HOBBIT, MAIN, MONDE, OURS, SYSTEMS, setups, times
from tokentape.dashboards.engine import Ask, Control, Drawn, known, rows_like, sentences, some, turn_of
from tokentape.dashboards.theme import ROLES
from tokentape.dashboards.units import highest, joined, lowest, percent, quantity, significant

OVER = {"monde": ("decode_gain", MONDE), "hobbit": ("gain_over_hobbit", HOBBIT)}
TICKS = [m * 10**n for n in range(7) for m in (1, 3)]
BANDED = ("tokens_per_s", *(metric for metric, _ in OVER.values()))
LENGTHS = Control("lengths", "Lengths")
LANES = {"gpu": "GPU", "ndp": "NDP", "pcie": "link"}


def throughput(ask: Ask) -> Drawn:
    found = some(ask("points").filter((pl.col("series") == HEADLINE) & pl.col("system").is_in(MAIN)))
    order = setups(found)
    found = with_published(found, ask("published")).sort(turn_of("setup", order), turn_of("system", MAIN))
    kept = [f"{name}{end}" for name in BANDED for end in ("", "_low", "_high")]
    data = found.select("setup", "system", "batch", "hot", "mean_bits", "step_s", *kept, *(f"paper_{over}" for over in OVER))
    own = {"height": 76 * len(order), "ticks": TICKS}
    return Drawn({"throughput": data}, {"": throughput_answer(found)}, own)


def with_published(found: pl.DataFrame, published: pl.DataFrame) -> pl.DataFrame:
    """With the paper's ratios of a model, paper_monde and paper_hobbit, and role_ of each; null where it has none."""
    for over in OVER:
        paper = {f"paper_{over}": "published", f"role_{over}": "role"}
        of = published.filter(pl.col("over") == over).select("system", setup="model", **paper)
        found = found.join(of, on=["setup", "system"], how="left")
    return found


def throughput_answer(found: pl.DataFrame) -> str:
    """Throughput and gains of ours on the first setup beside the paper's, then on the others."""
    said: list[str] = []
    ours = found.filter(pl.col("system").is_in(OURS)).drop_nulls("decode_gain")
    for (setup,), of in ours.group_by(["setup"], maintain_order=True):
        rows = of.to_dicts()
        if said:
            gains = [f"{row['decode_gain']:.1f}" for row in rows]
            said.append(f"{setup} {joined(gains)}")
        else:
            each = [f"{row['system']} decodes {significant(row['tokens_per_s'])} tokens/s, {_gains(row)}" for row in rows]
            said.append(f"On {setup} at batch {rows[0]['batch']}, {'; '.join(each)}.")
    if not said:
        return "None of our own systems was computed."
    others = f" With the same constants, × {MONDE} ({joined(ours['system'].unique().sort().to_list())}): {'; '.join(said[1:])}."
    return said[0] + (others if said[1:] else "")


def _gains(row: Mapping[str, Any]) -> str:
    """Over every baseline, with the paper's ratio where it has one."""
    said = []
    for over, (metric, name) in OVER.items():
        if row[metric] is not None:
            role = ROLES.get(row[f"role_{over}"], ("",))[0].partition(":")[0]
            beside = f" (paper {row[f'paper_{over}']:g}, {role})" if row[f"paper_{over}"] is not None else ""
            said.append(f"{times(row[metric])} {name}{beside}")
    return joined(said)


def requests(ask: Ask) -> Drawn:
    found = some(ask("requests").filter(pl.col("system").is_in(MAIN)))
    published = ask("published").filter(pl.col("over") == "e2e").rename({"model": "setup"})
    found = found.with_columns(at=pl.format("{} → {}", "prompt", "answer"), turn=turn_of("system", MAIN)).sort(
        "setup", "lengths", "prompt", "answer", "turn"
    )
    said = sentences(found, ["setup", "lengths"], lambda of: requests_answer(of, rows_like(published, of, "setup")))
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


def requests_answer(found: pl.DataFrame, published: pl.DataFrame) -> str:
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


def lanes(ask: Ask) -> Drawn:
    found = some(ask("lanes").filter(pl.col("system").is_in(MAIN)))
    end = (pl.col("start_ms") + pl.col("ms")).max().over("model", "system")
    found = found.with_columns(
        setup="model", end=end, lane=pl.col("lane").replace(LANES), short=pl.col("label").str.replace("expert ", "e")
    )
    lists = [pl.col(name) for name in ("short", "start_ms", "ms")]  # a row per segment would be most of the page
    data = found.group_by("setup", "system", "lane", "kind", "end", maintain_order=True).agg(lists)
    systems = [{"system": name, "heading": f"{name}: "} for name in known(SYSTEMS, found["system"])]
    pairs = [{"systems": systems[n : n + 2]} for n in range(0, len(systems), 2)]
    return Drawn({"lanes": data}, sentences(found, ["model"], lanes_answer), {"pairs": pairs, "setup": found["model"][0]})


def lanes_answer(found: pl.DataFrame) -> str:
    """Length of the step in every system, and the busiest lane of each; rows of one model."""
    said, lengths = [], {}
    for system in known(SYSTEMS, found["system"]):
        of = found.filter(pl.col("system") == system)
        lengths[system] = length = float(of["end"][0])
        busy = of.group_by("lane").agg(pl.col("ms").sum()).sort("ms", "lane", descending=[True, False]).row(0)
        said.append(f"{significant(length)} ms on {system} ({busy[0]} busy for {percent(busy[1] / length, 0)})")
    ours = next((name for name in OURS if name in lengths), None)
    over = (
        f" {ours} is through before {MONDE} has done {percent(lengths[ours] / lengths[MONDE], 0)} of its step."
        if (ours and MONDE in lengths)
        else ""
    )
    return f"The step takes {joined(said)}.{over}"

"""The CXL GPU-NDP page on systems: decode throughput by model, whole requests from prompt to last token, and the clock of one
layer-step."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.cxl_ndp.words import COLUMNS, HEADLINE, MAIN, MONDE, OVER, SYSTEMS, setups
from tokentape.dashboards.engine import Ask, Control, Drawn, known, some, turn_of

TICKS = [m * 10**n for n in range(7) for m in (1, 3)]
BANDED = ("tokens_per_s", *(metric for metric, _ in OVER.values()))
LENGTHS = Control("lengths", "Lengths")


def throughput(ask: Ask) -> Drawn:
    found = some(ask("points").filter((pl.col("series") == HEADLINE) & pl.col("system").is_in(MAIN)))
    order = setups(found)
    found = with_published(found, ask("published")).sort(turn_of("setup", order), turn_of("system", MAIN))
    kept = [f"{name}{end}" for name in BANDED for end in ("", "_low", "_high")]
    data = found.select("setup", "system", "batch", "hot", "mean_bits", "step_s", *kept, *(f"paper_{over}" for over in OVER))
    own = {"height": 76 * len(order), "ticks": TICKS}
    return Drawn({"throughput": data}, facts=own, said=found)


def with_published(found: pl.DataFrame, published: pl.DataFrame) -> pl.DataFrame:
    """With the paper's ratios of a model, paper_monde and paper_hobbit, and role_ of each; null where it has none."""
    for over in OVER:
        paper = {f"paper_{over}": "published", f"role_{over}": "role"}
        of = published.filter(pl.col("over") == over).select("system", setup="model", **paper)
        found = found.join(of, on=["setup", "system"], how="left")
    return found


def requests(ask: Ask) -> Drawn:
    found = some(ask("requests").filter(pl.col("system").is_in(MAIN)))
    published = ask("published").filter(pl.col("over") == "e2e").rename({"model": "setup"})
    found = found.with_columns(at=pl.format("{} → {}", "prompt", "answer"), turn=turn_of("system", MAIN)).sort(
        "setup", "lengths", "prompt", "answer", "turn"
    )
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
        facts={"each": each, "ats": ats, "extended": extended, "setup": setups(found)[0], "published": published},
        said=found,
        controls=(LENGTHS,),
        choices=tuple(found.select("setup", "lengths").unique(maintain_order=True).to_dicts()),
    )


def lanes(ask: Ask) -> Drawn:
    found = some(ask("lanes").filter(pl.col("system").is_in(MAIN)))
    lists = [pl.col(name) for name in ("short", "start_ms", "ms")]  # a row per segment would be most of the page
    data = found.group_by("setup", "system", "lane", "kind", "end", maintain_order=True).agg(lists)
    systems = [{"system": name, "heading": f"{name}: "} for name in known(SYSTEMS, found["system"])]
    pairs = [{"systems": systems[n : n + 2]} for n in range(0, len(systems), 2)]
    return Drawn({"lanes": data}, facts={"pairs": pairs, "setup": found["model"][0]}, said=found)

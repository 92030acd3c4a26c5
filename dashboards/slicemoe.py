"""The SliceMoE page: the paper's numbers beside ours, gains at equal kept gate mass, warm-ups, live models, open loop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

import duckdb
import polars as pl

from dashboards import slicemoe_answers as answers
from dashboards import slicemoe_charts as charts
from dashboards import slicemoe_operating, slicemoe_tape
from dashboards import slicemoe_rows as rows
from dashboards import slicemoe_words as words
from dashboards.answers import percent
from dashboards.shell import Control, Figure, Page, with_parts

FILE, TITLE = "slicemoe.html", "SliceMoE"
LEAD = (
    "Bit-sliced expert caching: each expert is cached as a low-precision slice and the bits that complete it. DBSC reads those "
    "only for the experts that matter most to a token. What it gains, beside the paper's numbers, and where it loses."
)
STUDY = "Run: tokentape study slicemoe, then tokentape load and tokentape site."
NO_CLAIMS = f"Nothing to draw: no number of the paper is answered. {STUDY}"
NO_POINTS = f"Nothing to draw: no sliced replay is recorded. {STUDY}"
NO_LIVE = (
    "Nothing to draw: no sliced cache has run inside a model. Run: tokentape evaluate --model embedded --datasets code --policy "
    "slicemoe --param pair=MAT42 --param precision=dbsc --param budget=hard --param budget.target_frac=0.05 --seeds 4 (again "
    "with precision=high-bit and low-bit, and with other targets), then tokentape load and tokentape site."
)
NO_FIDELITY = (
    "Nothing to draw: open and closed loop are not compared. Run: tokentape fidelity --model embedded --param router=cache_prior "
    "--param precision=high-bit --cache 50%, then tokentape load and tokentape site."
)
SEEDS = "Bands: least to most of the seeds."
PROXY = "Kept gate mass is a proxy that a replay can see, less a charge for low precision; it says nothing certain of answers."


def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
    """The page over everything recorded; `size` says how many live setups, fidelity setups and tapes it carries."""
    claims = words.claims(rows.claims(connection))
    gains = words.gains(rows.gains(connection), rows.paper_gains(connection))
    sweeps = words.configured(rows.sweeps(connection))
    warmups = words.warmups(rows.warmups(connection), claims)
    live, fidelity = words.live(rows.quality(connection), size), words.fidelity(rows.fidelity(connection), size)
    choices = _choices(sweeps, live, claims)
    data = {
        "claims": claims.drop_nulls("replay"),
        "gains": gains,
        "sweeps": sweeps,
        "warmups": warmups,
        "live": live,
        "fidelity": fidelity,
    }
    names = dict(gains.select("model", "name").unique().iter_rows())
    controls = (
        Control("model", "Model", names),
        Control("cache", "Cache"),
        Control("tau", "Threshold tau of DBSC"),
        Control("setup", "Live model"),
    )
    start = choices[0] if choices else {}
    own = Page(
        FILE,
        TITLE,
        LEAD,
        "page.html",
        figures=(
            _claims_figure(claims),
            *_replayed(gains, sweeps, warmups, start),
            _live_figure(live, start),
            _fidelity_figure(fidelity),
        ),
        controls=tuple(control for control in controls if control.name in start),
        choices=tuple(choices),
        data={name: frame for name, frame in data.items() if not frame.is_empty()},
    )
    return with_parts(own, slicemoe_operating.part(connection), slicemoe_tape.part(connection, size))


def _choices(sweeps: pl.DataFrame, live: pl.DataFrame, claims: pl.DataFrame) -> list[dict[str, str]]:
    """Every model, cache and tau with every live setup; the tau that the study chose first."""
    chosen = re.findall(r"tau ([0-9.]+)", " ".join(claims["how"].to_list()))
    swept = sweeps.filter(pl.col("configuration") == "DBSC").select("model", "cache", "tau").unique(maintain_order=True)
    swept = swept.sort(pl.col("tau").is_in(chosen[:1]), descending=True, maintain_order=True)
    replayed, setups = swept.to_dicts() or [{}], [{"setup": name} for name in live["setup"].unique(maintain_order=True)] or [{}]
    return [choice for r, s in product(replayed, setups) if (choice := {**r, **s})]


def _claims_figure(claims: pl.DataFrame) -> Figure:
    is_answered = not claims.drop_nulls("replay").is_empty()
    return Figure(
        "claims",
        "How near are our numbers to the paper's?",
        charts.claims() if is_answered else None,
        {"": answers.claims(claims)} if is_answered else {},
        (),
        f"{SEEDS} Calibrated numbers were fitted, so their nearness proves nothing; predicted ones were never looked at. A "
        "number that the paper states as a bound has words only. Numbers without an answer need the real models' weights.",
        NO_CLAIMS,
    )


def _replayed(gains: pl.DataFrame, sweeps: pl.DataFrame, warmups: pl.DataFrame, start: dict[str, str]) -> Iterator[Figure]:
    """What the study's replays show: gains, sweeps, warm-ups."""
    taus = [tau for tau in gains["tau"].unique(maintain_order=True) if tau]
    at = percent(rows.MATCHED_FRAC, 0)
    yield Figure(
        "gains",
        "What does bit-sliced caching gain at equal kept gate mass?",
        charts.gains(start, gains["gb"].unique().sort().to_list()) if taus else None,
        {tau: answers.gains(gains, tau) for tau in taus},
        ("tau",),
        f"Over the high-bit cache with Cache-Prior, both read where they keep {at} of the natural route's gate mass. {PROXY} "
        f"Dashed: the largest gain that the paper prints. *: a sweep does not cross {at} and is read at its end. {SEEDS}",
        NO_POINTS,
    )
    by_place = sweeps.select("model", "cache", "tau").unique(maintain_order=True).filter(pl.col("tau") != "")
    yield Figure(
        "sweeps",
        "How much gate mass is kept at which miss rate and energy?",
        charts.sweeps(start, _names(sweeps)) if not by_place.is_empty() else None,
        {
            "|".join(place): answers.sweep(_of(gains, *place))
            for place in by_place.iter_rows()
            if not _of(gains, *place).is_empty()
        },
        ("model", "cache", "tau"),
        f"Each point is a strength of Cache-Prior; stronger goes left. Dashed: {at}, where the systems are compared. AMAT moves "
        f"the same bytes as low-bit, so their lines coincide: it differs in the weights. {PROXY} {SEEDS}",
        NO_POINTS,
    )
    held = warmups.row(0, named=True) if not warmups.is_empty() else {}
    yield Figure(
        "warmups",
        "What does the cache's content at the first decoded token matter?",
        charts.warmups(start) if held else None,
        {str(key[0]): answers.warmups(group) for key, group in warmups.partition_by("model", as_dict=True).items()},
        ("model",),
        f"DBSC with {held['gb']:g} GB, budget {held['budget']}, Cache-Prior {held['strength']:g}. Dashed: what the paper's "
        f"gains of PCW over an empty cache amount to. {SEEDS}"
        if held
        else "",
        NO_POINTS,
    )


def _live_figure(live: pl.DataFrame, start: dict[str, str]) -> Figure:
    return Figure(
        "live",
        "What does a live model lose at which miss rate?",
        None if live.is_empty() else charts.live(start, _names(live)),
        {setup: answers.live(live, setup) for setup in live["setup"].unique(maintain_order=True)},
        ("setup",),
        "Measured closed loop: the policy runs inside the model. Each point is a budget, met by keeping tokens from experts that "
        "are not cached. Seeds read different texts, so their bands are wide; configurations of one seed read the same. DBSC has "
        f"low precision for most experts: where a high-bit cache misses under {percent(answers.HARDLY_MISSES_FRAC, 0)} by itself "
        "there is little left to save, and DBSC tends to lose.",
        NO_LIVE,
    )


def _fidelity_figure(fidelity: pl.DataFrame) -> Figure:
    longest = 0.0 if fidelity.is_empty() else max(fidelity["low"].abs().max(), fidelity["high"].abs().max())
    return Figure(
        "fidelity",
        "How far is open-loop replay from the closed loop?",
        None if fidelity.is_empty() else charts.fidelity(longest or 0.01),
        {} if fidelity.is_empty() else {"": answers.fidelity(fidelity)},
        (),
        "A rerouted token changes what the model does next; a replay of the unmodified model's scores cannot know that. Same "
        f"policy, same text. Right of zero the replay is too high. Words: open loop, closed loop. {SEEDS}",
        NO_FIDELITY,
    )


def _names(found: pl.DataFrame) -> list[str]:
    """Configurations in drawing order, unknown ones behind."""
    there = set(found["configuration"])
    return [name for name in charts.LOOKS if name in there] + sorted(there - charts.LOOKS.keys())


def _of(gains: pl.DataFrame, model: str, cache: str, tau: str) -> pl.DataFrame:
    """Gains of one place; those of low-bit have no tau."""
    return gains.filter((pl.col("model") == model) & (pl.col("cache") == cache) & pl.col("tau").is_in(["", tau]))

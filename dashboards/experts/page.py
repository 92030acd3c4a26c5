"""The expert-cache page: which policy, at which capacity, at what latency and energy, and why the tape makes it so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import duckdb
import polars as pl

from tokentape.dashboards import answers, rows, theme
from tokentape.dashboards.engine import Ask, Control, Drawn, Figure, Page, Part, with_figures
from tokentape.dashboards.experts import charts as expert_charts
from tokentape.dashboards.experts.words import REPLAY_FIRST

FILE, TITLE = "experts.html", "Expert cache"
SETTING = ("trace", "hardware", "scope", "rules")
FIGURES = ("popularity", "reuse", "locality", "similarity")  # after those of policies, which share a pick and are drawn by code
PHASES = ("decode", "prefill")
SCOPES = {"global": "one cache for all layers", "per-layer": "an equal share for each layer"}
LEAD = (
    "How large a cache of experts must be, which policy should manage it, and what that costs per token. "
    "Belady sees the future: a bound, no method."
)


def asked(connection: duckdb.DuckDBPyConnection, trace_ids: list[str], size: int = 16) -> Ask:
    return Ask(connection, Path(__file__).parent, size, {"traces": trace_ids})


def page(connection: duckdb.DuckDBPyConnection, max_traces: int) -> Page:
    """The page over the first `max_traces` tapes of the catalogue (rows.traces), replayed ones first."""
    catalogue = rows.traces(connection)
    shown = catalogue.head(max_traces)
    trace_ids = shown["trace_id"].to_list()
    runs = rows.runs(connection, trace_ids)
    choices = _choices(runs, trace_ids)
    start = choices[0] if choices else {}
    few = f" Shown: {shown.height} of {catalogue.height} tapes, those with most replays first."
    own = Page(
        FILE,
        TITLE,
        LEAD + few * (catalogue.height > shown.height),
        "page.html",
        controls=_controls(shown, runs),
        choices=tuple(choices),
        data={} if runs.is_empty() else {"runs": runs.drop("family", "policy_params", "denominator")},
    )
    ask = asked(connection, trace_ids, max_traces)
    return with_figures(own, ask, (Part(tuple(_policy_figures(runs, start))), *FIGURES))


def popularity(ask: Ask) -> Drawn:
    return Drawn({"popularity": ask("popularity")}, said=ask("crowd"))


def _policy_figures(runs: pl.DataFrame, start: dict[str, str]) -> Iterator[Figure]:
    """Hit rate, then latency and energy, against capacity."""
    lines = theme.lines(runs.select("family", "policy", "bound").unique().iter_rows())
    counted = " and ".join(runs["denominator"].drop_nulls().unique().sort().to_list()) or "unique lookups"
    yield Figure(
        "hits",
        "How often is the expert already there?",
        None if runs.is_empty() else expert_charts.hit_rate(lines, start),
        _answers(runs, SETTING, lambda group: {phase: answers.hit_rate(group, phase) for phase in PHASES}),
        (*SETTING, "phase"),
        f"Hit rate is hits divided by {counted}: an expert that several tokens of one step use counts once. "
        "Means over seeds where a policy draws at random. Click a policy in a legend to see it alone in every chart; "
        "double-click for all.",
        REPLAY_FIRST,
    )
    timed = runs.drop_nulls("step_ms")
    yield Figure(
        "cost",
        "What does a decoded token cost?",
        None if timed.is_empty() else expert_charts.cost(lines, start),
        _answers(timed, SETTING, lambda group: {"": answers.cost(group)}),
        SETTING,
        "Mean decode step and its energy on the simulated hardware; prefill is not in it. Where the hardware file gives ranges, "
        "the picked policy shows its band.",
        REPLAY_FIRST,
    )


def _answers(frame: pl.DataFrame, by: tuple[str, ...], say: Callable[[pl.DataFrame], dict[str, str]]) -> dict[str, str]:
    """One sentence per selection; `say` may add a last part to the key."""
    return {
        "|".join([*map(str, key), last] if last else map(str, key)): sentence
        for key, group in frame.group_by(by, maintain_order=True)
        for last, sentence in say(group).items()
    }


def _choices(runs: pl.DataFrame, trace_ids: list[str]) -> list[dict[str, str]]:
    """Selections that exist, in the order of the catalogue; a tape without replays has empty settings."""
    settings = runs.select(SETTING).unique().sort("hardware", "scope", "rules").rows_by_key("trace", named=True)
    none: list[dict[str, str]] = [dict.fromkeys(SETTING[1:], "")]
    return [
        {"trace": trace, **{name: setting[name] for name in SETTING[1:]}, "phase": phase}
        for trace in trace_ids
        for setting in settings.get(trace, none)
        for phase in PHASES
    ]


def _controls(shown: pl.DataFrame, runs: pl.DataFrame) -> tuple[Control, ...]:
    """The menus, outermost first."""
    if shown.is_empty():
        return ()
    words = "{trace_id}: {model_id}, {dataset} ({origin})"
    rules: Iterable[str] = runs["rules"].unique().sort().to_list()
    none = {"": "none replayed"}
    return (
        Control("trace", "Tape", {tape["trace_id"]: words.format(**tape) for tape in shown.to_dicts()}),
        Control("hardware", "Hardware", none),
        Control("scope", "Cache scope", SCOPES | none),
        Control("rules", "Semantics", {r: rows.rules_sentence(r) for r in rules} | none),
        Control("phase", "Phase"),
    )

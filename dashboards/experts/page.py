"""The expert-cache page over the first tapes of the catalogue (rows.traces), replayed ones first: its menus and its rows."""

import json
from dataclasses import replace
from typing import Any

import polars as pl

from tokentape.dashboards import rows, theme
from tokentape.dashboards.engine import Ask, Control, Drawn, known, some, turn_of
from tokentape.dashboards.engine.ask import queries, words_of

SETTING = ("trace", "hardware", "scope", "rules")
PHASES = ("decode", "prefill")


def ready(ask: Ask) -> Ask:
    return replace(ask, params={"traces": rows.traces(ask.connection).head(ask.size)["trace_id"].to_list()})


def own(ask: Ask) -> dict[str, Any]:
    shown, runs = rows.traces(ask.connection).head(ask.size), ask.made(_replays)
    choices = tuple(_choices(runs, ask.params["traces"]))
    return {"controls": _controls(shown, runs), "choices": choices}


def hits(ask: Ask) -> Drawn:
    """Hit rate against capacity."""
    runs, facts = _runs(ask)
    counted = " and ".join(runs["denominator"].drop_nulls().unique().sort().to_list()) or "unique lookups"
    each = pl.concat(runs.with_columns(phase=pl.lit(phase), hit=f"hit_{phase}") for phase in PHASES)
    return Drawn({"runs": shown(runs)}, facts=facts | {"counted": counted}, said=each)


def cost(ask: Ask) -> Drawn:
    """Latency and energy against capacity."""
    runs, facts = _runs(ask)
    return Drawn({"runs": shown(runs)}, facts=facts, said=some(runs.drop_nulls("step_ms")))


def _replays(ask: Ask) -> pl.DataFrame:
    ask.keep(queries(rows.SQL)["runs"], studied=False)
    return rows.runs(ask.connection, ask.params["traces"])


def _runs(ask: Ask) -> tuple[pl.DataFrame, dict[str, Any]]:
    """The replays, and what the figures' files call by name; listed: the policies of a selection, which its legends have."""
    runs = some(ask.made(_replays))
    drawn = theme.lines(runs.select("family", "policy", "bound").iter_rows())
    held = {"|".join(key): known(dict.fromkeys(drawn["names"]), of["policy"]) for key, of in runs.group_by(SETTING)}
    chosen = " + '|' + ".join(SETTING)
    listed = {"expr": f"({json.dumps(held, sort_keys=True)})[{chosen}]"}
    return runs, {"reference": rows.reference_of, "listed": listed, **drawn}


def shown(runs: pl.DataFrame) -> pl.DataFrame:
    return runs.drop("family", "policy_params", "denominator", "turn", "n_replays")


def _choices(runs: pl.DataFrame, trace_ids: list[str]) -> list[dict[str, str]]:
    """Selections that exist, in the order of the catalogue."""
    settings = runs.select(SETTING).unique().sort(turn_of("trace", trace_ids), *SETTING[1:])
    return [setting | {"phase": phase} for setting in settings.to_dicts() for phase in PHASES]


def _controls(shown: pl.DataFrame, runs: pl.DataFrame) -> tuple[Control, ...]:
    """The menus, outermost first."""
    words = "{trace_id}: {model_id}, {dataset} ({origin})"
    return (
        Control("trace", "Tape", {tape["trace_id"]: words.format(**tape) for tape in shown.to_dicts()}),
        Control("hardware", "Hardware"),
        Control("scope", "Cache scope", words_of("experts")["SCOPES"]),
        Control("rules", "Semantics", {rules: rows.rules_sentence(rules) for rules in runs["rules"].unique().sort()}),
        Control("phase", "Phase"),
    )

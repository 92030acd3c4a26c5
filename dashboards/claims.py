"""A paper's numbers beside ours: the rows, the words on a chart, and the sentence above it, whatever the paper."""

import re
from typing import Any

import duckdb
import polars as pl

from tokentape.dashboards.engine import Ask, in_words, turn_of
from tokentape.dashboards.engine.ask import words_of
from tokentape.dashboards.units import percent, signed, significant
from tokentape.warehouse.claim_errors import COMPARED

RATIOS = {"replay": "ratio", "low": "ratio_low", "high": "ratio_high"}  # columns of claims -> over the paper's number
# How parts of a quantity's name are said.
SPELLED = {
    "^decode (energy|speed)": "$1", "^dram": "DRAM", "speedup": "speed-up", "^ttft": "TTFT", "^tbt": "TBT", "^e2e": "E2E",
    "^ndp side": "NDP-side", "^slo ": "SLO ", "^moe ": "MoE ", "^jain": "Jain", "^kv ": "KV ",
}  # fmt: skip
# How a reading of the same number is said.
AS_THE_PAPER = "paper"  # counted as the paper counts; behind it, what else is special
MODES = {"physical": "counted physically"}
SAID = ("claim", "said_paper", "said_replay", "said_error")

# Questions of the project's own have no published number to be near to; their answers are the fidelity figure's. Inputs and what
# follows from them cannot miss: they are no row.
_CLAIMS = f"""
select claim_id, location, role, replace(metric, '_', ' ') as quantity, model, setting, unit, statistic,
    coalesce(mode, '') as mode, paper, replay, band_low as low, band_high as high, error, coalesce(how, '') as how, bound,
    coalesce(holds, false) as holds, coalesce(is_inside, false) as is_inside
from ({COMPARED})
where system = $paper and location <> 'project' and is_counted order by claim_id, mode
"""


def rows(connection: duckdb.DuckDBPyConnection, paper: str, is_placed: bool = True, short: str = "$") -> pl.DataFrame:
    """Every number of the paper that can miss, with the study's answer where there is one, its error, or the bound that it is.

    is_placed: labels say where in the paper. short: what is left out of a setting's words: ", average" stands for it.
    """
    found = connection.sql(_CLAIMS, params={"paper": paper}).pl()
    return _worded(found.with_columns(pl.col("setting").str.replace(short, ", average", literal=True)), is_placed)


def stated(ask: Ask, **given: Any) -> pl.DataFrame:
    """The rows of the figure that figures/claims.toml describes, of the page's paper. given: as `rows` takes it."""
    given.pop("name", "")
    ask.keep(_CLAIMS, paper=ask.params["study"])
    return rows(ask.connection, ask.params["study"], **given)


def _worded(claims: pl.DataFrame, is_placed: bool) -> pl.DataFrame:
    """Claims with their words: those for calibration first."""
    roles = words_of("")["CLAIM_ROLES"]
    place = turn_of("role", roles)
    quantity_said = pl.col("quantity")
    for pattern, said in SPELLED.items():
        quantity_said = quantity_said.str.replace(pattern, said)
    told = claims.with_columns(quantity_said, place=place).sort("place", "claim_id")
    is_value, paper = pl.col("bound") == "", pl.col("paper")
    has_ratio = is_value & (paper != 0) & (pl.col("replay") / paper > 0)
    told = told.with_columns(
        [pl.when(has_ratio).then(pl.coalesce(name, "replay") / paper).alias(n) for name, n in RATIOS.items()],
        order=pl.int_range(pl.len()),
        role_words=in_words("role", roles),
    )
    words = [_claim_words(row, is_placed) for row in told.to_dicts()]
    return told.with_columns(pl.DataFrame(words, schema=dict.fromkeys(SAID, pl.String)))


def _claim_words(row: dict[str, Any], is_placed: bool) -> dict[str, str]:
    """A claim in two lines, and what the columns beside it say."""
    paper, replay, low, high = (
        "" if row[n] is None else written(row[n], row["unit"]) for n in ("paper", "replay", "low", "high")
    )
    at_most = ", at most" if row["statistic"] == "max" else ""
    where = re.sub(r"^secondary source \((.*)\)$", r"\1", row["location"])
    where = where if where[:1].isalpha() else f"section {where}"
    head = f"{row['quantity']}{at_most}" + (f", {row['model']}" if row["model"] else "")
    counted = MODES.get(row["mode"], row["mode"].removeprefix(AS_THE_PAPER).removeprefix(", "))
    head += f", {counted}" if counted else ""
    sign = {"<=": "≤ ", ">=": "≥ "}.get(row["bound"], "")
    error = "" if row["error"] is None else signed(row["error"], row["unit"])
    return {
        "claim": f"{head}|{row['setting']}" + (f" ({where})" if is_placed else ""),
        "said_paper": sign + paper,
        "said_replay": f"{replay} ({low} to {high})" if low else replay,
        "said_error": ("holds" if row["holds"] else "fails") if sign else error,
    }


def written(value: float, unit: str) -> str:
    """A number of the paper, or ours for it, with its unit."""
    if unit in ("fraction", "percent"):
        return percent(value if unit == "fraction" else value / 100)
    return f"{significant(value)} {'×' if unit == 'x' else unit}"

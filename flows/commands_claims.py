"""claims: what a study of a published system computed, beside the paper's numbers."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from flows.options import StoreOption
from flows.systems import SYSTEMS

COLUMNS = (
    "claim_id", "location", "metric", "setting", "role", "unit", "paper", "replay", "band_low", "band_high", "rel_err", "mode",
)  # fmt: skip


def claims(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help=f"{', '.join(SYSTEMS)}: the short name of the paper.")],
    format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    store: StoreOption = None,
) -> None:
    """Show a paper's numbers and what its study computed for them, with the error of each.

    Calibrated rows were fitted on, predicted ones never. A claim that the study cannot speak to is listed without a value.

    \b
    Example:
      tokentape study slicemoe && tokentape claims slicemoe
    """
    from flows.console import note, print_table
    from flows.names import unknown
    from warehouse.load import claims as published
    from warehouse.results import read_rows
    from warehouse.tape import Store

    if format not in ("table", "json"):
        raise ValueError(f"unknown format {format!r}; known: table, json")
    paper = paper.replace("-", "_")  # papers are named in claim ids, studies as words are
    of_study = paper.replace("_", "-")
    stated = [row for row in published().to_pylist() if row["paper"] == paper]
    if not stated:
        raise unknown("paper", paper, {row["paper"] for row in published().to_pylist()})
    answers = [row for row in read_rows(Store(store), "answers") if row["study"] == of_study]
    if not answers:
        raise ValueError(f"no study of {paper} in this store; run `tokentape study {of_study}` first")
    rows = [_row(claim, answer) for claim in stated for answer in _of(claim, answers)]
    if format == "json":
        print(json.dumps(rows, indent=1))
        return
    answered = [row for row in rows if row["replay"] is not None]
    comparators = {claim["claim_id"]: _comparator(claim) for claim in stated}
    shown = [
        (
            *(r[name] for name in ("role", "metric", "setting")),
            *(_number(r["paper"]), _number(r["replay"]), _band(r), _error(r, comparators[r["claim_id"]]), r["mode"]),
        )
        for r in sorted(answered, key=lambda row: row["role"])
    ]
    columns = ("role", "metric", "setting", "paper", "replay", "over seeds", "error", "mode")
    print_table(
        f"{paper}: {len({row['claim_id'] for row in answered})} of {len(stated)} claims",
        columns,
        shown,
        numbers=("paper", "replay", "error"),
    )
    n_without = len(stated) - len({row["claim_id"] for row in answered})
    if n_without:
        note(f"{n_without} claims have no value here: they need the real models (--format json lists them)")


def _of(claim: dict[str, Any], answers: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
    return [answer for answer in answers if answer["claim_id"] == claim["claim_id"]] or [None]


def _row(claim: dict[str, Any], answer: dict[str, Any] | None) -> dict[str, Any]:
    value, paper = (answer or {}).get("value"), claim["value"]
    setting = ", ".join(part for part in (claim["model"], claim["setting"]) if part)
    ours = {
        "paper": paper,
        "replay": value,
        "band_low": (answer or {}).get("low"),
        "band_high": (answer or {}).get("high"),
        "rel_err": (value - paper) / abs(paper) if value is not None and paper else None,
        "mode": (answer or {}).get("mode"),
    }
    return {**{name: claim[name] for name in COLUMNS[:6]}, "setting": setting, **ours}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _band(row: dict[str, Any]) -> str:
    return "" if row["band_low"] is None else f"{row['band_low']:.4g} to {row['band_high']:.4g}"


def _comparator(claim: dict[str, Any]) -> str:
    """How the paper states the number; some bounds are said in words alone."""
    said = any(words in claim["setting"] for words in ("at least", "more than"))
    return ">=" if said else str(claim["comparator"])


def _error(row: dict[str, Any], comparator: str) -> str:
    """The relative error, or whether a bound holds."""
    if row["rel_err"] is None:
        return ""
    if comparator in ("<=", ">="):
        holds = row["replay"] <= row["paper"] if comparator == "<=" else row["replay"] >= row["paper"]
        return f"{comparator} {'holds' if holds else 'fails'}"
    return f"{100 * row['rel_err']:+.1f} %"

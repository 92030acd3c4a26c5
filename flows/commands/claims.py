"""claims: what the studies of published systems computed, beside the papers' numbers."""

from collections.abc import Sequence
from typing import Annotated, Any

from tokentape.flows.console import band, note, number, percent, print_json, print_table
from tokentape.flows.options import PHYSICAL, JsonOption, StoreOption, argument
from tokentape.flows.systems import SYSTEMS
from tokentape.policies.names import refuse_unknown

COLUMNS = (
    "claim_id", "location", "metric", "setting", "role", "unit", "paper", "replay", "band_low", "band_high", "rel_err", "mode",
    "error", "bound", "holds", "is_inside", "is_counted",
)  # fmt: skip
ROLES = ("input", "derived", "report", "calibrate", "predict")  # as they are listed: what matters most comes last
UNCOUNTED = {"input": "the model reads them", "derived": "they follow from inputs and cannot miss"}
Row = dict[str, Any]


def claims(
    paper: Annotated[str | None, argument("[PAPER]", f"{', '.join(SYSTEMS)}: the short name of the paper. Without: all.")] = None,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Show a paper's numbers and what its study computed for them, with the error of each and of all by role.

    Calibrated rows were fitted on, predicted ones never. Inputs and what follows from them (derived) cannot miss and are not
    counted. A percentage is off by points. A claim that the study cannot speak to is listed without a value. Without PAPER, one
    line for each system that was studied.

    tokentape study slicemoe && tokentape claims slicemoe
    tokentape claims
    """
    from tokentape.warehouse.claim_errors import by_system, compared
    from tokentape.warehouse.load import claims as published
    from tokentape.warehouse.results import read_rows

    stated = published()
    answers = read_rows(store, "answers")
    if paper is None:
        if not answers:
            raise ValueError("no study of a published system in this store; run `tokentape study kelle`, say, first")
        errors = by_system(stated, answers)
        print_json(errors) if as_json else _print_systems(errors)
        return
    papers = set(stated["paper"].to_pylist())
    refuse_unknown("paper", paper, papers)
    answers = [row for row in answers if row["study"] == paper]
    if not answers:
        raise ValueError(f"no study of {paper} in this store; run `tokentape study {paper}` first")
    found, summary = compared(stated, answers)
    rows = sorted((row for row in found if row["system"] == paper), key=lambda row: ROLES.index(row["role"]))
    # What is counted physically comes apart, after what is counted as the paper does.
    summary = sorted(summary, key=lambda row: (row["mode"] == PHYSICAL, ROLES.index(row["role"]), row["mode"]))
    if as_json:
        listed = [{name: row[name] for name in COLUMNS} | {"setting": _setting(row)} for row in rows]
        print_json({"claims": listed, "summary": summary})
    else:
        _print_paper(paper, rows, summary)


def _print_paper(paper: str, rows: Sequence[Row], summary: Sequence[Row]) -> None:
    answered = [row for row in rows if row["replay"] is not None]
    n_stated, n_answered = (len({row["claim_id"] for row in of}) for of in (rows, answered))
    shown = [
        (
            *(row["role"], row["metric"], _setting(row), number(row["paper"], ".4g"), number(row["replay"], ".4g")),
            *(band(row["band_low"], row["band_high"], "{:.4g}".format), _error(row), row["mode"]),
        )
        for row in answered
    ]
    columns = ("role", "metric", "setting", "paper", "replay", "band", "error", "mode")
    print_table(f"{paper}: {n_answered} of {n_stated} claims", columns, shown, numbers=("paper", "replay", "error"))
    if n_answered < n_stated:
        others = f"`tokentape study {paper}` answers what it can, the others need the real models"
        note(f"{n_stated - n_answered} claims have no value here: {others} (--json lists them)")
    units = {row["claim_id"]: row["unit"] for row in rows}
    of_all = [
        (
            *(row["role"], row["mode"], row["n_values"], *map(_frac, (row["mean_error"], row["median_error"]))),
            _off(row["worst_error"], units.get(row["worst_claim_id"], "")),
            f"{row['n_inside']} of {row['n_banded']} ({_frac(row['inside_frac'])})" if row["n_banded"] else "",
            f"{row['n_hold']} of {row['n_bounds']}" if row["n_bounds"] else "",
        )
        for row in summary
    ]
    columns = ("role", "mode", "values", "mean error", "median", "worst", "inside the band", "bounds that hold")
    numbers = ("values", "mean error", "median", "worst")
    print_table("errors by role and mode; a percentage counts in points", columns, of_all, numbers=numbers)
    said = []
    for role, why in UNCOUNTED.items():
        n = len({row["claim_id"] for row in answered if row["role"] == role})
        said += [f"{n} {role} ({why})"] if n else []
    if said:
        print(f"not counted: {', '.join(said)}")


def _print_systems(errors: Sequence[Row]) -> None:
    columns = ("system", "fitted", "median", "mean", "predicted", "median ", "mean ", "worst", "worst predicted row")
    shown = [
        (
            row["system"],
            *(row["n_fitted"], *map(_frac, (row["fitted_median"], row["fitted_mean"]))),
            *(row["n_predicted"], *map(_frac, (row["median"], row["mean"]))),
            *(_off(row["worst"], row["worst_unit"]), row["worst_row"]),
        )
        for row in errors
    ]
    title = "errors of rows fitted and predicted, counted as each paper counts; a percentage counts in points"
    print_table(title, columns, shown, numbers=columns[1:8])


def _off(error: float | None, unit: str) -> str:
    from tokentape.warehouse.claim_errors import signed

    return "" if error is None else signed(error, unit)


def _setting(row: Row) -> str:
    return ", ".join(part for part in (row["model"], row["setting"]) if part)


def _frac(value: float | None) -> str:
    return percent(value, ".1f")


def _error(row: Row) -> str:
    """By how much it is off, or whether a bound holds; nothing of what cannot miss."""
    if not row["is_counted"]:
        return ""
    if row["holds"] is not None:
        return f"{row['bound']} {'holds' if row['holds'] else 'fails'}"
    return _off(row["error"], row["unit"])

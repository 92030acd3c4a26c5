"""The Kelle page against made-up rows whose answers can be told by hand."""

import duckdb
import polars as pl
import pytest
from made_up import assert_says, opened, page_of, said_of
from made_up_kelle import BASELINE, EVERYTHING, KELLE, MODELS, TRACE, Rows, add_kept, measured

from tokentape.dashboards.engine.ask import queries, words_of
from tokentape.dashboards.shell import Page
from tokentape.dashboards.site import kelle

PAPER, PHYSICAL = READINGS = words_of("kelle")["READINGS"]
PAGE, MADE = kelle, EVERYTHING  # of the fixtures connection, page and said


def test_figures_say_what_their_rows_hold(said: dict[str, dict[str, str]]) -> None:
    assert_says(said, "kelle")


def test_every_reading_has_its_own_gains_and_what_does_not_fit_has_none(said: dict[str, dict[str, str]], page: Page) -> None:
    """Counted physically nothing of the tables fits, and whole requests are counted as the paper does only."""
    assert page.figures[0].name == "gains"
    assert [row["reading"] for row in page.choices if "reading" in row] == [PAPER, PHYSICAL]
    means = page.data["means"].filter((pl.col("system") == KELLE) & (pl.col("measure") == "speed"))
    assert means.select("reading", "gain", "published", "cells").sort("reading").rows() == [
        (PAPER, 6.0, 6.0, 4), (PHYSICAL, 2.0, 6.0, 2),
    ]  # fmt: skip
    base = page.data["headline"].filter((pl.col("system") == BASELINE) & (pl.col("reading") == PAPER))
    assert base.select("speed", "energy").unique().rows() == [(1.0, 1.0)]
    assert f"{PHYSICAL}|{MODELS[0]}|PG19|16|128" not in said["explorer"]
    assert set(said["tables"]) == set(said["sweeps"]) == set(said["requests"]) == {PAPER}


def test_queries_ask_for_what_is_shown_and_readings_without_a_series_have_no_tables(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    """A replay that is scaled anew is shown once."""
    ask = kelle.asked(connection)
    for rows in map(ask, ("headline", "explorer")):
        assert set(rows["reading"]) == set(READINGS)
        assert rows["energy"].max() < 20  # type: ignore[operator]
    assert (ask("kept").height, ask("kept")["kept"].min()) == (9, 0.7)
    # With one series alone the other's panel would be empty.

    def add(rows: Rows) -> None:
        for adder in EVERYTHING:
            adder(rows)
        rows["kelle_points"] += [row | {"mode": PHYSICAL} for row in rows["kelle_points"] if row["series"] == "table-9"]

    with opened(add) as connection:
        assert set(kelle.asked(connection)("tables")["reading"]) == {PAPER}


def test_tables_stand_beside_the_papers_and_charts_have_their_marks(page: Page) -> None:
    found = page.data["tables"].filter((pl.col("reading") == PAPER) & (pl.col("series") == "table-9"))
    assert found.sort("batch", "system").select("batch", "system", "published", "role_words", "low", "most").rows() == [
        (1, "AERP+SRAM", None, "no published number", 1.6, 2.7),
        (1, KELLE, None, "no published number", 1.2, 2.025),
        (16, "AERP+SRAM", 3.0, "predicted", 2.4, 4.05),
        (16, KELLE, 5.0, "predicted", 3.2, 5.4),
    ]
    rising = page.data["tables"].filter((pl.col("reading") == PAPER) & (pl.col("series") == "table-7"))
    assert "falls with every larger budget" in said_of(kelle, "tables", rising)
    assert "falls with not every larger budget" in said_of(kelle, "tables", rising.with_columns(gain=1 / pl.col("gain")))
    opening = {name: page.opening[name] for name in ("explored", "task", "batch", "budget", "keeping")}
    assert opening == {"explored": "llama-2-7b", "task": "PG19", "batch": "16", "budget": "128", "keeping": "64"}
    whole = page.data["chip"].group_by("reading", "workload").agg(pl.sum("share"))["share"]
    assert whole.to_list() == pytest.approx([1.0] * whole.len(), abs=1e-4), "shares of the chip leave the DRAM out"
    used = page.data["retention"].filter("is_default")["curve"].unique().to_list()
    assert used == ["3e-6 at 45 us, sigma 2.68 (used)"]
    # The slope is 1e10 operations per second for each operation per byte, so the roof bends at 100.
    assert page.data["roof"].rows() == [pytest.approx(row) for row in ((10.0, 1e11), (100.0, 1e12), (1000.0, 1e12))]
    assert page.data["flips"]["at"].min() == 1e-4
    assert "Table 5" not in set(page.data["claims"]["location"])


@pytest.mark.parametrize(("recent", "scored", "words"), [
    ([1.1, 1.1], [1.2, 1.2], "at every budget."),
    ([1.3, 1.1], [1.2, 1.2], "at budget 64."),
    ([1.2, 1.2], [1.2, 1.2], "Recent tokens alone win over accumulated scores at no budget."),
])  # fmt: skip
def test_recent_tokens_win_where_every_score_loses(recent: list[float], scored: list[float], words: str) -> None:
    values = {"recent only": recent, "H2O": scored, "AERP": [9.0, 9.0]}
    rows = [{"who": who, "budget": budget, "value": of[n]} for who, of in values.items() for n, budget in enumerate((32, 64))]
    paper = {"budget": pl.Int64, "task": pl.String, "accuracy": pl.Float64}
    assert said_of(kelle, "budgets", pl.DataFrame(rows), table_3=pl.DataFrame(schema=paper)).endswith(words)


def test_a_smaller_page_has_fewer_models_and_tapes() -> None:
    def add(rows: Rows) -> None:
        add_kept(rows)
        for model in ("embedded", "zzz"):
            rows["kelle_quality"].append(measured("recall", "aerp", "", 0.5, budget_tokens=64, model_id=model))
        rows["kv_replays"] += [row | {"trace_id": "zzz"} for row in rows["kv_replays"]]

    page = page_of(kelle, add, size=1)
    assert page.data["kept"]["tape"].unique().to_list() == [TRACE]
    assert [row["live"] for row in page.choices if "live" in row] == ["embedded"]


@pytest.mark.parametrize(("value", "said"), [(123.4, "123 mm2"), (99.94, "99.9 mm2"), (1234.6, "1,235 mm2"), (1.5, "1.50 mm2")])
def test_numbers_are_written_in_three_digits(value: float, said: str) -> None:
    written = queries(kelle.folder / "rows.sql")["written"]
    found = duckdb.sql(f"select {written} from (select {value}::double as x, 'mm2' as unit)").fetchall()
    assert found == [(said,)]

"""The ELMoE-3D page against made-up rows whose answers can be told by hand."""

import dataclasses

import duckdb
import polars as pl
import pytest
from made_up import READ_OFF, Rows, assert_says, opened, page_of
from made_up_elmoe3d import (
    EAGLE,
    ELASTIC,
    EVERYTHING,
    GPT,
    QWEN,
    add_reuse,
    add_table,
    add_tape,
    point,
)

from tokentape.dashboards import shell
from tokentape.dashboards.engine.ask import rows_of, words_of
from tokentape.dashboards.shell import Page
from tokentape.dashboards.site import elmoe3d
from tokentape.replay.elmoe3d import checks
from tokentape.warehouse.load import claims

PAGE, MADE = elmoe3d, (*EVERYTHING, add_tape)  # of the fixtures connection, page and said
HEADLINE = "paper_law|L1"


def test_figures_say_what_their_rows_hold(said: dict[str, dict[str, str]]) -> None:
    assert_says(said, "elmoe3d")


def asked_of(query: str, **columns: object) -> pl.DataFrame:
    """What a question of the page says of points with these columns; AR is 1 everywhere."""
    told: dict[str, object] = {
        "series": "table-3", "fit": "calibrate", "law": "paper_law", "level": "L1", "model": "m", "machine": "8 GiB", "gib": 8.0,
        "turn": 1, "scheme": ELASTIC, "batch": 1, "batch_words": "1", "hardware": "h", "fidelity": "input", "alpha": 0.5,
        "phi_ar": 1.0, "published_sd": 2.0,
    }  # fmt: skip
    with duckdb.connect() as connection:
        connection.register("shown", pl.DataFrame(told | columns))
        return rows_of(connection, elmoe3d.folder / "rows.sql", query)


def test_the_page_opens_with_the_answer_and_the_sentence_of_honesty_is_the_studys(
    page: Page, said: dict[str, dict[str, str]]
) -> None:
    assert page.figures[0].name == "winners"
    assert words_of("elmoe3d")["HONESTY"] == checks.HONESTY
    for name in ("winners", "cells", "checks", "claims"):
        assert all(answer.endswith(checks.HONESTY) for answer in said[name].values())


def test_a_missed_winner_is_ringed_and_a_withheld_cell_has_none(page: Page) -> None:
    found = page.data["winners"].filter(pl.col("law") == "paper_law", pl.col("level") == "L1", pl.col("machine") == "8 GiB")
    missed = found.filter(~pl.col("agrees"))
    assert missed.select("panel", "batch", "scheme", "theirs").rows() == [
        ("SD: draft and verify", 16, ELASTIC, EAGLE),
        ("the better of the two", 1, ELASTIC, EAGLE),
        ("the better of the two", 16, ELASTIC, EAGLE),
    ]
    withheld = found.filter(pl.col("model") == GPT, pl.col("batch") > 1)
    assert withheld["is_withheld"].all()
    assert withheld["published"].is_null().all()


@pytest.mark.parametrize(("gains", "start"), READ_OFF["pays"])
def test_speculation_pays_from_where_it_stays_faster(gains: list[float], start: int | None) -> None:
    assert asked_of("pays", batch=[1, 2, 4], phi_sd=gains)["at"].to_list() == [start]


def test_thresholds_reach_past_the_papers_batches_and_small_pools_draft_nothing(
    page: Page, connection: duckdb.DuckDBPyConnection
) -> None:
    row = page.data["thresholds"].filter(pl.col("model") == GPT, pl.col("scheme") == ELASTIC).row(0, named=True)
    assert (row["theirs"], row["said_paper"], row["shown"]) == (None, "withheld", 128.0)
    # At 2 GiB four experts are in HB where a token selects eight: Elastic-SD's SD of 7 x would otherwise win.
    small = elmoe3d.asked(connection)("points").filter(~pl.col("can_draft"), series="hb-capacity", gib=2)
    assert small["scheme"].unique().to_list() == [ELASTIC]


def test_the_explorer_says_who_wins_at_every_size_and_batch(page: Page) -> None:
    assert (page.opening["size"], page.opening["at"]) == ("8", "8")
    assert {row["at"] for row in page.choices if row.get("size") == "32" and "at" in row} == {"1", "4", "8", "16"}
    assert {row["at"] for row in page.choices if row.get("size") == "8" and "at" in row} == {"1", "2", "4", "8", "16", "32", "64"}


def test_cells_have_their_error_or_the_prediction_and_are_written_out(page: Page) -> None:
    found = page.data["cells"].filter(pl.col("law") == "paper_law", pl.col("level") == "L1", pl.col("row") == "AR, 8 GiB")
    cell = dict(found.filter(pl.col("scheme") == ELASTIC, pl.col("batch") == 4).select("model", "said").rows())
    assert cell == {QWEN: "+5", GPT: "24.0×"}
    tables = page.extra["tables"]
    assert [(table["law"], table["level"]) for table in tables] == [
        (a, b) for a in ("paper_law", "physical") for b in ("L1", "L0")
    ]
    rows = [row for group in tables[0]["groups"] for row in group["rows"]]
    assert len(rows) == 64
    assert rows[0]["cells"] == ["3.81", "4.00", "+5.0 %", "predict", "2.50", "2.00", "-20.0 %", "predict"]
    assert ["withheld", "24.00", "predicted", ""] in [row["cells"][:4] for row in rows]


def test_claims_leave_inputs_out_and_a_number_of_0_has_no_ratio(page: Page) -> None:
    """Nor is a page with NaN written."""
    assert page.data["claims"].height == 3  # one of them counted in two ways
    stated = page.data["claims"].filter(pl.col("paper") == 0.0)
    assert stated.height == 1
    assert stated["ratio"].to_list() == [None]
    broken = dataclasses.replace(page, data={**page.data, "claims": pl.DataFrame({"ratio": [float("nan")]})})
    with pytest.raises(ValueError, match="Out of range float"):
        shell.render(broken, [])


def test_platforms_have_bands_and_energy_is_relative_to_ours(page: Page) -> None:
    near = page.data["platforms"].filter(pl.col("words") == "xPU-NMP", pl.col("mode") == "SD").row(0, named=True)
    assert (near["low"], near["speedup"], near["high"]) == (1.333333, 2.0, 2.666667)
    totals = page.data["energy_totals"].filter(pl.col("words") == "xPU").row(0, named=True)
    assert (totals["relative"], totals["low"], totals["high"]) == (4.0, 2.0, 8.0)
    parts = page.data["energy"].filter(pl.col("words") == "ELMoE-3D", pl.col("batch") == 4)
    assert parts.select("said", "relative").rows() == [("static power", 0.5), ("EXT reads", 0.5)]


def test_the_papers_gain_of_hotness_is_read_from_the_claims() -> None:
    stated = [row for row in claims().to_pylist() if row["metric"] == "hotness_vs_random_pool_acceptance_gain"]
    with opened(lambda rows: rows["claims"].extend(stated)) as connection:
        assert elmoe3d.asked(connection)("published_gain_frac")["gain"][0] == pytest.approx(stated[0]["value"] / 100)


@pytest.mark.parametrize(("gains", "alpha"), [([0.5, 1.5], 0.5), ([0.5, 0.9], None), ([1.0, 2.0], 0.0)])
def test_the_needed_acceptance_lies_between_two_recorded_ones(gains: list[float], alpha: float | None) -> None:
    found = asked_of("alpha", series="alpha", alpha=[0.0, 1.0], phi_sd=gains)
    assert found["needs"].to_list() == [alpha] * 2


def test_every_chart_says_source_hit_model_and_level(page: Page) -> None:
    for figure in page.figures:
        assert figure.chart is not None
        text = figure.chart["title"]["text"]["expr"]  # type: ignore[index]
        assert "source: study elmoe3d" in text
        if "law" in figure.depends:
            assert "[law]" in text
            assert "level" in text


def test_tapes_are_told_apart_and_fits_that_saw_the_table_not_shown() -> None:
    def add(rows: Rows) -> None:
        add_reuse(rows)
        rows["elmoe3d_misses"] += [
            row | {"source": source, "dataset": "code", "origin": "captured"}
            for row in rows["elmoe3d_misses"]
            for source in ("x-1111", "x-2222")
        ]

    pages = [page_of(elmoe3d, add, size=size) for size in (1, 16)]
    one, every = (page.data["misses"]["panel"].unique(maintain_order=True).to_list() for page in pages)
    assert (one, every) == ([f"{QWEN}, code, 1111"], [f"{QWEN}, code, 1111", f"{QWEN}, code, 2222", f"{QWEN}, synthetic"])

    def add(rows: Rows) -> None:
        add_table(rows)
        rows["elmoe3d_points"] += [row | {"fit": "all-open", "phi_ar": 99.0} for row in rows["elmoe3d_points"]]
        rows["elmoe3d_points"].append(point("table-3", ELASTIC, 1, law="lru"))

    page = page_of(elmoe3d, add)
    assert page.data["cells"]["value"].max() < 99  # type: ignore[operator]
    assert {row["law"] for row in page.choices if "law" in row} == {"paper_law", "physical"}

"""The Layered Prefill page against made-up rows whose answers can be told by hand."""

import json

import duckdb
import polars as pl
import pytest
from made_up import READ_OFF, Rows, answers_of, assert_says, opened, page_of, said_of, told
from made_up_layered import (
    CHUNKED,
    EVERYTHING,
    LAYERED,
    QWEN,
    add_claims,
    add_dense,
    add_others,
    add_point,
    add_rates,
    add_saturation,
    served,
)

from tokentape.dashboards.layered_prefill import words as layered_words
from tokentape.dashboards.shell import Page
from tokentape.dashboards.site import layered
from tokentape.flows.systems.layered_prefill.study import Settings

PAGE, MADE = layered, EVERYTHING  # of the fixtures connection, page and said
FIRST = f"{QWEN}, arxiv, h100x2"  # a dense model is served by another machine


def test_figures_say_what_their_rows_hold(said: dict[str, dict[str, str]]) -> None:
    assert_says(said, "layered")
    sentences = told("layered")
    assert all((figure, chosen) in sentences for figure in ("claims", "coverage", "front") for chosen in said[figure])


def test_the_page_opens_with_the_table_of_most_predictions_and_says_what_a_band_is(page: Page) -> None:
    assert page.opening["table"] == "Table 6"
    rows = page.data["claims"].sort("claim_id")
    assert rows["ratio"].to_list() == pytest.approx([1.0, 0.8, 1.05, None])
    assert rows["said_error"].to_list() == ["0.0 %", "-20.0 %", "-0.4 points", "holds"]
    chart = page.figures[0].chart
    assert chart is not None
    assert "replay (5 to 95 % of seeds)" in json.dumps(chart, ensure_ascii=False)


def test_closed_forms_are_drawn_once_and_bands_of_layers_apart(page: Page) -> None:
    rows = page.data["coverage"].filter(pl.col("routed") == "embedded-code-0a1b2c3d")
    assert set(rows["line"]) == {
        "recorded", "recorded, first third", "recorded, last third", "the paper's Table 1", "independent",
    }  # fmt: skip
    assert rows.group_by("line", "tokens_of").len()["len"].unique().to_list() == [4]


@pytest.mark.parametrize(("attained", "found"), READ_OFF["capacity"])
def test_capacity_is_where_the_level_is_first_lost(attained: list[float], found: tuple[float, str]) -> None:
    rates = [1.0, 2.0, 3.0][: len(attained)]
    with opened() as c:
        c.register("shares", pl.DataFrame({"of": [{"setting": "a"}] * len(rates), "rate": rates, "frac": attained}))
        assert layered.asked(c)("capacities").select("per_s", "kind").row(0) == (pytest.approx(found[0]), found[1])


def test_the_limit_on_gaps_can_be_the_one_that_is_missed() -> None:
    def add(rows: Rows) -> None:
        add_rates(rows)
        swapped = {"slo_ttft_frac": "slo_tbt_frac", "slo_tbt_frac": "slo_ttft_frac"}
        for row in rows["serving_points"]:
            row["metric"] = swapped.get(row["metric"], row["metric"])

    answers = answers_of(layered, add)
    assert "chunked 512 (gaps, 1.05)" in answers["split"][""]


def test_the_explorer_opens_at_the_papers_limits_and_carries_every_other(page: Page) -> None:
    opens = page.opening
    assert (opens["served"], opens["ttft"], opens["tbt"]) == (FIRST, "10", "0.125")
    figure = next(figure for figure in page.figures if figure.name == "explorer")
    served_settings = {row["served"] for row in page.choices if "served" in row}
    assert len(figure.answers) == len(served_settings) * 9
    row = page.data["grid"].filter((pl.col("setting") == FIRST) & (pl.col("system") == "chunked 512") & (pl.col("rate") == 1.0))
    assert row["attained"].item().to_list() == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_the_sliders_and_every_series_are_the_studys() -> None:
    for name, opens in (("ttft", layered_words.OPENS_TTFT), ("tbt", layered_words.OPENS_TBT)):
        for workload, limit in opens.items():
            levels = [of for of in Settings.shipped().levels if QWEN in of.models and workload in of.workloads]
            assert [getattr(of, f"{name}_s") for of in levels] == [limit]
    study = Settings.shipped()
    there = {group.series for group in study.grid} | {trace.series for trace in study.traces}
    asked = ["one prompt", "slo ", "pareto", "n-sweep", "table-2", "table-6", "table-8", "table-10", "table-11", "table-12",
             "dense", "bursty", "azure", "mooncake", "other schedulers", "other models", "other gpus"]  # fmt: skip
    assert [name for name in asked if not any(series.startswith(name) for series in there)] == []


def test_the_schedule_is_of_the_stretch_that_both_have_and_energy_of_both_meanings(page: Page) -> None:
    """Chunked is recorded for .4 s, layered for .2 s."""
    drawn = page.data["schedule"].filter(pl.col("system") == "chunked 512")
    assert (drawn["start_s"].min(), drawn.height) == (0.0, 5)
    parts = page.data["energy"].select(pl.sum_horizontal("static", "bytes", "ops"))
    assert parts.to_series().to_list() == pytest.approx([1.0] * 3)


def test_rows_without_a_time_and_second_answers_are_not_counted() -> None:
    """A run in which no request decodes twice has no time between tokens."""
    times = {"ttft_mean_s": [1.0, 2.0, 4.0, 3.0], "tbt_p99_s": [0.01, 0.02, None, 0.03]}
    names = {"system": ["Layered", "Chunked"] * 2, "scheduler": ["layered", "chunked"] * 2}
    found = pl.DataFrame({**names, **times, "label": ["a", "a", "b", "b"], "order": [0, 0, 1, 1]})
    assert said_of(layered, "arrivals", found).endswith("over 1 row. It is below in every row.")
    both, other = said_of(layered, "others", found).split("; ")
    assert "Layered waits least for the first token (1.00 s)" in both
    assert other == "b: Chunked waits least for the first token (3.00 s), Chunked has the least TBT p99 (30 ms)."

    def add(rows: Rows) -> None:
        add_claims(rows)
        rows["answers"].append(rows["answers"][1] | {"mode": "physical", "value": 500.0})

    page = page_of(layered, add)
    assert page.figures[0].answers["Table 2"].startswith("Predicted numbers are off by 10.2 % in the median")
    assert page.figures[0].answers == page_of(layered, add_claims).figures[0].answers
    assert page.data["claims"].filter(pl.col("claim").str.contains("counted physically")).height == 1


def test_a_gap_that_stays_is_said_to_stay() -> None:
    def add(rows: Rows) -> None:
        add_dense(rows)
        for row in rows["serving_attainment"]:
            row["attained_frac"] -= 0.3 if "layered" in row["point_id"] else 0.0

    answers = answers_of(layered, add)
    assert answers["dense"][""].endswith("at the loosest limits it is -30 points at 1/s: the gap does not close.")


def test_layered_is_named_by_what_differs_wherever_its_parameters_are() -> None:
    def add(rows: Rows) -> None:
        for params in (LAYERED, LAYERED | {"n_max": 48, "pass_tokens": 32768}):
            add_point(rows, "other schedulers", "layered", params, 1.3, served(1.0, 0.02))
        add_point(rows, "other schedulers", "chunked", CHUNKED, 1.3, served(1.0, 0.02))

    with opened(add) as connection:
        found = layered_words.points_of(layered.asked(connection), "", ["other schedulers"])
    assert sorted(found["system"]) == ["chunked 512", "layered N 16, passes of 8192", "layered N 48, passes of 32768"]
    params = {"scheduler": {"chunk_tokens": 512}, "load_accounting": "full"}
    with opened(lambda rows: add_point(rows, "x", "chunked", params, 1.0, served(1.0, 0.02))) as c:
        assert layered_words.points_of(layered.asked(c), "", ["x"])["chunk_tokens"].to_list() == [512]


def test_a_smaller_page_has_fewer_settings(connection: duckdb.DuckDBPyConnection) -> None:
    page = layered.page(connection, 1)
    assert {row["served"] for row in page.choices if "served" in row} == {FIRST}
    assert {row["routed"] for row in page.choices if "routed" in row} == {f"{QWEN} (the paper)"}


def test_one_speed_is_no_sweep() -> None:
    """What `tokentape demo` computes: each baseline at the paper's rate alone."""

    def add(rows: Rows) -> None:
        add_others(rows)
        add_saturation(rows)
        rows["serving_points"] = [row for row in rows["serving_points"] if row["series"] != "saturation"]

    assert not answers_of(layered, add)["saturation"]
    assert answers_of(layered, lambda rows: (add_others(rows), add_saturation(rows)))["saturation"]

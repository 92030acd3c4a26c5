"""The validation page against made-up errors whose answers can be told by hand."""

import duckdb
import polars as pl
from made_up import Rows, assert_says, opened, page_of, said_of
from made_up_hardware import DEVICES, MEANS, SPLITS, add_dram_validation, add_gpu_validation

from tokentape.dashboards.engine.ask import words_of
from tokentape.dashboards.shell import render
from tokentape.dashboards.site import validation

PAGE = validation  # of the fixtures page and said
FITTED = words_of("validation")["SPLITS"]["fitted"]


def test_figures_say_what_their_rows_hold(said: dict[str, dict[str, str]]) -> None:
    assert_says(said, "validation")


def test_points_are_an_even_sample(connection: duckdb.DuckDBPyConnection) -> None:
    everything, sample = (validation.asked(connection, size)("points") for size in (100, 1))
    n_groups = len(MEANS) * len(SPLITS) * len(DEVICES)
    assert (everything.height, sample.height) == (40 * n_groups, 12 * n_groups)
    one = sample.filter(operator="GEMM", split=FITTED).partition_by("setup")[0]
    assert one["shape"].to_list() == [f"m {i}" for i in (3, 6, 9, 13, 16, 19, 23, 26, 29, 33, 36, 39)]


def test_a_device_measured_in_two_versions_is_two_setups() -> None:
    def add(rows: Rows) -> None:
        add_gpu_validation(rows, 2)
        rows["validation"] += [row | {"version": "0.20.0"} for row in rows["validation"] if row["device"].endswith("HBM3")]

    with opened(add) as connection:
        setups = validation.asked(connection)("errors")["setup"].unique().sort().to_list()
    assert setups == ["A100-SXM4-80GB", "H100 80GB HBM3, vllm 0.19.0", "H100 80GB HBM3, vllm 0.20.0"]


def test_without_gpu_rows_the_dram_part_stands_and_the_page_says_what_to_run() -> None:
    html = render(page_of(validation, add_dram_validation), [(validation.file, validation.title)])
    assert html.count('class="missing"') == 6
    assert "tokentape hardware validate FILES --record" in html
    assert '<div class="chart" id="dram">' in html
    assert "<form" not in html


def test_rows_of_one_split_are_said_as_what_they_are_and_no_anchor_is_no_praise() -> None:
    """A model that was only tried on the rows it was fitted on is not reported as seen on others."""
    errors = pl.DataFrame({"operator": ["GEMM"], "setup": ["A"], "split": [FITTED], "mape": [0.1], "p95": [0.3]})
    assert said_of(validation, "errors", errors) == "Mean error on the rows fitted on: GEMM 10.0 %."
    assert said_of(validation, "points", errors.with_columns(median=pl.lit(0.08))).startswith("On rows fitted on, ")
    dram = pl.DataFrame({"preset": ["p"], "pattern": ["row map"], "covered": [False], "error": [0.4]})
    assert (
        said_of(validation, "dram", dram)
        == "With nothing fitted, the form covers none of the anchors; outside, by up to 40 % (row map on p)."
    )

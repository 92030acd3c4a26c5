"""The CXL GPU-NDP page against made-up rows whose answers can be told by hand."""

import duckdb
import polars as pl
from made_up import Rows, assert_says, opened, page_of
from made_up_cxl_ndp import EVERYTHING, LARGE, SMALL, add_tape

from tokentape.dashboards.shell import Page
from tokentape.dashboards.site import cxl_ndp
from tokentape.warehouse.load import claims

PAGE, MADE = cxl_ndp, (*EVERYTHING, add_tape)  # of the fixtures connection, page and said
Said = dict[str, dict[str, str]]


def test_figures_say_what_their_rows_hold(said: dict[str, dict[str, str]]) -> None:
    assert_says(said, "cxl_ndp")


def test_the_page_opens_with_the_papers_smaller_model_and_its_gain(page: Page) -> None:
    assert page.figures[0].name == "throughput"
    marked = page.data["throughput"].drop_nulls("paper_monde")
    assert marked.select("setup", "system", "paper_monde", "paper_hobbit").rows() == [(SMALL, "OURS-2", 8.0, 16.0)]
    assert set(page.data["throughput"]["system"]) == {"OURS-2", "OURS-3", "MoNDE", "HOBBIT"}
    assert page.opening == {
        "setup": SMALL, "routing": SMALL, "lengths": "long prompts", "layer": "0", "table": "embedded, gptq (docs 4e5f)",
        "given": f"{SMALL}, stand-in", "shared": "1", "live": "embedded, docs, gptq, 8 hot",
    }  # fmt: skip


def test_whole_requests_add_up_and_tables_are_of_quantisers(said: Said, page: Page) -> None:
    assert "(paper" not in said["requests"][f"{LARGE}|long prompts"]
    parts = page.data["requests"].select(
        total=pl.sum_horizontal("prefill_s", "transfer_s", "other_s", "gpu_s", "wait_s"), e2e="e2e_s"
    )
    assert (parts["total"] - parts["e2e"]).abs().max() < 0.01  # type: ignore[operator]
    measured = "embedded, gptq (docs 4e5f)"
    assert list(said["tables"]) == [measured, "embedded, rtn (docs 4e5f)", f"{SMALL}, stand-in"]


def test_rows_of_the_charts(page: Page) -> None:
    given = page.data["bits"].filter(pl.col("rule") == "prefix_split", pl.col("panel") == "3 bits", pl.col("shared") == "1")
    assert given.select("bits", "low", "high").rows() == [([4.0, 4.0, 3.0, 1.0], [3.0, 3.0, 2.0, 1.0], [4.0, 4.0, 4.0, 2.0])]
    assert page.data["quality"]["table_loss"].null_count() == 0
    assert page.data["checks"]["check"].to_list() == ["end to end, least", "decode gain, 2 bits", "accuracy drop"]
    kinds = page.data["lanes"].filter(pl.col("setup") == SMALL, pl.col("system") == "OURS-2")
    assert dict(kinds.select("kind", "short").iter_rows()) == {
        "attention and KV": ["attention and KV"], "experts on the GPU": ["e3"], "experts in the NDP": ["e0", "e5"],
        "activations over the link": ["activations out", "activations back"],
    }  # fmt: skip


def test_a_number_counted_another_way_says_so_and_stays_out_of_the_sentence() -> None:
    def add(rows: Rows) -> None:
        for adder in EVERYTHING:
            if adder.__name__ == "add_claims":
                adder(rows)
        first = rows["answers"][0]
        rows["answers"].append(first | {"mode": "paper, end to end", "value": 99.0, "low": None, "high": None})

    page = page_of(cxl_ndp, add)
    named = page.data["claims"].filter(pl.col("replay") == 99.0)["claim"].to_list()
    assert [text.split("|")[0] for text in named] == ["decode throughput gain, at most, Mixtral-8x7B, end to end"]
    assert ["2 of 2 for calibration" in figure.answers[""] for figure in page.figures if figure.name == "claims"] == [True]


def test_layers_and_tables_are_thinned_rather_than_let_the_page_grow(connection: duckdb.DuckDBPyConnection) -> None:
    page = cxl_ndp.page(connection, 1)
    assert page.data["use"]["layer"].unique().to_list() == ["0"]
    assert page.data["tables"]["table"].unique().to_list() == ["embedded, gptq (docs 4e5f)"]


def test_what_the_paper_gains_is_read_from_the_claims() -> None:
    stated = [row for row in claims().to_pylist() if row["paper"] == "cxl_ndp"]
    with opened(lambda rows: rows["claims"].extend(stated)) as connection:
        found = cxl_ndp.asked(connection)("published")
    gains = ("decode_throughput_gain", "speedup", "e2e_speedup")
    ratios = [row["value"] for row in stated if row["metric"] in gains and row["value"] is not None]
    assert sorted(found["published"]) == sorted(ratios)
    by_kind = found.group_by("over", "system").len().sort("over", "system").rows()
    assert by_kind == [
        ("e2e", "OURS-2", 2),
        ("e2e", "OURS-3", 2),
        ("hobbit", "OURS-2", 1),
        ("monde", "OURS-2", 1),
        ("monde", "OURS-3", 1),
    ]

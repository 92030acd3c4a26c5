"""The CXL GPU-NDP page against made-up rows whose answers can be told by hand."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl
from made_up import assert_says, opened, told
from made_up_cxl_ndp import EVERYTHING, LARGE, SMALL, add_tape

from tokentape.dashboards.cxl_ndp import page as cxl_ndp
from tokentape.dashboards.shell import Page
from tokentape.warehouse.load import claims

PAGE, MADE = cxl_ndp, (*EVERYTHING, add_tape)  # of the fixtures connection, page and said
Said = dict[str, dict[str, str]]


SAID = told("""
throughput: On mixtral-8x7b at batch 16, OURS-2 decodes 1,000 tokens/s, 8.0 × MoNDE (paper 8, for calibration) and 16.0 × HOBBIT
    (paper 16, for calibration); OURS-3 decodes 625 tokens/s, 5.0 × MoNDE and 10.0 × HOBBIT. With the same constants, × MoNDE
    (OURS-2 and OURS-3): mixtral-8x22b 8.0 and 5.0; qwen3-30b-a3b 4.0 and 2.5.
requests[mixtral-8x7b|long prompts]: Over 2 pairs of lengths OURS-2 is 8.0 to 8.0 × (paper 4 to 12) and OURS-3 is 6.7 to 6.7 × as
    fast as MoNDE, OURS-2 up to 20.0 × HOBBIT. OURS-2 < OURS-3 < MoNDE < HOBBIT in time at every pair. 128 → 256 takes OURS-2 10
    s: 40 % attention and KV, 30 % experts on the GPU and 20 % waiting for the NDP; its NDP is busy for 5 s.
lanes[mixtral-8x7b]: The step takes 0.500 ms on OURS-2 (NDP busy for 60 %) and 4.00 ms on MoNDE (link busy for 75 %). OURS-2 is
    through before MoNDE has done 12 % of its step.
use[embedded, math|1]: Not quite: in layer 1 the two requests' use has a cosine of 0.50; the first and the second half of one
    request have 1.00.
likeness[mixtral-8x7b]: A prompt and its decode use a layer's experts alike to a cosine of 0.90 (0.90 to 0.95 over layers); with
    another request's prompt it is 0.60; of what lies above even use 25 % is popularity. At batch 1 with 2 experts held,
    prefill-guided hits 70.0 %, +20.0 points over static; static by frequency 50.0 %, reactive, EMA 60.0 % and oracle (bound) 80.0
    %. At batch 16 with 2 experts held, prefill-guided hits 60.0 %, +20.0 points over static; static by frequency 40.0 %,
    reactive, EMA 50.0 % and oracle (bound) 70.0 %.
tables[embedded, gptq (docs 4e5f)]: In gptq losses of embedded, an expert loses on average, with the least as 1, 53.3 at 1, 13.3
    at 2, 3.33 at 3 and 1 at 4 bits; the most sensitive expert of a layer loses 8 × the least (median). More bits lose less in
    100.0 % of the steps. GPTQ loses at most as much as round-to-nearest in 93.8 % of 32 cells on calibration text, 93.8 % on
    held-out text.
bits[mixtral-8x7b, stand-in|16]: Bits of the most and the least important of 4 by the selector, by average: 3.0 and 1.0 at 2; 4.0
    and 1.0 at 3.
losses[mixtral-8x7b, stand-in|16]: Of the loss of uniform bits the selector keeps, in the median, 60 % (optimum 55 %) at 2 bits
    and 90 % (optimum 88 %) at 3 bits; in reversed order it is 120 % to 150 %.
quality[embedded, docs, gptq, 8 hot]: At 2 bits perplexity +23.8 % with the selector (+15.0 % with losses by use), uniform +30.0 %
    and reversed order +50.0 %; it is no worse than uniform in 3 and reversed in 4 of 4 seeds. At 3 bits perplexity +4.0 % with
    the selector, uniform +3.0 % and reversed order +6.0 %; it is no worse than uniform in 0 and reversed in 4 of 4 seeds.
variants[embedded, docs, gptq, 8 hot]: Over 5 placements the loss goes at 2 bits from +10.0 % (oracle (bound)) to +25.0 % (by the
    prompt, alpha 0.0).
accuracy: On Mixtral-8x7B at 3 bits the average falls from 75.00 to 73.50 %, and the selector is 0.50 points ahead of uniform,
    though not on MMLU; at 2 bits the average falls from 75.00 to 67.00 %, and the selector is 7.00 points ahead of uniform, on
    every task.
sweeps: OURS-2 over MoNDE on mixtral-8x7b: batch 1 to 32: 16.0 to 4.0 ×; link 16 to 64 GB/s: 8.0 to 4.0 ×; NDP multiply-adds 0.5
    to 2 ×: 4.0 to 8.0 ×; NDP bandwidth 0.5 to 2 ×: 4.0 to 8.0 ×, most at 1 × (16.0 ×); experts on the GPU 0 to 4: 4.0 to 8.0 ×.
ablations: OURS-2 gains 8.0 × on mixtral-8x7b. It moves with NDP multiply-adds from 1.6 (fixed, batch 16) to 8.0 × (scales with
    bits, batch 16); MoNDE's migration from 6.0 (MoNDE never) to 40.0 × (MoNDE always); placement from 4.0 (static by frequency)
    to 8.0 × (prefill-guided). It changes by less than 5 % with bit widths.
others: mixtral-8x7b gains most as it is (8.0 ×), qwen3-30b-a3b least (4.0 ×). From PCIe Gen4 to CXL 3: mixtral-8x7b 8.0 to 2.0 ×;
    qwen3-30b-a3b 4.0 to 1.0 ×. MoNDE is faster in none of 10 settings.
capacity: mixtral-8x22b, K = 4 does not fit: the HBM of the GPU is fullest with mixtral-8x22b, K = 4: 90.0 of 80 GB (112 %) and
    the memory of the NDP is fullest with mixtral-8x22b, K = 4: 438.8 of 512 GB (86 %). qwen3-30b-a3b would fit the GPU whole at
    FP16 and needs no NDP.
claims: Within 10 % of the paper: 2 of 2 for calibration (worst: 0.0 %, decode throughput gain, Mixtral-8x7B) and 1 of 2 predicted
    (worst: +50.0 %, E2E speed-up, Mixtral-8x7B). 2 of 6 numbers have no answer: accuracy drop (1) and fp16 footprint (1).
checks: 1 of 2 bars are held; outside: end to end, least (6 ×). 1 numbers of the paper, derived a second way, have none.
""")


def test_figures_say_what_their_rows_hold(said: dict[str, dict[str, str]]) -> None:
    assert_says(said, SAID)


def test_the_page_opens_with_the_gain_beside_the_papers(page: Page) -> None:
    assert page.figures[0].name == "throughput"
    marked = page.data["throughput"].drop_nulls("paper_monde")
    assert marked.select("setup", "system", "paper_monde", "paper_hobbit").rows() == [(SMALL, "OURS-2", 8.0, 16.0)]
    assert set(page.data["throughput"]["system"]) == {"OURS-2", "OURS-3", "MoNDE", "HOBBIT"}


def test_menus_open_with_the_papers_smaller_model(page: Page) -> None:
    assert page.opening == {
        "setup": SMALL, "routing": SMALL, "lengths": "long prompts", "layer": "0", "table": "embedded, gptq (docs 4e5f)",
        "given": f"{SMALL}, stand-in", "shared": "1", "live": "embedded, docs, gptq, 8 hot",
    }  # fmt: skip


def test_whole_requests_have_a_range_an_order_and_parts(said: Said, page: Page) -> None:
    assert "(paper" not in said["requests"][f"{LARGE}|long prompts"]
    parts = page.data["requests"].select(
        total=pl.sum_horizontal("prefill_s", "transfer_s", "other_s", "gpu_s", "wait_s"), e2e="e2e_s"
    )
    assert (parts["total"] - parts["e2e"]).abs().max() < 0.01  # type: ignore[operator]


def test_a_step_on_the_clock(page: Page) -> None:
    kinds = page.data["lanes"].filter(pl.col("setup") == SMALL, pl.col("system") == "OURS-2")
    assert dict(kinds.select("kind", "short").iter_rows()) == {
        "attention and KV": ["attention and KV"], "experts on the GPU": ["e3"], "experts in the NDP": ["e0", "e5"],
        "activations over the link": ["activations out", "activations back"],
    }  # fmt: skip


def test_losses_say_how_far_experts_differ_and_which_quantiser_wins(said: Said) -> None:
    measured = "embedded, gptq (docs 4e5f)"
    assert list(said["tables"]) == [measured, "embedded, rtn (docs 4e5f)", f"{SMALL}, stand-in"]


def test_bits_fall_with_rank_and_save_loss(page: Page) -> None:
    given = page.data["bits"].filter(pl.col("rule") == "prefix_split", pl.col("panel") == "3 bits", pl.col("shared") == "1")
    assert given.select("bits", "low", "high").rows() == [([4.0, 4.0, 3.0, 1.0], [3.0, 3.0, 2.0, 1.0], [4.0, 4.0, 4.0, 2.0])]


def test_a_live_model_says_who_wins_in_how_many_seeds(page: Page) -> None:
    assert page.data["quality"]["table_loss"].null_count() == 0


def test_claims_and_bars(page: Page) -> None:
    assert page.data["checks"]["check"].to_list() == ["end to end, least", "decode gain, 2 bits", "accuracy drop"]


def test_a_number_counted_another_way_says_so_and_stays_out_of_the_sentence(tmp_path: Path) -> None:
    def add(rows: dict[str, list[dict]]) -> None:
        for adder in EVERYTHING:
            if adder.__name__ == "add_claims":
                adder(rows)
        first = rows["answers"][0]
        rows["answers"].append(first | {"mode": "paper, end to end", "value": 99.0, "low": None, "high": None})

    with opened(tmp_path / "modes.duckdb", add) as connection:
        page = cxl_ndp.page(connection, 16)
    named = page.data["claims"].filter(pl.col("replay") == 99.0)["claim"].to_list()
    assert [text.split("|")[0] for text in named] == ["decode throughput gain, at most, Mixtral-8x7B, end to end"]
    assert ["2 of 2 for calibration" in figure.answers[""] for figure in page.figures if figure.name == "claims"] == [True]


def test_layers_and_tables_are_thinned_rather_than_let_the_page_grow(connection: duckdb.DuckDBPyConnection) -> None:
    page = cxl_ndp.page(connection, 1)
    assert page.data["use"]["layer"].unique().to_list() == ["0"]
    assert page.data["tables"]["table"].unique().to_list() == ["embedded, gptq (docs 4e5f)"]


def test_what_the_paper_gains_is_read_from_the_claims(tmp_path: Path) -> None:
    stated = [row for row in claims().to_pylist() if row["paper"] == "cxl_ndp"]

    def add(rows: dict[str, list[dict]]) -> None:
        rows["claims"] += stated

    with opened(tmp_path / "real.duckdb", add) as connection:
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

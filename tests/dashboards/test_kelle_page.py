"""The Kelle page against made-up rows whose answers can be told by hand."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl
import pytest
from made_up import opened, said_of
from made_up_kelle import (
    BASELINE,
    EVERYTHING,
    KELLE,
    MODELS,
    TRACE,
    Rows,
    add_kept,
    measured,
)

from tokentape.dashboards import claims
from tokentape.dashboards.kelle import page as kelle
from tokentape.dashboards.kelle.words import PAPER, PHYSICAL, READING, ZERO, in_full
from tokentape.dashboards.shell import Page

PAGE, MADE = kelle, EVERYTHING  # of the fixtures connection, page and said


def test_the_page_opens_with_the_gains(said: dict[str, dict[str, str]], page: Page) -> None:
    assert page.figures[0].name == "gains"
    assert said["gains"][PAPER] == (
        "Kelle+eDRAM is 6.00 × as fast as Original+SRAM and 7.50 × as efficient (the paper: 6.00 × and 8.00 ×), over 4 cells; in "
        "energy from 5.00 × (llama-2-7b, LA) to 10.00 × (llama-3.2-3b, PG19). In speed and energy Original+eDRAM 1.20 × and 0.60 "
        "×, AEP+SRAM 3.00 × and 3.00 × and AERP+SRAM 3.75 × and 4.50 ×. 2 of Kelle's cells need more than the DRAM holds."
    )


def test_every_reading_has_its_own_gains_and_what_does_not_fit_has_none(said: dict[str, dict[str, str]], page: Page) -> None:
    assert [row["reading"] for row in page.choices if "reading" in row] == [PAPER, ZERO, PHYSICAL]
    assert said["gains"][ZERO].startswith("Kelle+eDRAM is 6.60 × as fast as Original+SRAM and 8.25 × as efficient")
    assert said["gains"][PHYSICAL].startswith(
        "Kelle+eDRAM is 2.00 × as fast as Original+SRAM and 2.50 × as efficient (the paper: 6.00 × and 8.00 ×), 2 of 4 cells fit;"
    )
    means = page.data["means"].filter((pl.col("system") == KELLE) & (pl.col("measure") == "speed"))
    assert means.select("reading", "gain", "published", "cells").sort("reading").rows() == [
        (PAPER, 6.0, 6.0, 4), (ZERO, pytest.approx(6.6), 6.0, 4), (PHYSICAL, 2.0, 6.0, 2),
    ]  # fmt: skip


def test_physical_rows_without_a_fit_are_not_asked_for(connection: duckdb.DuckDBPyConnection) -> None:
    """Their gains are nine times as high."""
    for rows in map(kelle.asked(connection), ("headline", "explorer")):
        assert set(rows["reading"]) == set(READING.labels)
        assert rows["energy"].max() < 20  # type: ignore[operator]


def test_shares_of_the_chip_leave_the_dram_out(page: Page, said: dict[str, dict[str, str]]) -> None:
    whole = page.data["chip"].group_by("reading", "workload").agg(pl.sum("share"))["share"]
    assert whole.to_list() == pytest.approx([1.0] * whole.len(), abs=1e-4)
    assert said["chip"][PAPER].startswith("On the chip 50 % into the weight SRAM and 8 % into refresh (LA)")


def test_the_explorer_says_who_wins_at_every_setting(said: dict[str, dict[str, str]], page: Page) -> None:
    assert said["explorer"][f"{PAPER}|{MODELS[0]}|LA|16|128"] == (
        "Kelle+eDRAM is most efficient, 5.00 × Original+SRAM; AERP+SRAM 3.00 ×, AEP+SRAM 2.00 × and Original+eDRAM 0.60 ×. "
        "Kelle+eDRAM is 4.00 × as fast."
    )
    beaten = said["explorer"][f"{PAPER}|{MODELS[0]}|PG19|1|8192"]
    assert beaten.startswith("AERP+SRAM is most efficient, 6.00 × Original+SRAM; AEP+SRAM 4.00 ×")
    assert beaten.endswith("It needs more than the DRAM holds.")
    assert f"{PHYSICAL}|{MODELS[0]}|PG19|16|128" not in said["explorer"]
    opening = {name: page.opening[name] for name in ("explored", "task", "batch", "budget")}
    assert opening == {"explored": "llama-2-7b", "task": "PG19", "batch": "16", "budget": "128"}


def test_tables_stand_beside_the_papers(said: dict[str, dict[str, str]], page: Page) -> None:
    assert said["tables"][PAPER] == (
        "Table 7 is predicted within 10 % on average, -20.0 % at worst (llama-3.2-3b, 2048 tokens). Table 9 at batch 16 is "
        "predicted within 10 % on average, -20.0 % at worst (Kelle+eDRAM). The gain falls with every larger budget. AERP+SRAM "
        "needs less energy than Kelle+eDRAM at batch 1."
    )
    found = page.data["tables"].filter((pl.col("reading") == PAPER) & (pl.col("series") == "table-9"))
    assert found.sort("batch", "system").select("batch", "system", "published", "role_words", "low", "most").rows() == [
        (1, "AERP+SRAM", None, "no published number", 1.6, 2.7),
        (1, KELLE, None, "no published number", 1.2, 2.025),
        (16, "AERP+SRAM", 3.0, "predicted", 2.4, 4.05),
        (16, KELLE, 5.0, "predicted", 3.2, 5.4),
    ]


def test_a_gain_that_rises_with_the_budget_is_said_to(page: Page) -> None:
    rising = page.data["tables"].filter((pl.col("reading") == PAPER) & (pl.col("series") == "table-7"))
    assert "falls with every larger budget" in said_of(kelle, "tables", rising)
    assert "falls with not every larger budget" in said_of(kelle, "tables", rising.with_columns(gain=1 / pl.col("gain")))


def test_a_reading_without_a_panel_is_not_drawn(said: dict[str, dict[str, str]], connection: duckdb.DuckDBPyConnection) -> None:
    """Counted physically nothing of either fits; with one series alone the other's panel would be empty."""
    assert set(said["tables"]) == set(said["sweeps"]) == {PAPER, ZERO}
    rows = kelle.asked(connection)("tables")
    lacking = rows.filter((pl.col("reading") == PAPER) | (pl.col("series") == "table-9"))
    assert set(in_full(lacking, "series")["reading"]) == {PAPER}


def test_sweeps_without_numbers_and_memory(said: dict[str, dict[str, str]]) -> None:
    assert said["sweeps"][PAPER] == (
        "Refreshing every 131 us instead of 1050 us takes Kelle's energy gain from 4.00 × to 3.00 × on PG19. eDRAM at 128 GB/s "
        "instead of 256 GB/s takes Kelle's energy gain from 4.00 × to 3.00 × on PG19."
    )
    assert said["memory"][PAPER] == (
        "8 MB of SRAM instead of 4 MB make a step at most 1.250 × as fast. eDRAM of 8 MB, refreshed every 45 us, spends 5 % of "
        "the energy on refresh."
    )
    assert said["settings"][PAPER] == (
        "Recomputation saves 20 % of the energy on average; against a refresh every 45 us, Llama-2-7B saves 25.0 % (uniform 360 "
        "us) and 50.0 % (2D)."
    )


def test_the_curve_that_is_used_is_marked(said: dict[str, dict[str, str]], page: Page) -> None:
    assert said["retention"][""].startswith(
        "By the assumed curve 0.0100 % (HST-MSB, 360 us), 0.0200 % (LST-MSB, 1,440 us), 0.0400 % (HST-LSB, 5,400 us) and 0.0800 "
        "% (LST-LSB, 7,200 us) of the bits; 0.0375 % on average."
    )
    used = page.data["retention"].filter("is_default")["curve"].unique().to_list()
    assert used == ["3e-6 at 45 us, sigma 2.68 (used)"]


def test_lives_and_what_the_scheduler_shortens(said: dict[str, dict[str, str]]) -> None:
    assert said["lifetimes"][""] == "10.00 ms in all becomes 5.00 ms, 2.00 × less, on llama-2-7b."


def test_marks_above_the_roof_are_told(said: dict[str, dict[str, str]], page: Page) -> None:
    assert said["roof"][""] == (
        "By the paper's latencies recomputing 50.0 % is best, 2.00 × the tokens per second, which would take up to 4 × the "
        "array's peak; recomputing all leaves 0.50 ×; by the array's own recomputing 0.0 % is best, 1.00 × the tokens per "
        "second; recomputing all leaves 0.25 ×."
    )
    # The slope is 1e10 operations per second for each operation per byte, so the roof bends at 100.
    assert page.data["roof"].rows() == [(10.0, 1e11), (100.0, 1e12), (1000.0, 1e12)]


def test_requests_are_counted_as_the_paper_does_only(said: dict[str, dict[str, str]]) -> None:
    assert set(said["requests"]) == {PAPER, ZERO}
    assert said["requests"][PAPER] == (
        "Kelle+eDRAM is 5.00 × (8K in, 8K out; the prompt is 50 % of it) and 5.00 × (16K in, 128 out; the prompt is 94 % of it) "
        "as efficient as Original+SRAM, which takes up to 4 kJ."
    )


def test_bars_are_held_or_missed(said: dict[str, dict[str, str]]) -> None:
    assert said["errors"][""] == (
        "Calibrated, the mean |ln| error on predicted ratios is 0.200 (bar 0.15: missed); nothing fitted, the median error is "
        "0.080 (bar 0.10: held); on the ratios that were fitted it is 0.050. Only the fit puts energy: AERP+SRAM over "
        "Kelle+eDRAM in 25 % of cells."
    )
    assert said["sensitivity"][PAPER] == (
        "7.50 × as it is, over 4 cells; from 3.75 × (true GQA) to 9.00 × (DRAM at 4 pJ/bit). The paper's ratios are met best "
        "unchanged."
    )
    assert said["checks"][""] == (
        "1 of 2 agree within 10 %; farthest off: a KV vector recomputed (16.0 us against 4.00 us) and area of the eDRAM (3.00 "
        "mm2 against 3.10 mm2)."
    )
    assert said["area"][PAPER] == (
        "Areas are within 10 % of the paper's shares. Power, in brackets the paper's: SRAM 6.00 W (3.00) and array and special "
        "functions 2.00 W (2.00)."
    )


def test_claims_have_a_sentence_for_each_reading(said: dict[str, dict[str, str]], page: Page) -> None:
    assert said["claims"][PAPER].startswith("Within 10 % of the paper: 2 of 2 fitted (worst: -10.0 %")
    assert said["claims"][ZERO].startswith("Within 10 % of the paper: 0 of 2 predicted (worst: +25.0 %")
    assert "Table 5" not in set(page.data["claims"]["location"])


def test_an_answer_for_which_nothing_was_fitted_is_called_so(connection: duckdb.DuckDBPyConnection) -> None:
    found = claims.rows(connection, "kelle").filter(pl.col("quantity") == "speed-up").sort("mode")
    assert found.select("mode", "role").rows() == [("paper", "calibrate"), (ZERO, "predict"), ("physical", "calibrate")]
    heads = [text.split("|")[0] for text in found["claim"]]
    assert heads == ["speed-up", "speed-up, nothing fitted", "speed-up, counted physically"]


def test_the_page_says_where_recent_tokens_win(said: dict[str, dict[str, str]]) -> None:
    assert said["budgets"]["embedded"] == (
        "With 32 tokens per head StreamingLLM loses least, +20.0 % in perplexity (AERP +30.0 % and random (unprotected) +100.0 "
        "%). With 256 tokens per head AERP loses least, +1.0 % in perplexity (random (unprotected) +50.0 %). Recent tokens alone "
        "(StreamingLLM, with or without sinks) win over all accumulated scores (H2O, AEP, AERP) at budget 32. 4-bit words lose "
        "+2.0 %. In the paper accuracy falls by 1.5 points on average with 128 tokens and 3.0 points on average with 16 tokens."
    )
    assert said["recall"]["embedded"].endswith("(H2O, AEP, AERP) at every budget.")


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


def test_lost_bits_by_rate_token_and_bit(said: dict[str, dict[str, str]], page: Page) -> None:
    assert said["flips"]["embedded"] == (
        "Losing 1e-3 of all bits costs int16 words +2.0 %; losing 1e-4 of all bits costs fp16 words 400 × the perplexity; at "
        "1e-3, +3.0 % from important tokens (HST) and +1.0 % from the others (LST); at 1e-2, +50.0 % from high bits (MSB) and "
        "0.0 % from low bits (LSB)."
    )
    assert page.data["flips"]["at"].min() == 1e-4


def test_refresh_by_importance_against_uniform(said: dict[str, dict[str, str]]) -> None:
    assert said["refresh"]["embedded"] == (
        "2DRP loses no more than uniform refresh with int16 words at 1 of 2 mean intervals (+2.0 % against +1.0 % every 540 us "
        "and +2.0 % against +3.0 % every 1,050 us). In the paper it answers better in 2 of 2 cells."
    )


def test_the_front_and_the_orderings(said: dict[str, dict[str, str]]) -> None:
    assert said["pareto"]["embedded"] == (
        "On the front (2 on SRAM and 1 on eDRAM of 4 rows): Kelle of 64, 2DRP every 1,050 us on eDRAM has perplexity 15.00 for 1 "
        "mJ per token; whole cache on SRAM has perplexity 12.00 for 4 mJ per token."
    )
    assert said["orderings"][""].startswith("Missed on some seed: 2DRP / uniform is 1.01")


def test_a_replay_that_is_scaled_anew_is_shown_once(
    connection: duckdb.DuckDBPyConnection, said: dict[str, dict[str, str]]
) -> None:
    found = kelle.asked(connection)("kept")
    assert found.height == 9
    assert found["kept"].min() == 0.7
    assert said["kept"][f"{TRACE}|64"] == (
        "With 64 tokens per head AERP keeps most, 90.0 % (StreamingLLM 80.0 % and the bound 94.0 %). AERP stores 30 % of the "
        "whole cache's bytes, 33 % of that as layer inputs."
    )


def test_layers_weigh_by_their_steps_along_the_text(said: dict[str, dict[str, str]], page: Page) -> None:
    """Of the first stretch, 10 steps keep 3 % more and 30 steps 1 % less: together as much as the replay."""
    assert page.opening["keeping"] == "64"
    assert said["along"][f"{TRACE}|64"] == (
        "With 64 tokens per head, from the first decoded tokens to the last: AERP from 90.0 % to 80.0 % and StreamingLLM from "
        "80.0 % to 70.0 %. At the end 40.0 % of what any head of AERP retains is popular."
    )


def test_divergence_names_the_layer(said: dict[str, dict[str, str]]) -> None:
    assert said["drift"][""] == (
        "Replay and live run keep the same tokens in every layer with StreamingLLM. They differ with AERP, most in layer 1 of "
        "AERP: 80.0 % are the same."
    )


def test_a_smaller_page_has_fewer_models_and_tapes(tmp_path: Path) -> None:
    def add(rows: Rows) -> None:
        add_kept(rows)
        for model in ("embedded", "zzz"):
            rows["kelle_quality"].append(measured("recall", "aerp", "", 0.5, budget_tokens=64, model_id=model))
        rows["kv_replays"] += [row | {"trace_id": "zzz"} for row in rows["kv_replays"]]

    with opened(tmp_path / "two.duckdb", add) as connection:
        page = kelle.page(connection, 1)
    assert page.data["kept"]["tape"].unique().to_list() == [TRACE]
    assert [row["live"] for row in page.choices if "live" in row] == ["embedded"]


def test_gains_are_over_the_baseline_of_the_same_cell(page: Page) -> None:
    base = page.data["headline"].filter((pl.col("system") == BASELINE) & (pl.col("reading") == PAPER))
    assert base.select("speed", "energy").unique().rows() == [(1.0, 1.0)]

"""The SliceMoE page against made-up rows whose answers can be told by hand, and its matched points against the study's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pytest
from chromium_page import CHROMIUM, open_page
from made_up import Tape, catalogue, gates, summaries, write
from made_up_slicemoe import add_claims, add_fidelity, add_live, add_operating, add_points, add_tapes, point

from dashboards import shell, slicemoe, slicemoe_answers, slicemoe_rows, slicemoe_tape
from dashboards.site import PAGE_BYTES
from flows.systems.slicemoe.settings import settings
from replay.matched import METRICS, Point, at_quality, gains
from warehouse.sql import connect
from warehouse.tables import WAREHOUSE_TABLES

EVERYTHING = (add_points, add_claims, add_live, add_fidelity, add_operating, add_tapes)
SMALL_CACHE, SPARE_CACHE = "embedded, code, cache 25 %, MAT42", "embedded, code, cache 95 %"


@contextmanager
def opened(path: Path, *adders: object) -> Iterator[duckdb.DuckDBPyConnection]:
    rows: dict[str, list[dict]] = {name: [] for name in WAREHOUSE_TABLES}
    for add in adders:
        add(rows)  # type: ignore[operator]
    with connect(write(path, rows)) as connection:
        yield connection


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    with opened(tmp_path_factory.mktemp("slicemoe") / "all.duckdb", *EVERYTHING) as connection:
        yield connection


@pytest.fixture(scope="module")
def said(connection: duckdb.DuckDBPyConnection) -> dict[str, dict[str, str]]:
    return {figure.name: dict(figure.answers) for figure in slicemoe.page(connection, 16).figures}


def test_claims_are_counted_by_role(said: dict[str, dict[str, str]]) -> None:
    assert said["claims"][""] == (
        "Within 10 % of the paper: 1 of 1 fitted (worst: +5.0 %, energy gain, Big-Model), 0 of 1 predicted (worst: -50.0 %, "
        "energy gain, Other-Model) and 0 of 2 reported only (worst: -20.0 %, speed-up, somewhere). 1 of 2 bounds hold. 2 of 8 "
        "numbers have no answer: perplexity (2); for 1 of them the paper prints no value."
    )


def test_a_bound_has_words_and_no_mark(connection: duckdb.DuckDBPyConnection) -> None:
    rows = slicemoe.page(connection, 16).data["claims"].filter(pl.col("bound") != "").sort("claim_id")
    assert rows["ratio"].to_list() == [None, None]
    assert rows.select("said_paper", "said_replay", "said_error").rows() == [
        ("≥ 2.00 experts", "1.00 experts (0.900 experts to 1.10 experts)", "fails"),
        ("≤ 50.0 %", "25.0 % (24.9 % to 25.1 %)", "holds"),
    ]


def test_gains_are_read_at_equal_kept_gate_mass(said: dict[str, dict[str, str]]) -> None:
    """High-bit .9 J; DBSC .4 and .54 J: 2.25 and 1.67 times; .9 s against .5 s. Low-bit .3 J: 3 times."""
    assert said["gains"]["0.35"] == (
        "With tau 0.35, DBSC reaches at most 1.96 × less energy and 1.80 × the speed on Big-Model (at 2.0 GB; paper 2.00) "
        "and 1.96 × less energy and 1.80 × the speed on Other-Model (at 2.0 GB; paper 4.00). Low precision everywhere "
        "gains more in 4 of 4 caches: the proxy charges it little, and only a live model can say what it costs."
    )
    assert said["sweeps"]["big-model|2.0 GB|0.5"] == (
        "Keeping 95 % of the gate mass, the high-bit cache misses 45.0 % and takes 900 mJ per token, low-bit 15.0 % and 300 mJ, "
        "DBSC 23.5 % and 470 mJ, DBSC + PCW 23.5 % and 470 mJ."
    )


def test_warmups_beside_the_papers(said: dict[str, dict[str, str]]) -> None:
    assert said["warmups"]["big-model"] == (
        "The first ten steps take 50 % less energy and 25 % less time with PCW than from an empty cache (paper: 60 % and 50 %); "
        "over the whole decode 5 % less energy and 0 % less time. By energy of the first steps, best first: PCW, random, last "
        "layer, empty."
    )


def test_live_says_where_dbsc_loses(said: dict[str, dict[str, str]]) -> None:
    loses = (
        "the high-bit cache misses 2.0 % (perplexity 9.00) and DBSC 2.0 % (9.90): " + slicemoe_answers.SPARING + ", DBSC loses."
    )
    assert said["live"][SMALL_CACHE] == (
        "DBSC beats the high-bit cache at 2 of 2 budgets (1 % and 30 %; perplexity 40.0 against 100 at 1 %); low-bit beats DBSC "
        f"at 1 of 2 budgets (1 %; perplexity 30.0 against 40.0 at 1 %). In {SPARE_CACHE}, without a budget {loses}"
    )
    assert said["live"][SPARE_CACHE] == f"Without a budget {loses}"


def test_unmeasured_negative_case_is_not_claimed(tmp_path: Path) -> None:
    with opened(tmp_path / "some.duckdb", lambda rows: add_live(rows, with_spare_cache=False)) as connection:
        live = next(figure for figure in slicemoe.page(connection, 16).figures if figure.name == "live")
    assert live.answers[SMALL_CACHE].endswith(slicemoe_answers.NOT_MEASURED)
    assert "DBSC loses" not in live.answers[SMALL_CACHE]


def test_fidelity_says_the_largest_error_and_its_band(said: dict[str, dict[str, str]]) -> None:
    assert said["fidelity"][""] == (
        "Replay is off by +15.0 % at most on average over seeds (miss rate, embedded, code, cache 50 %, high-bit, "
        "Cache-Prior; +10.0 % to +20.0 %); in 1 of 2 comparisons all seeds err to the same side."
    )


def test_operating_points_say_which_gains_no_miss_rate_explains(said: dict[str, dict[str, str]]) -> None:
    assert said["operating"][""] == (
        "The published gains of Slices over whole experts imply misses without and with Slices of 20 to 30 % and 5.0 % on "
        "Big-Model; they are impossible on Other-Model: 110 to 120 % of all accesses would have to miss. Of our own pairs, as "
        "replayed, 1 of 2 can be explained."
    )


@pytest.mark.parametrize(("layer", "begins", "ends"), [
    ("0", "Yes: in layer 0,", "a cosine of 1.00 and a correlation of 1.00; the half of the experts that prefill used most takes "
     "70 % of the early selections (by chance: 50 %)."),
    ("1", "Hardly: in layer 1,", "a cosine of 0.67 and a correlation of -1.00; the half of the experts that prefill used most "
     "takes 30 % of the early selections (by chance: 50 %)."),
    ("2", "Not to tell: in layer 2,", "a cosine of 0.71, and one of them uses all experts evenly, so they have no correlation; "
     "the half of the experts that prefill used most takes 50 % of the early selections (by chance: 50 %)."),
    ("all", "Hardly: over all layers,", "a cosine of 0.79 and a correlation of 0.00; the half of the experts that prefill used "
     "most takes 50 % of the early selections (by chance: 50 %)."),
])  # fmt: skip
def test_the_prompt_is_said_to_tell_where_it_does(said: dict[str, dict[str, str]], layer: str, begins: str, ends: str) -> None:
    for tape in ("gated", "ungated"):
        sentence = said["early"][f"{tape}|{layer}"]
        assert sentence == f"{begins} prefill and the first ten decode steps use the experts alike to {ends}"


def test_all_layers_are_averaged_by_rank(connection: duckdb.DuckDBPyConnection) -> None:
    row = slicemoe.page(connection, 16).data["early"].filter((pl.col("layer") == "all") & (pl.col("trace") == "gated"))
    assert row["prefill"].item().to_list() == [35.0, 28.33, 21.67, 15.0]  # 40, 40 and 25 %; ...
    assert row["early"].item().to_list() == [33.33, 16.67, 16.67, 33.33]  # 40, 10 and 50 %; ...


def test_critical_experts_are_said_for_every_tau(said: dict[str, dict[str, str]]) -> None:
    told = (
        "1.00 critical experts{} on average with tau 0.35, 0.50 with 0.5 and 0.00 with 0.7; along the text the first moves "
        "between {} and {}. In decode the largest of 2 gates takes 75.0 % of a token's weight, the smallest 25.0 %."
    )
    assert said["critical"] == {
        "gated|0": "In layer 0, a token has " + told.format("", "0.50", "1.50"),
        "gated|1": "In layer 1, a token has " + told.format("", "1.00", "1.00"),
        "gated|all": "Over all layers, a token has " + told.format(" per layer", "0.75", "1.25"),
    }


def test_positions_without_tokens_are_left_open(connection: duckdb.DuckDBPyConnection) -> None:
    rows = slicemoe.page(connection, 16).data["critical"].filter((pl.col("layer") == "0") & (pl.col("tau") == "0.35"))
    assert rows["critical"].item().to_list() == [1.0, 1.5, None, 0.5]


def test_tapes_do_not_multiply_the_other_menus(connection: duckdb.DuckDBPyConnection) -> None:
    choices = slicemoe.page(connection, 16).choices
    of_tapes = [choice for choice in choices if "trace" in choice]
    assert [choice["layer"] for choice in of_tapes] == ["0", "1", "2", "all"] * 2
    assert all(choice.keys() == {"trace", "layer"} for choice in of_tapes)
    assert all("trace" not in choice for choice in choices[: -len(of_tapes)])


def test_sixteen_tapes_of_a_real_models_size_fit_in_a_page(tmp_path: Path) -> None:
    def add(rows: dict[str, list[dict]]) -> None:
        for n in range(16):
            tape = Tape(f"deepseek-v2-lite-synthetic-{n:08x}", "deepseek-v2-lite", "none", "synthetic", 26, 64, 6)
            rows["traces"].append(catalogue(tape))
            summaries(tape, rows)
            gates(tape, rows)

    with opened(tmp_path / "large.duckdb", *EVERYTHING, add) as connection:
        html = shell.render(slicemoe.page(connection, 18), [(slicemoe.FILE, slicemoe.TITLE)])
    assert html.count('"layer": "all"') > 18
    assert len(html.encode()) < PAGE_BYTES


def test_the_menu_starts_with_the_tau_that_the_study_chose(connection: duckdb.DuckDBPyConnection) -> None:
    assert slicemoe.page(connection, 16).choices[0]["tau"] == "0.5"


def test_the_matched_level_is_the_studys() -> None:
    assert settings().quality_frac == slicemoe_rows.MATCHED_FRAC


@pytest.mark.parametrize("level", [0.6, 0.75, 0.95])
def test_sweeps_are_read_as_the_study_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: float) -> None:
    """Oracle: random sweeps, some that start below the level, some that never fall to it, some that come back."""
    rng = np.random.default_rng(7)
    sweeps = {
        (seed, name): [
            point("m", seed, 2.0, name, None if name == "high-bit" else 0.35, "last_layer", "none", strength, *values)
            for strength, values in zip(np.arange(6) / 5, rng.uniform(0.5, 1.0, (6, 3)).tolist(), strict=True)
        ]
        for seed in range(12)
        for name in ("high-bit", "dbsc")
    }
    with opened(
        tmp_path / "random.duckdb", lambda rows: rows["sliced_points"].extend(p for points in sweeps.values() for p in points)
    ) as c:
        monkeypatch.setattr(slicemoe_rows, "MATCHED_FRAC", level)
        found = slicemoe_rows.gains(c)
    fields = ("strength", "quality_frac", *METRICS)
    read = {key: at_quality([Point(**{f: p[f] for f in fields}) for p in points], level) for key, points in sweeps.items()}
    wanted = [gains(read[seed, "high-bit"], read[seed, "dbsc"]) for seed in range(12)]
    for metric, name in (("energy_gain", "energy"), ("speedup", "speed")):
        row = found.filter(pl.col("metric") == metric).row(0, named=True)
        values = [gain[name] for gain in wanted]
        assert (row["gain"], row["low"], row["high"]) == pytest.approx((np.mean(values), min(values), max(values)))
        assert row["matched"] == all(point.quality_frac == pytest.approx(level) for point in read.values())


def test_an_empty_warehouse_says_what_to_run(tmp_path: Path) -> None:
    with opened(tmp_path / "empty.duckdb") as connection:
        html = shell.render(slicemoe.page(connection, 16), [(slicemoe.FILE, slicemoe.TITLE)])
    assert html.count('class="missing"') == 9
    for command in ("tokentape study slicemoe", "tokentape evaluate --model embedded", "tokentape fidelity --model embedded"):
        assert command in html
    assert "<form" not in html


@pytest.mark.parametrize(("adders", "n_charts", "controls"), [
    ((add_points,), 3, ["model", "cache", "tau"]), ((add_claims,), 1, []), ((add_live,), 1, ["setup"]), ((add_fidelity,), 1, []),
    ((add_operating,), 1, []), ((add_tapes,), 2, ["trace", "layer"]),
])  # fmt: skip
def test_each_part_stands_alone(tmp_path: Path, adders: tuple, n_charts: int, controls: list[str]) -> None:
    with opened(tmp_path / "part.duckdb", *adders) as connection:
        page = slicemoe.page(connection, 16)
        html = shell.render(page, [(slicemoe.FILE, slicemoe.TITLE)])
    assert [control.name for control in page.controls] == controls
    assert html.count('class="chart"') == n_charts
    assert html.count('class="missing"') == 9 - n_charts


def test_the_proxy_is_never_called_accuracy(connection: duckdb.DuckDBPyConnection) -> None:
    figures = {figure.name: figure for figure in slicemoe.page(connection, 16).figures}
    for name in ("gains", "sweeps", "warmups"):
        texts = [figures[name].question, figures[name].reading, *figures[name].answers.values(), figures[name].chart.to_json()]
        assert not any("accura" in text.lower() for text in texts)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the page is not opened in a browser")
def test_the_page_draws_in_silence(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    html = shell.render(slicemoe.page(connection, 16), [(slicemoe.FILE, slicemoe.TITLE)])
    assert len(html.encode()) < PAGE_BYTES
    (tmp_path / slicemoe.FILE).write_text(html, encoding="utf-8")
    page = open_page((tmp_path / slicemoe.FILE).as_uri(), tmp_path)
    assert (page.console, page.requests) == ([], set())
    assert page.n_drawn == page.n_places == 9


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the page is not opened in a browser")
def test_a_tape_of_a_link_is_shown_and_lacks_what_it_has_not(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    (tmp_path / slicemoe.FILE).write_text(shell.render(slicemoe.page(connection, 16), [(slicemoe.FILE, slicemoe.TITLE)]), "utf-8")
    page = open_page(f"{(tmp_path / slicemoe.FILE).as_uri()}#trace=ungated&layer=1&tau=0.35", tmp_path)
    assert page.console == []
    assert page.text_of("early-answer").startswith("Hardly: in layer 1,")
    assert page.text_of("critical-answer") == slicemoe_tape.NO_GATES
    assert page.text_of("gains-answer").startswith("With tau 0.35,")

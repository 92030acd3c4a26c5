"""The Kelle study: points, answers and checks of the shipped settings, and the commands that show them."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from command import Cli
from readme_errors import AGAIN, stands

from bench.docs import errors as error_table
from tokentape.flows.running import run as study_run
from tokentape.flows.systems import SYSTEMS as STUDIES
from tokentape.flows.systems.kelle import study as kelle
from tokentape.flows.systems.kelle.settings import Settings
from tokentape.replay.kelle.step import PARTS
from tokentape.replay.kelle.systems import BASELINE, KELLE, MODES, SYSTEMS
from tokentape.warehouse.load import claims, database_path, load
from tokentape.warehouse.results import read_rows
from tokentape.warehouse.sql import query

PAPER, PHYSICAL = MODES
WANTED = {row["claim_id"]: row for row in claims().to_pylist() if row["paper"] == "kelle"}


@pytest.fixture(scope="module", autouse=True)
def told(place):
    """The closed forms of the study; what they said. They run again in test_kelle_live.py."""
    told: list[str] = []
    study_run(Settings.shipped(), place, say=told.append, in_model=False)
    return told


def test_without_a_live_model_no_study_needs_torch(tmp_path):
    """This one runs; the others are seen to import none."""
    absent, modules = ("torch", "transformers", "safetensors", "tokenizers"), ", ".join(STUDIES.values())
    script = f"""import sys; sys.modules |= dict.fromkeys({absent}); import {modules}
from tokentape.flows.running import run
from tokentape.flows.systems.kelle.settings import Settings
from tokentape.warehouse.tape import Store
few = Settings.shipped().model_copy(update=dict(grid=Settings.shipped().grid[:1]))
assert run(few, Store("tape"), say=print, in_model=False)"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)


@pytest.fixture(scope="module")
def points(place):
    return pl.DataFrame(read_rows(place, "kelle_points"), infer_schema_length=None)


@pytest.fixture(scope="module")
def answers(place):
    return {(row["claim_id"], row["mode"]): row for row in read_rows(place, "answers")}


@pytest.fixture(scope="module")
def checks(place):
    return {row["check"]: row for row in read_rows(place, "kelle_checks")}


def paper(points: pl.DataFrame, series: str) -> pl.DataFrame:
    return points.filter((pl.col("series") == series) & (pl.col("mode") == "paper"))


def test_the_headline_covers_every_system_model_and_workload(points):
    assert Settings.SHIPPED.read_text().count("assumed") >= 6
    headline = paper(points, "headline")
    assert headline.height == 7 * 4 * len(SYSTEMS)
    assert headline["dram_overflow_bytes"].max() > 60e9
    of_baseline = headline.filter(pl.col("system") == BASELINE)
    assert (of_baseline["energy_gain"].unique().to_list(), of_baseline["budget_tokens"].null_count()) == ([1.0], 28)
    kelle_gain = headline.filter(pl.col("system") == KELLE)["energy_gain"].mean()
    assert kelle_gain == pytest.approx(WANTED[next(c for c in WANTED if "8.1.2/energy" in c)]["value"], rel=0.05)


def test_parts_sum_to_the_energy_and_what_does_not_fit_has_none(points):
    timed = points.filter(pl.col("step_s").is_not_null())
    assert (timed.select(pl.sum_horizontal(PARTS) / pl.col("energy_j") - 1).to_series().abs() < 1e-12).all()
    untimed = points.filter(pl.col("step_s").is_null())
    assert untimed["mode"].unique().to_list() == ["physical"]
    assert untimed["dram_overflow_bytes"].min() > 0
    assert untimed.select(PARTS).null_count().row(0) == (untimed.height,) * len(PARTS)
    assert points.filter(pl.col("mode") == "physical")["notes"].str.contains("no recomputation").any()


def test_sweeps_without_published_values_have_their_error_bars_and_directions(points):
    interval = paper(points, "refresh interval").sort("setting_value")
    assert interval["setting_value"].unique().sort().to_list() == [131, 262, 525, 1050]
    for (_,), of in interval.group_by("workload"):
        assert of.sort("setting_value")["energy_gain"].is_sorted()
    batch = paper(points, "table-9").filter(pl.col("system") == KELLE).sort("batch")
    assert batch["batch"].to_list() == [1, 2, 4, 8, 16]
    assert batch["energy_gain"].is_sorted()
    on_kelle = paper(points, "edram bandwidth").filter(pl.col("system") == KELLE)
    slow, fast = (on_kelle.filter(pl.col("setting_value") == gbs)["speed_gain"].mean() for gbs in (128, 256))
    assert slow < fast
    assert points.select("typical_err_frac", "worst_err_frac").unique().rows() == [(0.2, 0.35)]
    # refresh costs less the rarer it is, and the more the worse the cells are
    by_policy = paper(points, "refresh policy").group_by("setting").agg(pl.col("refresh_j").mean())
    ordered = by_policy.sort("refresh_j", descending=True)["setting"].to_list()
    assert ordered == ["45 us", "uniform 360 us", "2D", "2D + scheduler"]
    held = paper(points, "sensitivity").filter(pl.col("setting").str.starts_with("failures") & (pl.col("system") == KELLE))
    by_anchor = held.group_by("setting_value").agg(pl.col("refresh_j").mean()).sort("setting_value")
    assert by_anchor["setting_value"].to_list() == [1e-7, 1e-6, 3e-6, 1e-5]
    assert by_anchor["refresh_j"].is_sorted()


def test_answers_are_of_known_claims_by_role_and_reading_as_the_readme_shows(answers):
    assert {claim for claim, _ in answers} <= set(WANTED)
    assert {mode for _, mode in answers} == {PAPER, PHYSICAL}
    fitted = {claim: row["value"] for (claim, mode), row in answers.items() if mode == PAPER}
    for claim, row in WANTED.items():
        if row["role"] in ("calibrate", "predict"):
            assert claim in fitted
    ratios = [claim for claim, row in WANTED.items() if row["role"] in ("calibrate", "predict") and "over" in claim]
    assert len(ratios) == 26
    assert fitted["kelle/7.1/average_interval/four-default-intervals"] == pytest.approx(1053.66, abs=0.01)
    assert fitted["kelle/8.4.1/max_input_tokens/llama-2-7b/without-aerp"] == pytest.approx(19_000, rel=0.05)
    assert fitted["kelle/1/kv_cache_size/llama-2-7b/8192-tokens-fp16"] == 4.0
    assert fitted["kelle/8/peak/int8"] == pytest.approx(4.128)
    assert error_table.lines(answers.values()) == stands("kelle"), AGAIN


def test_what_memory_cannot_hold_or_explain_is_shown(answers):
    """No physical answer where the DRAM overflows. Twice the SRAM holds hardly more of a cache of gigabytes: the paper's 1.27x
    has another cause, or none."""
    assert not any(mode == PHYSICAL and ("table-7" in claim or "8.3.5" in claim) for claim, mode in answers)
    headline = next(row for (claim, mode), row in answers.items() if mode == PHYSICAL and "8.1.2/energy" in claim)
    assert "13 cells" in headline["how"]
    recompute = next(claim for claim, _ in answers if "recomputation-on-vs-off" in claim)
    assert answers[recompute, PHYSICAL]["value"] < 0 < answers[recompute, PAPER]["value"]
    speedup = next(row for (claim, mode), row in answers.items() if mode == PAPER and "8-mb-over-4-mb-sram-32x32" in claim)
    assert speedup["value"] == pytest.approx(1.0, abs=1e-3)
    assert answers["kelle/3.2/refresh_energy_share/8-mb-edram-at-45-us-maximum", PAPER]["value"] > 70


def test_derived_numbers_of_the_notes(checks):
    golden = json.loads((Path(__file__).parent / "kelle_notes.json").read_text())
    for check, (value, published) in golden.items():
        assert checks[check]["value"] == pytest.approx(value, rel=0.015), check
        assert checks[check]["published"] == (None if published is None else pytest.approx(published, rel=0.005)), check
    assert checks["Table 9 at batch 4 from batch 16"]["value"] == pytest.approx(2.08, abs=0.01)
    assert all(checks[name]["value"] <= bar == checks[name]["bar_high"] for name, bar in Settings.shipped().bars.items())
    errors = {setting: checks[f"mean |ln| error, {setting}"]["value"] for setting in ("as is", "true GQA", "DRAM at 4 pJ/bit")}
    assert min(errors, key=errors.__getitem__) == "as is"


def test_other_tables_have_what_their_charts_need(place):
    rows = {name: pl.DataFrame(read_rows(place, name), infer_schema_length=None) for name in (*kelle.VIEWS, "kelle_checks")}
    assert rows["kelle_retention"].filter(pl.col("refresh_group") != "").height == 4 * 4
    assert set(rows["kelle_recompute"]["label"]) == {"", "none", "moderate", "excessive"}
    assert rows["kelle_lifetimes"].group_by("model_id", "schedule").len()["len"].to_list() == [4] * 4
    assert rows["kelle_requests"].filter(pl.col("mode") == "paper")["energy_gain"].null_count() == 0
    assert rows["kelle_requests"].filter(pl.col("mode") == "physical")["energy_gain"].null_count() > 0
    share = rows["kelle_parts"].filter(pl.col("part") != "dram")["published_power_w"].sum()
    assert share == pytest.approx(6.52)


def test_the_study_tells_how_recomputation_checks_out_and_loads(place, told):
    assert len(told) == 3
    assert "16.4 us here, 3.2 us as published" in told[1]
    database = database_path(place)
    report = load(place, database)
    assert query(report.database, "select count(*) from kelle_points").item() > 2000
    shown = query(database, "select role, count(distinct claim_id) n from paper_vs_replay where study = 'kelle' group by role")
    assert dict(shown.iter_rows())["calibrate"] == 13


def test_claims_calibrate_and_a_step_of_ones_own_model_on_ones_own_chip(tokentape: Cli, place, tmp_path):
    rows = json.loads(tokentape("claims", "kelle", "--json", "--store", place.root).out)["claims"]
    assert len({row["claim_id"] for row in rows}) == len(WANTED)
    done = tokentape.ok("calibrate", "kelle")
    assert "predict: mean |ln(ours / published)| 0.057" in done.err
    paper = ("--profile", "kelle", "--shares", "kelle")
    done = tokentape.ok("step", "kelle", "llama-2-7b", *paper)
    assert "8.286" in done.out, "Kelle's joules"
    assert "Original+SRAM, Original+eDRAM: dram_overflow: 62.4 GB" in done.err
    (tmp_path / "slow.toml").write_text(
        'base = "kelle-edram"\nname = "slow"\ntitle = "slow"\n'
        '[tiers.dram]\npeak_bytes_per_s = { value = 32e9, source = "assumed" }\n'
    )
    slow = tokentape("step", "kelle", "llama-2-7b", *paper, "--hardware", "slow.toml")
    assert "8.286" not in slow.out
    assert "does not fit" in tokentape("step", "kelle", "llama-2-7b", "--profile", "kelle", "--mode", "physical").out
    done = tokentape("step", "kelle", "llama-2-7b", "--hardware", "h100")
    assert "profile physical, mode whole" in done.out
    assert "Kelle+eDRAM: no KV memory: keys and values lie in hbm" in done.err
    tokentape.ok("step", "kelle", "llama-2-7b", "--batch", str(10**20))  # beyond 64 bits

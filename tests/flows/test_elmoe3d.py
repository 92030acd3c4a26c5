"""The ELMoE-3D study: its rows and answers, its bars, its speed; and the commands calibrate elmoe3d and speculate."""

import json
from dataclasses import astuple
from itertools import product

import numpy as np
import polars as pl
import pytest
from command import Cli
from readme_errors import AGAIN, stands
from tiny_tape import write_tiny

from bench.docs import errors as error_table
from tokentape.capture.orderings import ACCEPTANCE_ORDERINGS
from tokentape.flows.grid import load_trace
from tokentape.flows.running import run
from tokentape.flows.study_file import Grid
from tokentape.flows.systems.elmoe3d import live
from tokentape.flows.systems.elmoe3d import study as elmoe3d
from tokentape.flows.systems.elmoe3d.settings import CHANGES, PAPER, Settings, Sweep, setup_of
from tokentape.flows.systems.elmoe3d.study import closed_forms, measured_rows, written
from tokentape.hw.elmoe3d_constants import load
from tokentape.replay.elmoe3d.checks import HONESTY
from tokentape.replay.elmoe3d.events import EVENTS
from tokentape.replay.elmoe3d.fit import cells
from tokentape.replay.elmoe3d.mapping import map_bytes
from tokentape.replay.elmoe3d.points import as_points
from tokentape.replay.elmoe3d.rows import MEASURED, evaluated, point_rows
from tokentape.replay.elmoe3d.tape import drafted_point
from tokentape.warehouse.load import claims
from tokentape.warehouse.results import read_rows
from tokentape.warehouse.tables import VIEWS

STUDY = Settings.shipped()
FEW = {"seeds": (0,), "prompts": 2, "prompt": 16, "output": 6, "whole_windows": 2, "recorded_requests": 2}
LOOPS = (
    Grid(series="pool", bits=0, pool=["hotness", "random"]),
    Grid(series="batch", bits=0, batch=2),
    Grid(series="drafters", draft="ngram"),
)
SMALL = STUDY.model_copy(
    update={
        "tapes": STUDY.tapes.model_copy(update={"requests": 4, "output": 17, "batches": (1, 4, 16), "warm_steps": 2}),
        "live": STUDY.live.model_copy(update={**FEW, "pool_fracs": (0.5,), "loops": LOOPS}),
    }
)
STATED = {row["claim_id"]: row for row in claims().to_pylist() if row["paper"] == PAPER}
CHECK = ("level", "fit", "hit_model", "block")
MISSED = "Elastic over EAGLE3 Phi_SD, batch 4 and up, mean"  # 24 pairs, six of them withheld: docs/elmoe3d.md
TABLES = [name for name in VIEWS if name.startswith("elmoe3d_")]
SETUP, CELLS = setup_of(STUDY), cells(claims().to_pylist())


@pytest.fixture(scope="module")
def said():
    return []


@pytest.fixture(scope="module")
def computed():
    """What the study computed in closed form, before it was written."""
    return {}


@pytest.fixture(scope="module")
def answers(place, said, computed, loaded_once):
    def kept(*given):
        computed.update(made := closed_forms(*given))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elmoe3d, "closed_forms", kept)
        made = run(SMALL, place, runner="threads", workers=1, say=said.append)
    return {(row["claim_id"], row["mode"]): row for row in made}


@pytest.fixture(scope="module")
def rows(place, answers):
    return {name: pl.DataFrame(read_rows(place, name), infer_schema_length=None) for name in (*TABLES, "coverage_points")}


@pytest.fixture(scope="module")
def points(rows):
    return rows["elmoe3d_points"]


def test_every_table_has_rows_and_keys_are_unique(rows, computed):
    for name in TABLES:
        assert rows[name].height
        assert set(rows[name]["study"]) == {STUDY.name}
        if name in computed:
            both = rows[name].to_dicts(), computed[name]
            stored, made = ([row for row in of if row.get("hit_model") != EVENTS] for of in both)
            assert len(stored) == len(made), f"{name}: rows of one key replaced each other"


def test_table_3_is_there_row_by_row_under_every_law_level_and_fit(points):
    table = points.filter(pl.col("series") == "table-3")
    assert table.filter(pl.col("hit_model") != EVENTS).height == 128 * len(STUDY.fits) * len(STUDY.hit_models)
    assert table.filter(pl.col("hit_model") == EVENTS).height == 64  # four requests fill no batch of 8
    one = table.filter((pl.col("level") == "L1") & (pl.col("fit") == "calibrate") & (pl.col("hit_model") == "paper_law"))
    withheld = one.filter("is_withheld")
    assert withheld.height == 24
    assert withheld["published_ar"].null_count() == withheld["published_sd"].null_count() == 24
    assert withheld["phi_ar"].min() > 0.0
    assert set(one["fidelity"]) == {"input"}
    stated = {row["claim_id"]: row["value"] for row in STATED.values()}
    opened = one.filter(~pl.col("is_withheld"))
    assert sorted(opened["published_ar"]) == sorted(v for k, v in stated.items() if "/table-3/phi_ar/" in k and v is not None)


def test_sweeps_go_past_the_paper_and_every_platform_has_its_energy(points, rows):
    assert {"batch", "hb-capacity", "hb-bandwidth", "context", "alpha", "accepted-form"} < set(points["series"])
    capacity = points.filter((pl.col("series") == "hb-capacity") & (pl.col("sd_scheme") == "Elastic-SD"))
    assert (capacity["hb_bytes"].min(), capacity["hb_bytes"].max()) == (2 * 2**30, 32 * 2**30)
    where = ["model_id", "batch", "hit_model"]
    for _, of in capacity.sort("hb_bytes").group_by(where):
        assert np.all(np.diff(of["resident_frac"]) >= 0.0)
        assert np.all(np.diff(of["phi_ar"].to_numpy()[of["ar_hit_frac"].to_numpy() < 0.88]) >= -1e-12)
    context = points.filter(pl.col("series") == "context")
    assert context["context_tokens"].max() == 131072
    assert context.filter(pl.col("context_tokens") == 131072)["cold_bytes"].max() > 0.0
    assert points.filter(pl.col("series") == "batch")["batch"].max() == 64
    platforms, energy = rows["elmoe3d_platforms"], rows["elmoe3d_energy"]
    assert set(platforms["platform"]) == {"elmoe3d", "hb-xpu", "xpu", "xpu-pim", "xpu-logicpim", "xpu-nmp"}
    xpu = platforms.filter((pl.col("platform") == "xpu") & (pl.col("step_mode") == "ar"))
    assert xpu["speedup"].to_list() == pytest.approx([1.0] * xpu.height)
    key = ["platform", "model_id", "batch", "level", "hit_model", "nmp_ext_ratio", "placement", "verify_nodes"]
    best = platforms.group_by(key).agg(pl.col("is_best").sum())
    assert set(best["is_best"]) == {1}
    assert energy.filter((pl.col("low") > pl.col("j_per_token")) | (pl.col("high") < pl.col("j_per_token"))).is_empty()
    assert set(energy.filter(pl.col("platform") == "xpu-nmp")["part"]) == {"compute", "ext", "hb", "links", "static"}


def test_two_grids_have_machines_of_their_own_and_what_a_table_leaves_out_is_the_studys():
    study, at = Settings.shipped(), {"scheme": "Elastic-SD", "batch": 1, "model": "qwen3-30b-a3b"}
    grids = [Sweep(series=name, each=({name: 2}, {"alpha": 0.5}, {"context_tokens": 99}), **at) for name in CHANGES]
    asked, table = study.model_copy(update={"grid": grids}), cells(claims().to_pylist())
    past, of = elmoe3d.sweep_points(asked, setup_of(study), table, load(study.headline).constants)
    found = point_rows(evaluated(past.filter(pl.col("series") != "accepted-form"), of), of)
    told = [(row["hb_bytes"] / 2**30, round(row["hb_bytes_per_s"] / 1.58e12), row["context_tokens"]) for row in found]
    assert sorted(told) == [(2, 1, 1024), (8, 1, 99), (8, 1, 99), (8, 1, 1024), (8, 1, 1024), (8, 2, 1024)]
    assert [row["alpha"] for row in found].count(0.5) == 2


def test_answers(answers):
    tables = [key for key in STATED if "/table-3/phi" in key]
    assert len(tables) == 256
    for claim_id, mode in product(tables, ("paper", "physical")):
        assert np.isfinite(answers[claim_id, mode]["value"])
    withheld = [key for key in tables if STATED[key]["value"] is None]
    assert len(withheld) == 48
    assert all("withheld" in answers[key, "paper"]["how"] for key in withheld)
    for claim_id, row in answers.items():
        assert claim_id[0] in STATED
        assert row["low"] is None or row["low"] <= row["value"] <= row["high"]
    inputs = [key for key, mode in answers if STATED[key]["role"] == "input" and STATED[key]["metric"] != "active_params"]
    for key in inputs:
        assert answers[key, "paper"]["value"] == pytest.approx(STATED[key]["value"], rel=0.05), key


def test_answers_of_section_7_1_lie_within_their_bars_mean_and_pair_by_pair(answers):
    best = "elmoe3d/sec-7.1/best_mode_elastic_speedup/mean/{}gb-mt-bench-batch-1-16-models-all-four"
    for gb in (4, 8):
        claim = best.format(gb)
        assert answers[claim, "paper"]["value"] == pytest.approx(STATED[claim]["value"], rel=0.04)
    over = "elmoe3d/sec-7.1/elastic_over_eagle_phi_sd/{}/4gb-8gb-mt-bench-batch-4-models-all-four"
    assert answers[over.format("max"), "paper"]["value"] == pytest.approx(2.08, abs=0.15)
    # The mean of 24 pairs misses its bar (docs/elmoe3d.md); the 18 that are published can be compared, each with its own.
    ratios = {"ours": {}, "theirs": {}}
    for claim in (key for key in STATED if "/phi_sd/" in key and STATED[key]["value"] and int(key.rsplit("-", 1)[1]) >= 4):
        pair, of = claim.replace("elastic-sd", "eagle3"), "theirs" if "eagle3" in claim else "ours"
        ratios[of][pair] = np.array([answers[claim, "paper"]["value"], STATED[claim]["value"]])
    over = np.array([ratios["ours"][pair] / below for pair, below in ratios["theirs"].items()])
    assert len(over) == 18
    assert np.abs(over[:, 0] / over[:, 1] - 1.0).mean() <= 0.045


def test_inputs_are_not_counted_and_what_is_not_known_is_a_band(answers):
    """Whatever is read off inputs, sizes or all codes says so, and has no error."""
    words = ("an input", "over the rows of Table 3, inputs", "from the file of", "counted from the model", "over all INT8 codes")
    told = {claim for (claim, _), row in answers.items() if row["how"].startswith(words)}
    assert told == {claim for claim, _ in answers if STATED[claim]["role"] in ("input", "derived")}
    # Figures 14 and 15: the mean over the best prior is within reach, the maximum is not (spec section 9).
    prior = "elmoe3d/sec-7.2-fig-14/speedup_over_best_prior/{}/8gb-4-datasets-batch-1-16-best-mode-models-all-four"
    mean, largest = (answers[prior.format(statistic), "paper"] for statistic in ("mean", "max"))
    assert mean["low"] < STATED[prior.format("mean")]["value"] < mean["high"]
    assert largest["high"] < STATED[prior.format("max")]["value"]


def test_the_study_says_how_far_it_is_off_as_the_readme_does(said, answers):
    assert f"{len(STUDY.bars) - 1} of {len(STUDY.bars)} bars held; not: {MISSED}" in said[0]
    assert said[1] == HONESTY
    assert error_table.lines(answers.values()) == stands("elmoe3d"), AGAIN


def test_checks_are_those_of_plain_arithmetic(rows, points):
    """Of every fit and law; the untuned laws miss the table by as much as a reference implementation of them did."""
    made = {tuple(check): value for *check, value in rows["elmoe3d_checks"].select(*CHECK, "value").rows()}
    for at, of in points.filter(pl.col("series") == "table-3").group_by("level", "fit", "hit_model"):
        opened = of.filter(~pl.col("is_withheld"))
        error = (opened["phi_ar"] / opened["published_ar"] - 1.0).abs()
        elastic = of.filter(pl.col("sd_scheme") == "Elastic-SD", pl.col("hb_bytes") == 2**32)
        wanted = {
            "Phi_AR error, open rows, mean": error.mean(),
            "Phi_AR error, open rows, 90th percentile": error.quantile(0.9, "linear"),
            "Phi_SD rank correlation": opened.select(pl.corr("phi_sd", "published_sd", method="spearman")).item(),
            "Elastic best mode over xPU, 4 GB, mean": elastic.select(pl.max_horizontal("phi_ar", "phi_sd")).mean().item(),
        }
        assert {block: made[*at, block] for block in wanted} == pytest.approx(wanted, rel=1e-12)
    for law, level, mean in (("physical", "L0", 0.124), ("physical", "L1", 0.098), ("che", "L0", 0.26), ("che", "L1", 0.19)):
        assert made[level, "calibrate", law, "Phi_AR error, open rows, mean"] == pytest.approx(mean, abs=0.005)


def test_what_enters_the_pool_costs_what_the_rounds_by_events_say(rows, points):
    drawn = points.filter((pl.col("hit_model") == EVENTS) & (pl.col("series") == "table-3"))
    entered = drawn.filter((pl.col("sd_scheme") == "Elastic-SD") & (pl.col("hardware") == "elmoe3d-8gb"))["pool_write_frac"]
    found = written(STUDY, drawn.to_dicts())
    assert (found.value, found.low, found.high) == pytest.approx((entered.mean(), entered.min(), entered.max()))
    shares = {"j_per_token": found.value, "low": found.low, "high": found.high}
    where = ["platform", "model_id", "batch", "hit_model", "step_mode", "part"]
    few = STUDY.model_copy(update={"grid": STUDY.grid[:1]})
    whole = pl.DataFrame(closed_forms(few, SETUP, CELLS, [STUDY.load_fits()[STUDY.headline]])["elmoe3d_energy"])
    both = rows["elmoe3d_energy"].join(whole, on=where, suffix=" of all").sort(where)
    for end, bound in {"j_per_token": 1.0, "low": 0.0, "high": 1.0}.items():
        moved = both.filter(pl.col(end) != pl.col(f"{end} of all")).select("platform", "step_mode", "part")
        assert set(moved.rows()) == ({("elmoe3d", "sd", "hb")} if shares[end] != bound else set())


def test_intensity_knees_are_where_rooflines_bend(rows):
    found = rows["elmoe3d_intensity"]
    machine = SETUP.machines["8"]
    knee = found.filter((pl.col("part") == "knee ext") & (pl.col("hardware") == "elmoe3d-8gb"))["ops_per_byte"]
    ext = machine.tiers["ext"]
    bends_at = machine.engines["xpu"].ops_per_s["int8"].value / (ext.peak_bytes_per_s.value * ext.efficiency_frac.value)
    assert knee.to_list() == pytest.approx([bends_at] * 4)
    static = found.filter((pl.col("part") == "static") & (pl.col("step_mode") == "ar")).sort("batch")
    for _, of in static.group_by("hardware", "model_id", maintain_order=True):
        assert np.all(np.diff(of["ops_per_byte"]) > 0.0)


def test_tapes_are_replayed_exactly_and_closed_forms_stand_beside(rows):
    misses = rows["elmoe3d_misses"]
    assert set(misses["hit_model"]) == {"lru", "paper_law", "physical", "che"}
    lru = misses.filter(pl.col("hit_model") == "lru")
    assert set(lru["fidelity"]) == {"exact"}
    assert set(lru["batch"]) == {1, 4}  # four requests fill no batch of 16
    for _, of in lru.sort("cache_frac").group_by("source", "batch", maintain_order=True):
        assert np.all(np.diff(of["miss_frac_lookups"]) <= 0.0)
    covered = rows["coverage_points"]
    assert set(covered["tokens_of"]) == {"decode", "one_request"}
    assert covered.filter(pl.col("n_tokens") == 1)["coverage_frac"].n_unique() >= 3


def test_claims_prints_paper_and_replay(place, answers, tokentape: Cli):
    done = tokentape.ok("claims", "elmoe3d", "--store", place.absolute)
    assert "elastic_over_eagle_phi_sd" in done.out
    assert "physical" in done.out
    last = done.out.partition("errors by role and mode")[2]
    order = [
        line.split()[:2] for line in last.splitlines() if line.split() and line.split()[0] in ("report", "calibrate", "predict")
    ]
    assert order == [[role, mode] for mode in ("paper", "physical") for role in ("report", "calibrate", "predict")]
    assert "11 derived" in last
    assert "elmoe3d " in tokentape("claims", "--store", place.absolute).out


@pytest.mark.slow  # the closed forms again; other studies are run again in the ordinary suite
def test_a_second_run_measures_nothing_again_and_gives_the_same_rows(place, answers, points, monkeypatch):
    monkeypatch.setattr(live, "_measured", lambda *told: pytest.fail("measured again"))
    again = run(SMALL, place, runner="threads", workers=1, say=lambda line: None)
    assert {(row["claim_id"], row["mode"]): row for row in again} == answers
    assert pl.DataFrame(read_rows(place, "elmoe3d_points"), infer_schema_length=None).equals(points)


def test_a_tapes_own_acceptance_goes_through_the_machine(store):
    trace_id = "tiny-0001"
    write_tiny(store)
    fit, tape = load(STUDY.headline).constants, store.open(trace_id)
    assert measured_rows(store, STUDY, SETUP, fit, trace_id) == []  # nothing was drafted
    drafted = {"draft": "elastic", "depth": 4, "pool_frac": 0.5}
    trace = load_trace(store, trace_id)
    point, setup = drafted_point(tape.manifest.model_id, trace, drafted, "Elastic-SD", 2, SETUP.machines["8"], fit)
    assert map_bytes(as_points(point, setup)).slice_share == pytest.approx(0.5)
    assert set(point.select("n_draft_steps", "batch").rows()) == {(4, 2)}
    (row, *_) = point_rows(evaluated(point.with_columns(series=pl.lit(MEASURED)), setup), setup)
    assert (row["accepted_form"], row["alpha"], row["fidelity"]) == ("measured", None, "approximate")


def test_calibrate_writes_what_ships_and_prints_the_honest_sentence(tokentape: Cli, tmp_path):
    done = tokentape.ok("calibrate", "elmoe3d", "--out", "mine")
    assert "forms are not" in done.out
    assert "Phi_SD best scheme right" in done.out
    for name in (f"elmoe3d-{level}{rows}" for level in ("l0", "l1") for rows in ("", "-all-open")):
        mine, theirs = load(str(tmp_path / "mine" / f"{name}.toml")), load(name)
        assert mine.fitted_on == theirs.fitted_on
        found, shipped = mine.constants, theirs.constants
        assert (found.level, found.rows, list(found.laws)) == (shipped.level, shipped.rows, list(shipped.laws))
        for model, law in found.laws.items():
            assert astuple(law) == pytest.approx(astuple(shipped.laws[model]), rel=1e-5)
        assert astuple(found.speculation) == pytest.approx(astuple(shipped.speculation), rel=1e-3)
    assert "Phi_SD best scheme right" in tokentape("calibrate", "elmoe3d", "--check", "elmoe3d-l1").out
    assert len(list((tmp_path / "mine").iterdir())) == 4


def test_speculate_prints_both_modes(tokentape: Cli):
    def step(words):
        return tokentape("step", "elmoe3d", *words.split())

    done = step("--model qwen3-30b-a3b --batch 1,4,8,16 --alpha .91")
    assert done.code == 0
    assert "4.77" in done.out  # Phi_AR at batch 1, a calibration row
    assert "speculation pays at batch" in done.err
    priced = step("--model gpt-oss-20b --scheme eagle3,SLM-SD --nodes 16,3 --batch 1")
    assert "SD J per token" in priced.out
    assert "none of these" in priced.err
    assert "exceed HB" in step("--model qwen3-30b-a3b --context 131072 --batch 8").err
    for law in ("--beta .5 --exponent .6 --accepted-form chain", "--exponent .6 --hit-model che"):
        assert step(f"--model olmoe-1b-7b --alpha .8 {law}").code == 0
    policy = step("--model qwen3-30b-a3b --batch 1 --tau 2").out
    assert "from 2 on x" in policy
    assert policy.count("4.77") == 2
    ((row,),) = (table["rows"] for table in json.loads(step("--model qwen3-30b-a3b --batch 1 --json").out))
    assert all(0.0 < frac < 1.0 for frac in row["hits AR, verify"])
    assert sum(row["AR step from HB, EXT"]["value"]) > 1e9


def test_what_the_live_model_accepts_stands_beside_the_closed_forms(place, answers, points):
    accepted = pl.DataFrame(read_rows(place, live.POINTS), infer_schema_length=None)
    assert set(accepted["series"]) == {"bits", "pool", "batch", "drafters", "replay"}
    assert set(accepted["study"]) == {STUDY.name}
    assert {row["assertion"] for row in read_rows(place, "orderings")} == {o.assertion for o in ACCEPTANCE_ORDERINGS}
    ours = points.filter(pl.col("series") == MEASURED)
    assert set(ours["sd_scheme"]) == {"EAGLE3", "Elastic-SD", "Quant-SD"}
    assert set(ours["model_id"]) == {"embedded"}
    assert set(ours["hit_model"]) == {EVENTS}
    assert ours.filter(pl.col("sd_scheme") == "Elastic-SD")["pool_write_frac"].is_between(0.0, 1.0).all()
    pools = accepted.filter((pl.col("series") == "pool") & (pl.col("metric") == "tau_accepted"))
    by = dict(pools.select("pool_policy", "value").iter_rows())
    gain = next(c for c in STATED if "hotness_vs_random" in c)
    if by["random"]:
        assert answers[gain, "paper"]["value"] == pytest.approx(100 * (by["hotness"] / by["random"] - 1))


@pytest.mark.parametrize("told", ["truncation/min 0 0", "truncation/max 15 15", "rounding/min -8 -8", "rounding/max 7 15"])
def test_errors_of_four_bit_codes_are_enumerated(answers, told):
    name, *values = told.replace("/", "_error_low4/").split()
    claim = next(c for c in STATED if name in c)
    assert [answers[claim, mode]["value"] for mode in ("paper", "physical")] == [*map(float, values)]

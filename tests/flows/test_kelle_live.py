"""What the Kelle study measures inside a live model, on hardly any text: rows, references, the front, and what is skipped."""

import json
from importlib import import_module
from types import SimpleNamespace

import polars as pl
import pytest

from tokentape.capture import datasets, models
from tokentape.capture.live.kv_orderings import PAPER_ORDERINGS, WORD_ORDERINGS
from tokentape.flows.running import run as study_run
from tokentape.flows.systems.elmoe3d import study as elmoe3d
from tokentape.flows.systems.kelle import live
from tokentape.flows.systems.kelle import study as kelle
from tokentape.flows.systems.kelle.live import UNITS, quality_rows
from tokentape.flows.systems.kelle.settings import Inside, setup
from tokentape.flows.systems.slicemoe import study as slicemoe
from tokentape.hw import profile as profiles
from tokentape.policies.kv.refresh import FIRST_US, BitRates, Intervals
from tokentape.replay.kelle.step import PARTS, decode_steps
from tokentape.replay.kelle.systems import BASELINE, PHYSICAL, Work
from tokentape.warehouse.load import database_path, load
from tokentape.warehouse.model_config import from_config
from tokentape.warehouse.results import read_rows
from tokentape.warehouse.sql import query
from tokentape.warehouse.tape import Store

pytestmark = pytest.mark.embedded
_STUDY = kelle.Settings.shipped()
_LIVE = _STUDY.live
_FEW = {
    "orderings": {"items": 1},
    "budget": {"items": 1, "budget": 16},
    "recall": {"items": 1, "budget": 64},
    "refresh": {"items": 1, "intervals_us": [[360, 5400, 1440, 7200], [180, 3600, 720, 5400]]},
    "errors": {"items": 1, "output": 4, "value": 2e-2},
    "divergence": {"items": 1, "output": 4, "budget": 16},
    "tape": {"items": 1, "output": 4, "prompt": 48, "budget": 24},
}
_TRIED = {("full", ""), ("full", "4-bit"), ("aep", ""), ("aerp", ""), ("aerp", "mean score"), ("kelle", "")}


def _small(grid: Inside) -> Inside:
    """Few of its items, caches and numbers."""
    few = _FEW[grid.series]
    of_each = {name: few[name] for name in ("budget", "intervals_us", "value") if name in few}
    each = [fields for fields in grid.each if "policy" not in fields or (fields["policy"], fields.get("setting", "")) in _TRIED]
    given = [fields | {name: of_each[name] for name in of_each if isinstance(fields.get(name), (int, list))} for fields in each]
    own = {name: value for name, value in few.items() if name not in of_each or name in (grid.model_extra or {})}
    return grid.model_copy(update={**own, "each": tuple(given)})


SMALL = _STUDY.model_copy(
    update={
        "grid": _STUDY.grid[:1],  # closed forms: test_kelle_study.py
        "live": _LIVE.model_copy(
            update={"seeds": (0, 1), "prompt": 16, "output": 4, "grid": tuple(_small(grid) for grid in _LIVE.grid)}
        ),
    }
)


def run(store: Store) -> None:
    """Of the orderings only the words' are asked: windows are too short for the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "ORDERINGS", WORD_ORDERINGS)
        patch.setattr(live, "PAPER_ORDERINGS", PAPER_ORDERINGS[:1])
        study_run(SMALL, store, runner="threads", workers=1, say=lambda line: None)


@pytest.fixture(scope="module")
def place(tmp_path_factory, loaded_once):
    """A store with the study on hardly any text."""
    made = Store(str(tmp_path_factory.mktemp("kelle") / "tape"))
    run(made)
    return made


def frame(place: Store, view: str) -> pl.DataFrame:
    return pl.DataFrame(read_rows(place, view), infer_schema_length=None)


@pytest.fixture(scope="module")
def quality(place):
    return frame(place, "kelle_quality")


@pytest.fixture(scope="module")
def pareto(place):
    return frame(place, "kelle_pareto")


def series(quality: pl.DataFrame, name: str, metric: str = "perplexity") -> pl.DataFrame:
    return quality.filter((pl.col("series") == name) & (pl.col("metric") == metric))


def test_a_tape_is_replayed_again_where_the_policies_beside_it_are_others(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(kelle.Settings, "once", lambda study, store, of, *told: made.append(of) or of)
    for grids in (SMALL.live.grid, [grid for grid in SMALL.live.grid if grid.table != "kv_divergence"]):
        study = SMALL.model_copy(update={"live": SMALL.live.model_copy(update={"grid": tuple(grids)})})
        job = next(job for job in live.jobs(study) if job.table == "kv_replays")
        live.run_job(Store(str(tmp_path)), study, job)
    assert made[0] != made[1]


@pytest.mark.parametrize("of", [kelle, slicemoe, elmoe3d])
def test_what_was_measured_is_not_taken_where_the_files_of_model_or_text_have_changed(tmp_path, monkeypatch, of):
    made, now, study, inside = list[str](), ["", ""], of.Settings.shipped(), import_module(f"{of.__package__}.live")
    monkeypatch.setattr(of.Settings, "once", lambda study, store, of, *told: made.append(of) or of)
    monkeypatch.setattr(models, "find", lambda name: SimpleNamespace(fingerprint=now[0]))
    monkeypatch.setattr(datasets, "items", lambda name, n: [datasets.Item(name, now[1])])
    for now[:] in ("aa", "ab", "bb"):
        inside.run_job(Store(str(tmp_path)), study, inside.jobs(study)[0])
    assert len({*made}) == 3
    # Windows are cut from all of a data set, also of one whose items have answers.
    monkeypatch.setattr(datasets, "items", lambda name, n: [datasets.Item(name, of, "b") for of in ("a", *now)[: n // 999 + 1]])
    for now[:] in ("aa", "ab"):
        inside.run_job(Store(str(tmp_path)), study, inside.jobs(study)[0])
    assert len({*made}) == 5


def test_the_papers_settings_ship():
    shipped = kelle.Settings.shipped().live
    assert len(shipped.seeds) >= 4
    asked = live.jobs(kelle.Settings.shipped())
    drawn = {one.value: one.run.rates for one in asked if one.series == "refresh" and one.setting == "2DRP"}
    assert sorted(drawn) == pytest.approx([540.0, 1053.66, 2062.05], abs=0.01)
    asked_of_table_4 = {one.of["intervals"] for one in PAPER_ORDERINGS if "Table 4" in one.assertion}
    assert set(drawn.values()) == {BitRates.of(Intervals.parse(of)) for of in asked_of_table_4}
    assert drawn[Intervals().harmonic_mean_us] == BitRates.of(Intervals())
    rates = [one.value for one in asked if one.series == "errors" and one.value]
    assert (min(rates), max(rates)) == (1e-4, 1e-2)
    tried = {(one.policy, one.setting) for one in asked if one.series == "budget"}
    assert {"full", "streaming", "h2o", "tova", "snapkv", "random", "aep", "aerp", "kelle"} == {policy for policy, _ in tried}
    assert {("full", "4-bit"), ("streaming", "recent only"), ("aerp", "mean score")} <= tried


def test_every_series_has_its_rows_over_seeds_and_rows_by_seed(place, quality):
    assert set(quality["series"]) == {"budget", "recall", "refresh", "errors"}
    assert (set(quality["metric"]), set(quality["n_seeds"])) == (set(UNITS), {2})
    assert (quality["value"] + 1e-9).is_between(quality["low"], quality["high"] + 2e-9).all()
    by_seed = {(row["policy"], row["parameters"], row["dataset"]) for row in read_rows(place, "quality")}
    assert {tuple(row) for row in quality.select("policy", "parameters", "dataset").iter_rows()} == by_seed


def test_a_series_is_held_against_its_first_setting(quality):
    for name, setting in (("budget", ""), ("refresh", "no losses"), ("errors", "none")):
        ratios = series(quality, name, "perplexity_ratio")
        first = ratios.filter((pl.col("setting") == setting) & pl.col("policy").is_in(["full", "kelle", "aep"]))
        assert 1.0 in first["value"].to_list()
        assert ratios["value"].n_unique() > 1
    assert series(quality, "recall", "perplexity").is_empty()
    full = series(quality, "recall", "accuracy").filter(pl.col("policy") == "full")
    assert full["value"].max() == 1.0


def test_recomputation_and_groups_of_bits_change_what_they_should(quality):
    plain = quality.filter((pl.col("budget_tokens") == 16) & (pl.col("setting") == ""))
    perplexity, held = (dict(series(plain, "budget", of).select("policy", "value").rows()) for of in ("perplexity", "kv_bytes"))
    assert perplexity["aep"] == pytest.approx(perplexity["aerp"], rel=1e-5)
    assert held["aerp"] < held["aep"]
    lost = dict(series(quality, "errors", "kl").select("setting", "value").iter_rows())
    assert set(lost) == {"none", "all bits", "HST", "LST", "MSB", "LSB"}
    assert lost["MSB"] > lost["LSB"]
    assert lost["all bits"] > lost["LSB"]


def test_refresh_has_both_forms_of_every_set_and_half_precision_is_destroyed(quality):
    rows = series(quality, "refresh", "perplexity_ratio")
    fixed = rows.filter((pl.col("storage") == "int16") & pl.col("setting_value").is_not_null())
    assert sorted(fixed.select("setting", "setting_value").unique().iter_rows()) == [
        (form, pytest.approx(mean_us, abs=0.01)) for form in ("2DRP", "uniform") for mean_us in (540.0, 1053.66)
    ]
    assert rows.filter(pl.col("storage") == "fp16")["value"].min() > fixed["value"].max()


def test_orderings_say_who_asked_and_what_sees_no_scores_agrees_with_the_tape(place):
    rows = read_rows(place, "orderings")
    assert {row["study"] for row in rows} == {"kelle"}
    assert {row["dataset"] for row in rows} == {"code", "docs"}
    assert {row["assertion"] for row in rows if row["dataset"] == "docs"} == {o.assertion for o in WORD_ORDERINGS}
    layers = frame(place, "kv_divergence")
    assert set(layers["seed"]) == {0, 1}
    assert layers.filter(pl.col("layer") == 0)["identical_frac"].min() == 1.0
    kept = dict(frame(place, "kv_replays").group_by("policy").agg(pl.col("kept_mass_frac").max()).iter_rows())
    assert set(kept) == {"aep", "aerp", "oracle"}
    assert max(kept, key=kept.__getitem__) == "oracle"
    assert read_rows(place, "kv_timeline")


def test_energy_is_that_of_the_closed_forms(pareto):
    """Oracle: a full cache stores what the closed form counts, so its energy is a plain decode step's."""
    made = setup(SMALL)
    geometry = from_config(models.find("embedded").config.to_dict())
    asked = [(made.systems[BASELINE], Work(16, 4, 16))]
    (step,) = decode_steps(geometry, asked, made.shares.once, profiles.load("kelle"), PHYSICAL)
    full = pareto.filter((pl.col("policy") == "full") & (pl.col("storage") == "plain") & (pl.col("hardware") == "kelle-sram"))
    assert full["decode_energy_j_per_token"].item() == pytest.approx(step.energy_j / 16, rel=5e-3)
    total = pareto.select(pl.sum_horizontal(PARTS) / pl.col("batch") / pl.col("decode_energy_j_per_token") - 1).to_series()
    assert total.abs().max() < 1e-12


def test_only_what_loses_nothing_runs_on_sram_and_rare_refresh_is_cheap(pareto):
    sram = pareto.filter(pl.col("hardware") == "kelle-sram")
    assert set(sram["storage"]) == {"plain", "quarot"}
    assert sram["interval_s"].null_count() == sram.height
    edram = pareto.filter(pl.col("hardware") == "kelle-edram")
    assert edram.filter(pl.col("storage") != "int16")["interval_s"].unique().to_list() == pytest.approx([1e-6 * FIRST_US])
    assert edram.filter(pl.col("storage") == "int16")["interval_s"].min() > 5e-4
    at = edram.filter((pl.col("budget_tokens") == 16) & (pl.col("setting") == "") & pl.col("policy").is_in(["aerp", "kelle"]))
    joules = dict(at.select("policy", "refresh_j").iter_rows())
    assert joules["kelle"] < joules["aerp"]
    assert pareto.filter(pl.col("policy") == "aep")["recomputed_frac"].unique().to_list() == [0.0]
    assert pareto.filter(pl.col("policy") == "aerp")["recomputed_frac"].min() > 0


def test_nothing_beats_the_front_and_popularity_answers_its_claim(pareto, place):
    points = list(pareto.select("decode_energy_j_per_token", "perplexity", "is_front").iter_rows())
    front = [point[:2] for point in points if point[2]]
    assert 0 < len(front) < len(points)
    for energy, perplexity, is_front in points:
        beaten = [e <= energy and p <= perplexity and (e, p) != (energy, perplexity) for e, p in front]
        assert any(beaten) != is_front
    row = next(row for row in read_rows(place, "answers") if "popular_token_persistence" in row["claim_id"])
    assert 0 < row["value"] <= 100
    assert row["mode"] == "paper"
    assert row["how"].startswith("embedded on code")


READ = ("kelle_quality", "kelle_pareto", "orderings", "kv_divergence", "kv_replays", "kv_timeline")


def test_what_is_measured_loads_and_a_second_run_measures_nothing(place, quality, pareto, monkeypatch):
    database = load(place, database_path(place)).database
    rows = {name: query(database, f"select count(*) from {name}").item() for name in READ}
    assert (rows["kelle_quality"], rows["kelle_pareto"]) == (quality.height, pareto.height)
    assert all(rows.values())
    for name in ("evaluate_inside", "measured", "divergence", "record"):
        monkeypatch.setattr(live, name, lambda *told, **more: pytest.fail("measured again"))
    before = read_rows(place, "kelle_points"), read_rows(place, "answers")
    run(place)
    assert frame(place, "kelle_quality").equals(quality)
    assert (read_rows(place, "kelle_points"), read_rows(place, "answers")) == before


def test_perplexities_are_compared_seed_by_seed():
    def rows(*perplexities: float) -> list[dict]:
        of = {"model_id": "m", "dataset": "code", "policy": "full", "parameters": json.dumps({}), "kv_bytes": 1.0}
        of |= {"recompute_ops": 0.0}
        measured = {"kl": None, "acceptance": None, "accuracy": None}
        return [of | measured | {"seed": seed, "perplexity": p} for seed, p in enumerate(perplexities)]

    job = live.Job("quality", "code", 1, 8, 8, "full", series="budget")
    other = live.Job("quality", "code", 1, 8, 8, "full", (("storage", "quarot"),), "budget", "4-bit")
    found = {
        (row["setting"], row["metric"]): (row["low"], row["value"], row["high"])
        for row in quality_rows({job: rows(10.0, 20.0), other: rows(11.0, 20.0)})
    }
    assert found["4-bit", "perplexity_ratio"] == pytest.approx((1.0, 1.05, 1.1))
    assert found["4-bit", "perplexity"] == pytest.approx((11.0, 15.5, 20.0))
    assert ("4-bit", "kl") not in found

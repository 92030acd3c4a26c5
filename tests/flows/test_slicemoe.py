"""The SliceMoE study on small settings: points and answers, resumed and repeated, and the claims beside them."""

import json
from dataclasses import replace

import polars as pl
import pytest
from command import Cli
from refusing import refuses

from tokentape.capture import orderings
from tokentape.flows.commands.claims import COLUMNS
from tokentape.flows.fidelity import compare
from tokentape.flows.grid import load_hardware
from tokentape.flows.running import run
from tokentape.flows.systems.slicemoe import live, sweeps
from tokentape.flows.systems.slicemoe import study as slicemoe
from tokentape.flows.systems.slicemoe.settings import Inside, Settings, Sweep
from tokentape.policies.sliced import SlicedCache
from tokentape.replay.slicemoe import token_cost
from tokentape.warehouse import models as geometries
from tokentape.warehouse.load import claims
from tokentape.warehouse.results import read_rows

SHIPPED = slicemoe.Settings.shipped()
FIG_9 = "slicemoe/6.3-fig-9/decode_{}/max/{}/dbsc-over-high-bit-cache-prior-at-matched-accuracy"
FLASH_OVER_DRAM = "slicemoe/1/dram_over_flash_energy_efficiency/more-than"
CACHED_SHARE = "slicemoe/6.1/cached_share_of_high_bit_experts/3.6-gb-cache"
PER_LAYER = "slicemoe/6.1/high_bit_experts_per_layer/1.8-gb-cache-at-least"


def _few(grid: Inside) -> Inside:
    """Of one pair of widths and one target; the first of those whose replay is compared; where no answer asks, two precisions."""
    if grid.series != "policy":
        return grid.model_copy(update={"each": grid.each[:1]})
    if (grid.model_extra or {}).get("router"):
        return grid.model_copy(update={"router.strength": (0.0, 0.5), "each": ({"precision": "high-bit"}, grid.each[-1])})
    fewer = {"pair": "MAT42", "precision": ("high-bit", "dbsc")}
    fewer |= {"each": tuple(one | ({"budget.target_frac": 0.05} if one else {}) for one in grid.each)}
    return grid.model_copy(update=fewer | ({"items": 1} if "items" in (grid.model_extra or {}) else {}))


SWEPT = {
    "pair": "MAT84", "strength": (0.0, 0.15, 0.5),
    "each": (
        {"configuration": ("high-bit", "low-bit", "amat")},
        {"configuration": "dbsc", "tau": (0.35, 0.7), "warmup": ("last_layer", "pcw")},
        {"configuration": "high-bit", "router": "cumsum", "strength": (0.0, 0.7)},
    ),
}  # fmt: skip
LONGER = {"output": 65}
FEW = {
    "equal quality": SWEPT | {"capacity_gb": 3.6}, "captured": SWEPT | {"capacity_frac": 0.375},
    "held": LONGER | {"target_frac": 0.05}, "warm-ups": LONGER,
}  # fmt: skip
SMALL = SHIPPED.model_copy(
    update={
        "seeds": (0, 1), "requests": 1, "prompt": 48, "output": 33, "windows": (10, 32, 64),
        "grid": tuple(grid.model_copy(update=FEW.get(grid.series, {})) for grid in SHIPPED.grid),
        "captured": SHIPPED.captured.model_copy(update={"requests": 1, "prompt": 24, "output": 17}),
        "live": SHIPPED.live.model_copy(
            update={"windows": 1, "prompt": 8, "output": 12, "whole_windows": 1, "schemes": ("amat", "base_asym"),
                    "scheme_pairs": ("MAT42",),
                    "grid": tuple(_few(grid) for grid in SHIPPED.live.grid if (grid.model_extra or {}).get("dataset") != "math")}
        ),
    }
)  # fmt: skip


def test_a_copy_names_its_series_as_it_likes_and_what_it_lacks_is_named(store):
    for gb, share, says in ((0, 0, "capacity_gb or"), (1, 0.5, "capacity_gb or"), (1, 0, "than 10 tokens")):
        grid = (Sweep(series="mine", pair="MAT84", configuration="dbsc", capacity_gb=gb, capacity_frac=share),)
        mine = SMALL.model_copy(update={"grid": grid, "prompt": 2, "output": 4})
        refuses(says, sweeps.of_tape, store, mine, sweeps.Job(SMALL.models[0], 0))


@pytest.fixture(scope="module")
def answers(place, loaded_once):
    """Of the orderings one of each kind is asked: tests/capture asks all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orderings, "ORDERINGS", (orderings.ORDERINGS[0], *orderings.ORDERINGS[8:9], *orderings.ORDERINGS[-1:]))
        shorter = {"prompt_tokens": 24, "decode_tokens": 16}
        patch.setattr(live, "compare", lambda model, texts, run, *of: compare(model, texts, replace(run, **shorter), *of))
        return {row["claim_id"]: row for row in run(SMALL, place, runner="threads", workers=1)}


def test_settings_name_what_is_assumed_and_loops_are_compared_with_the_seeds_of_the_study(monkeypatch):
    shipped = slicemoe.Settings.shipped()
    assert shipped.values("equal quality", "capacity_gb") == [1.8, 2.4, 3.6]
    assert len(shipped.seeds) >= 3
    assert [model.calibrates for model in shipped.models] == [True, False]
    assert Settings.SHIPPED.read_text().count("assumed") >= 3
    monkeypatch.setattr(live, "compare", lambda model, texts, run, seeds, *of: seeds)
    study = SMALL.model_copy(update={"seeds": (3, 5)})
    assert live._fidelity(study, next(job for job in live.jobs(study) if job.what == "fidelity")) == (3, 5)


@pytest.mark.parametrize("what", ["schemes", "orderings"])
def test_what_a_copy_measures_is_of_its_data_set(monkeypatch, what):
    asked = set[str]()
    monkeypatch.setattr(live, "Lab", lambda *told, effort: asked.add(effort.dataset) or orderings.Lab(*told, effort))
    monkeypatch.setattr(live.orderings, "ORDERINGS", orderings.ORDERINGS[:1])
    of = SMALL.live.model_copy(update={"dataset": "docs", "whole_windows": 2})
    study = SMALL.model_copy(update={"seeds": (0,), "live": of})
    rows = live._MEASURES[what](study, next(job for job in live.jobs(study) if job.what == what))
    assert {row["dataset"] for row in rows} == asked == {"docs"}


def test_answers_are_of_known_claims_and_fit_only_what_may_be_fitted(answers):
    roles = {row["claim_id"]: row["role"] for row in claims().to_pylist()}
    assert set(answers) <= set(roles)
    assert {roles[claim_id] for claim_id in answers} == {"derived", "calibrate", "predict", "report"}
    qwen = [row for claim_id, row in answers.items() if "qwen" in claim_id and "fig-9" in claim_id]
    assert len(qwen) == 2
    assert {row["location"] for row in claims().to_pylist() if row["value"] is None and row["claim_id"] in answers} == {"project"}
    assert all("predicted with the other model's tau" in row["how"] for row in qwen)


def test_operating_points_are_those_of_the_papers_pairs_and_of_our_own(place, answers):
    """Spec section 5: the misses of the published pairs, from no to 15 % of the accesses reading the LSB slice."""
    rows = pl.DataFrame(read_rows(place, "operating_points"))
    assert rows["lsb_frac"].unique().sort().to_list() == [0.0, 0.05, 0.1, 0.15]
    assert rows.group_by("claim", "model_id", "origin").len()["len"].to_list() == [4] * 8
    paper = {
        (model, "PCW" in claim): [round(float(value), 2) for value in (base.min(), base.max(), ours.min(), ours.max())]
        for (model, claim), of in rows.filter(pl.col("origin") == "paper").group_by("model_id", "claim")
        for base, ours in [(of["baseline_miss_frac"], of["ours_miss_frac"])]
    }
    assert paper == {
        ("deepseek-v2-lite", False): [0.17, 0.22, 0.06, 0.08],
        ("qwen1.5-moe-a2.7b", False): [0.15, 0.17, 0.03, 0.04],
        ("deepseek-v2-lite", True): [0.64, 0.68, 0.27, 0.28],
        ("qwen1.5-moe-a2.7b", True): [1.12, 1.15, 0.46, 0.48],
    }


def test_our_own_operating_points_give_our_gains_back(place, answers):
    """Oracle: the cost of a token at the implied misses, forwards."""
    machine = load_hardware(SMALL.hardware)
    rows = [row for row in read_rows(place, "operating_points") if row["origin"] == "replay"]
    for row in rows:
        geometry = geometries.load(row["model_id"]).geometry
        shares = (row["lsb_frac"] if "PCW" in row["claim"] else 1.0, row["lsb_frac"])
        misses = (row["baseline_miss_frac"], row["ours_miss_frac"])
        base, ours = (token_cost(geometry, machine, SlicedCache(), *pair) for pair in zip(shares, misses, strict=True))
        assert base.joules.value[0] / ours.joules.value[0] == pytest.approx(row["energy_gain"], rel=1e-6)
        assert base.seconds.value[0] / ours.seconds.value[0] == pytest.approx(row["speed_gain"], rel=1e-6)
    energy = answers[FIG_9.format("energy_gain", "qwen1.5-moe-a2.7b")]["value"]
    assert energy in [row["energy_gain"] for row in rows]


def test_a_second_run_reads_what_the_first_made(place, answers, monkeypatch):
    points = read_rows(place, "slicemoe_points")
    assert {row["configuration"] for row in points} == {"high-bit", "low-bit", "amat", "dbsc"}
    for name in ("point_of", "evaluate_inside", "measured", "compare"):
        monkeypatch.setattr(live if hasattr(live, name) else sweeps, name, lambda *told: pytest.fail("measured again"))
    told = []
    assert {row["claim_id"]: row for row in run(SMALL, place, show=lambda *now: told.append(now), runner="threads")} == answers
    assert told[-1][0] == told[-1][1] == len(told) - 1


def test_points_are_ordered_as_precision_says_and_gains_have_bands_over_seeds(place, answers):
    """Without rerouting whole experts keep all of the gate mass and miss most, MSB slices alone the other way round."""
    points = pl.DataFrame(read_rows(place, "slicemoe_points"), infer_schema_length=None)
    plain = points.filter(
        (pl.col("strength") == 0.0) & (pl.col("budget") == "none") & (pl.col("capacity_bytes") == 3_600_000_000)
    )
    by = {
        name: plain.filter((pl.col("configuration") == name) & (pl.col("warmup") == "last_layer"))
        for name in ("high-bit", "dbsc", "low-bit")
    }
    error, missed = ([by[name][column].mean() for name in by] for column in ("strayed_frac", "high_bit_miss_frac"))
    assert error[0] == pytest.approx(0.0)
    assert error == sorted(error)
    assert missed == sorted(missed, reverse=True)
    for claim_id, row in answers.items():
        if "fig-9" in claim_id or "fig-10" in claim_id:
            assert 1.0 < row["low"] <= row["value"] <= row["high"], claim_id
    anchors = {claim_id: row["value"] for claim_id, row in answers.items() if "secondary" in claim_id}
    assert len(anchors) == 4
    for model in ("deepseek-v2-lite", "qwen1.5-moe-a2.7b"):
        lru, prior = (next(v for k, v in anchors.items() if model in k and policy in k) for policy in ("lru", "cache-prior"))
        assert prior < 0.7 * lru
    assert answers[FLASH_OVER_DRAM]["value"] == pytest.approx(103 / 1.5)
    assert answers[PER_LAYER]["value"] > 1


@pytest.mark.parametrize(
    ("energies", "strayed", "gain"),
    [((2.0, 1.0), (0.05, 0.1), 3.0), ((1.0, 1.0), (0.05, 0.1), 3.5), ((2.0, 0.1), (0.05, 0.3), 1.75)],
)
def test_points_are_held_against_a_high_bit_cache_that_strays_as_far(energies, strayed, gain):
    """High-bit takes 4 J where it strays by nothing and 2 J by .2: between two strengths; a point beyond it is left out."""
    sweeps = {"high-bit": ((4.0, 2.0), (0.0, 0.2)), "dbsc": (energies, strayed)}
    points = [
        {"model_id": "deepseek-v2-lite", "seed": 0, "capacity_bytes": 3_600_000_000, "pair": "MAT84", "budget": "none",
         "router": "cache_prior", "warmup": "last_layer", "configuration": name, "tau": None if name == "high-bit" else 0.5,
         "target_frac": None, "strength": float(i), "strayed_frac": far, "early_energy_j_per_token": 1.0, "early_step_s": 1.0,
         "decode_energy_j_per_token": energy, "decode_step_s": energy}
        for name, sweep in sweeps.items() for i, (energy, far) in enumerate(zip(*sweep, strict=True))
    ]  # fmt: skip
    assert [row["gain"] for row in slicemoe.asked_of(SHIPPED, points)["gains"] if row["is_best"]] == pytest.approx([gain, gain])


def test_claims_are_listed_with_their_errors(tokentape: Cli, tmp_path, place, answers):
    done = tokentape("claims", "slicemoe", "--json", "--store", place.root)
    rows, summary = json.loads(done.out).values()
    assert all(tuple(row) == COLUMNS for row in rows)
    assert len(rows) == sum(row["paper"] == "slicemoe" for row in claims().to_pylist())
    energy = next(row for row in rows if row["claim_id"] == FIG_9.format("energy_gain", "deepseek-v2-lite"))
    assert energy["rel_err"] == pytest.approx(energy["replay"] / energy["paper"] - 1)
    assert (energy["role"], energy["mode"]) == ("calibrate", "paper")
    assert {row["claim_id"] for row in rows if row["replay"] is not None and not row["is_counted"]} == {
        FLASH_OVER_DRAM, CACHED_SHARE, PER_LAYER,
    }  # fmt: skip
    told = tokentape("claims", "slicemoe", "--store", place.root).out
    assert "holds" not in told.partition("errors by role and mode")[0], "every bound of this paper follows from sizes"
    fitted = next(row for row in summary if (row["role"], row["mode"]) == ("calibrate", "paper"))
    errors = [abs(row["error"]) for row in rows if row["role"] == "calibrate"]
    assert fitted["n_values"] == len(errors) == 4
    assert fitted["mean_error"] == pytest.approx(sum(errors) / 4)

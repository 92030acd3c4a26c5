"""The Layered Prefill study on small settings: points and answers, resumed and repeated; and all of it, against its bars."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import Cli
from readme_errors import AGAIN, stands
from refusing import refuses
from tiny_tape import write_tiny

from bench.docs import errors as error_table
from tokentape.flows.running import run
from tokentape.flows.serving.setup import Point
from tokentape.flows.systems.layered_prefill import points
from tokentape.flows.systems.layered_prefill import study as layered
from tokentape.flows.systems.layered_prefill.study import ARRIVALS, Settings, jobs
from tokentape.replay.serving.facts import PAPER
from tokentape.warehouse.load import claims
from tokentape.warehouse.models import config_path
from tokentape.warehouse.results import read_rows
from tokentape.warehouse.tables import VIEWS
from tokentape.warehouse.tape import Store

SHIPPED = Settings.shipped()
STATED = {row["claim_id"]: row for row in claims().to_pylist() if row["paper"] == PAPER}
OURS = [name for name in VIEWS if name.startswith("serving_")] + ["coverage_points", "answers"]


# Two seeds; one sweep of three rates; the tables that compare.
FEWER = {series: {"n_requests": 150} for series in ("table-2", "table-6", "table-10")} | {"one prompt": {}, "table-7": {}}
FEWER |= {"slo qwen arxiv": {"n_requests": 150, "rate_per_s": (1.3, 1.5, 2.0)}, "dense": {"n_requests": 150, "rate_per_s": 1.0}}
TRACE, GONE = SHIPPED.traces[:2]
SMALL = SHIPPED.model_copy(
    update={
        **dict.fromkeys(("n_seeds", "n_claim_seeds"), 2),
        "grid": tuple(of.model_copy(update=FEWER[of.series]) for of in SHIPPED.grid if of.series in FEWER),
        "window": SHIPPED.window.model_copy(update={"start_s": 30.0}),
        "traces": (
            TRACE.model_copy(update={"file": "few.csv", "rate_per_s": 2.0, "windows": 2}),
            GONE.model_copy(update={"file": "gone.jsonl"}),
        ),
    }
)


@pytest.fixture(scope="module")
def arrivals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrivals")
    lines = [f"2023-11-16 18:17:{i // 2:02d}.{5 * (i % 2)}000000,{500 + 37 * i},{10 + i}" for i in range(20)]
    (folder / "few.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    return folder


@pytest.fixture(scope="module")
def said():
    return []


@pytest.fixture(scope="module")
def answers(place, arrivals, said):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ARRIVALS, str(arrivals))
        made = run(SMALL, place, runner="threads", say=said.append)
    return {(row["claim_id"], row["mode"]): row for row in made}


@pytest.fixture(scope="module")
def served(place, answers):
    return pl.DataFrame(read_rows(place, "serving_points"), infer_schema_length=None)


def test_answers_are_of_known_claims_and_more_than_those_fitted_on(answers):
    ids = {claim_id for claim_id, _ in answers}
    assert ids <= set(STATED)
    assert {STATED[claim_id]["role"] for claim_id in ids} == {"input", "derived", "calibrate", "predict", "report"}
    for row in answers.values():
        assert np.isfinite(row["value"])
        assert row["low"] is None or row["low"] <= row["high"]


def test_microbenchmarks_lie_within_their_bars_and_table_7_counts_a_third(answers):
    """Spec section 7, MUST: one prompt of 8192 tokens; deterministic."""
    ms = {
        n: answers[f"{PAPER}/sec-3.2/prefill_time/qwen3-30b-a3b/prompt-8192-chunk-{n}", "paper"]["value"]
        for n in (512, 4096, 8192)
    }
    assert 500 <= ms[512] <= 560
    assert all(175 <= ms[n] <= 235 for n in (4096, 8192))
    for prompt in (8192, 32768):
        claim = f"{PAPER}/sec-5.11/moe_runtime_share/qwen3-30b-a3b/prompt-{prompt}-chunk-512"
        assert answers[claim, "paper"]["value"] == pytest.approx(STATED[claim]["value"], abs=2.5)
    loaded = answers[f"{PAPER}/sec-3.2/expert_load/qwen3-30b-a3b/prompt-8192-chunk-8192", "paper"]
    assert loaded["value"] < 100
    claim = f"{PAPER}/table-7/expert_load_total_100req/qwen3-30b-a3b/arxiv-chunked"
    assert answers[claim, "physical"]["value"] == pytest.approx(3 * answers[claim, "paper"]["value"])
    reduced = f"{PAPER}/table-7/expert_load_reduction/qwen3-30b-a3b/{{}}-layered-vs-chunked"
    shares = {name: answers[reduced.format(name), "paper"]["value"] for name in ("arxiv", "sharegpt")}
    assert shares["arxiv"] > shares["sharegpt"] > 0


def test_every_point_says_how_far_it_is_from_saturation_and_dense_models_lose(served):
    loaded = served.filter(~pl.col("arrival").is_in(["at once"]) & (pl.col("scheduler") != "disaggregated"))
    distances = loaded.filter(pl.col("metric") == "saturation_distance_frac")
    assert distances["point_id"].n_unique() == loaded["point_id"].n_unique()
    is_chunked = pl.col("policy_params").str.contains("512")
    by_rate = distances.filter((pl.col("series") == "slo qwen arxiv") & is_chunked).sort("rate_per_s")
    assert np.all(np.diff(by_rate["value"]) < 0)
    crowded = served.filter((pl.col("rate_per_s") == 2.0) & is_chunked)
    assert crowded["outside_envelope"].str.contains("queue grows without bound").any()
    # Spec section 10, negative: mean TTFT and mean TBT under load.
    dense = served.filter(pl.col("series") == "dense")
    for metric in ("ttft_mean_s", "tbt_mean_s"):
        of = dict(dense.filter(pl.col("metric") == metric).select("scheduler", "value").iter_rows())
        assert of["layered"] > of["chunked"], metric


def test_attainment_rises_as_limits_are_relaxed(place, answers, served):
    rows = pl.DataFrame(read_rows(place, "serving_attainment"))
    sizes = (len(SMALL.ttft_factors), len(SMALL.tbt_factors))
    for _, of in rows.group_by("point_id"):
        grid = of.sort("ttft_limit_s", "tbt_limit_s")["attained_frac"].to_numpy().reshape(sizes)
        assert np.all(np.diff(grid, axis=0) >= 0)
        assert np.all(np.diff(grid, axis=1) >= 0)
    at_level = rows.filter((pl.col("ttft_limit_s") == 10.0) & (pl.col("tbt_limit_s") == 0.125))
    shares = served.filter(pl.col("metric") == "slo_frac").select("point_id", "value")
    both = at_level.join(shares, on="point_id")
    assert len(both) == rows["point_id"].n_unique()
    assert both["attained_frac"].to_list() == pytest.approx(both["value"].to_list())


def test_the_drawn_windows_are_of_equal_arrivals(place, answers, served):
    schedulers = dict(served.select("point_id", "scheduler").iter_rows())
    begin, end = SMALL.window.start_s, SMALL.window.start_s + SMALL.window.seconds
    iterations = pl.DataFrame(read_rows(place, "serving_iterations"))
    spans = pl.DataFrame(read_rows(place, "serving_spans"), infer_schema_length=None)
    tokens = pl.DataFrame(read_rows(place, "serving_tokens"))
    by = {schedulers[key]: of.sort("iteration") for (key,), of in iterations.group_by("point_id")}
    assert set(by) == {"chunked", "layered"}
    assert by["chunked"]["n_groups"].max() == 1
    assert by["layered"]["n_groups"].max() == 16
    assert (by["layered"]["layer_group"] < by["layered"]["n_groups"]).all()
    for of in by.values():
        ends = (of["start_s"] + of["seconds"]).to_numpy()
        assert (ends[:-1] <= of["start_s"].to_numpy()[1:] + 1e-9).all()
        assert of["start_s"][0] <= begin < ends[0]
        assert of["start_s"][-1] < end <= ends[-1]
    for _, of in spans.group_by("point_id"):
        assert begin <= of["start_s"].min() < (of["start_s"] + of["seconds"]).max() <= end + 1e-9
    prefill = spans.filter((pl.col("state") == "prefill") & pl.col("layer_group").is_not_null())
    assert {schedulers[key] for key in prefill["point_id"].unique()} == {"layered"}
    assert set(spans["state"]) <= {"queued", "prefill", "decode"}
    assert tokens["request_id"].n_unique() == 1
    for (_,), of in tokens.group_by("point_id"):
        times = of.sort("place")["time_s"]
        assert (times.diff().drop_nulls() > 0).all()


def test_coverage_of_forms_and_their_errors(place, answers):
    rows = pl.DataFrame(read_rows(place, "coverage_points"), infer_schema_length=None)
    paper = rows.filter((pl.col("source") == PAPER) & (pl.col("tokens_of") == "decode"))
    at = {
        (form, n): (share, error)
        for form, n, share, error in paper.select("form", "n_tokens", "coverage_frac", "recorded_err_frac").iter_rows()
    }
    assert at["paper_table", 32][0] == pytest.approx(
        STATED[f"{PAPER}/table-1/expert_coverage/qwen3-30b-a3b/sharegpt-decode-batch-32"]["value"] / 100
    )
    assert at["independent", 8] == pytest.approx((0.403, 0.39), abs=0.01)
    assert at["paper_table", 8][1] == 0.0


def test_arrivals_of_files_are_served_and_absent_ones_named(answers, served, said):
    azure = served.filter(pl.col("series") == "azure")
    assert set(azure["scheduler"]) == {"chunked", "layered"}
    assert set(azure["arrival"]) == {"trace"}
    assert "mooncake" in said[0]
    assert said[1:] == ["coverage by decode tokens of layered_prefill, mean error: independent 20.1 %"]
    assert ARRIVALS in said[0]


@pytest.mark.slow
def test_a_second_run_reads_what_the_first_made(place, answers, arrivals, monkeypatch):
    monkeypatch.setenv(ARRIVALS, str(arrivals))
    before = {name: read_rows(place, name) for name in OURS}
    monkeypatch.setattr(points, "measure", lambda *told: pytest.fail("measured again"))
    again = run(SMALL, place, runner="threads")
    assert {(row["claim_id"], row["mode"]): row for row in again} == answers
    assert {name: read_rows(place, name) for name in OURS} == before


def test_equal_points_give_equal_bytes(tmp_path):
    job = next(job for job in jobs(SMALL) if job.group.window)
    made = []
    for name in ("a", "b"):
        store = Store(str(tmp_path / name))
        points.of_job(store, SMALL, job)
        made.append({path.relative_to(store.root): path.read_bytes() for path in Path(store.root).rglob("*.parquet")})
    assert len(made[0]) == 5
    assert made[0] == made[1]


def test_a_point_is_made_again_where_a_file_or_tape_that_it_names_is_another(tmp_path: Path, monkeypatch) -> None:
    store, made = Store(str(tmp_path / "tape")), list[str]()
    monkeypatch.setattr(type(SMALL), "once", lambda study, store, of, *told: made.append(of))
    config, log, fits = (tmp_path / name for name in ("config.json", "log.csv", "fits"))
    fits.mkdir()
    given = {"model": str(config), "workload": str(log), "fits": str(fits), "coverage": "tiny"}
    job = replace(jobs(SMALL)[0], point=Point(scheduler="chunked", **given))
    model = json.loads(config_path("qwen3-30b-a3b").read_text())["config"]
    a, b = {"num_hidden_layers": 4}, {"num_hidden_layers": 4, "quantization_config": "fp8"}
    cases = [({}, "", "", 1), (a, "", "", 1), (b, "", "", 1), (b, "2", "", 1), (b, "2", "", 2), (b, "2", "3", 2)]
    for told, text, fit, tape in cases:
        config.write_text(json.dumps(model | told))
        log.write_text(text)
        (fits / "a.toml").write_text(fit)
        write_tiny(store, f"tiny-{tape}")
        points.of_job(store, SMALL, job)
        store.remove(f"tiny-{tape}")
    assert len({*made}) == len(cases)


def test_claims_are_listed_by_the_name_of_the_study(tokentape: Cli, place, answers):
    done = tokentape("claims", "layered_prefill", "--json", "--store", place.root)
    assert {row["claim_id"] for row in json.loads(done.out)["claims"]} == set(STATED)
    assert "run `tokentape study layered_prefill` first" in tokentape("claims", "layered_prefill", "--store", "empty").err


def test_knees_are_read_between_the_swept_rates(place):
    """By the median and by both ends; a lead's ends are each one's low over the other's high."""
    sweep = [job for job in jobs(SHIPPED) if job.group.series == "slo qwen sharegpt"]
    first, last = min(job.point.rate_per_s for job in sweep), max(job.point.rate_per_s for job in sweep)

    def share(job):
        within = 1.0 if job.point.scheduler == "layered" else (last - job.point.rate_per_s) / (last - first)
        return [{"metric": "slo_frac", "value": within, "low": within - 0.1, "high": within + 0.2}]

    found = {row["claim_id"]: row for row in layered.answers(place, SHIPPED, {job: share(job) for job in sweep})}
    of = [found[f"{PAPER}/sec-5.2/{claim}"] for claim in ("slo_drop_rate/qwen3-30b-a3b/sharegpt-chunked",
                                                          "slo_clear_advantage_rate/qwen3-30b-a3b/sharegpt-layered")]  # fmt: skip
    rates = [[first + part * (last - first) for part in parts] for parts in ((0.1, 0.0, 0.3), (0.5, 0.2, 0.8))]
    assert [[row[end] for end in ("value", "low", "high")] for row in of] == [pytest.approx(each) for each in rates]


def test_patterns_fields_and_folders_that_are_not_there_are_named(place, answers, store, tmp_path, monkeypatch):
    group = SMALL.grid[0].model_copy(update={"claims": ("table-99/*",)})
    job = jobs(SMALL.model_copy(update={"grid": (group,)}))[0]
    refuses(r"series one prompt: no claim is named layered_prefill/table-99", layered.answers, place, SMALL, {job: []})
    unknown = SMALL.model_copy(update={"grid": (group.model_copy(update={"claims": ("{foo}",)}),)})
    refuses(r"series one prompt: claims .*: 'foo'; fields are model,", jobs, unknown)
    with pytest.raises(ValueError, match="extra"):
        Point(scheduler="chunked", speed=3)  # type: ignore[call-arg]
    monkeypatch.setenv(ARRIVALS, str(tmp_path / "none"))
    refuses(r"TOKENTAPE_ARRIVALS=.*none: no such folder of recorded arrivals", layered.recorded, store, SMALL)
    monkeypatch.delenv(ARRIVALS)
    found, missing = layered.recorded(store, SMALL)
    assert (found, len(missing)) == ([], len(SMALL.traces))


# Claims by what is between their number's name and the rest, and bars as a share; None: the paper's value lies within the band.
BARS: dict[str, dict[str, float | None]] = json.loads((Path(__file__).parent / "layered_bars.json").read_text())


# Bars that are missed, with the error in % (of `inside`: the share in the band). Most rows are the client's one draw of arrivals:
# its gaps bunch at 1.3 and 1.4/s and are 4.5 % too long at 2.7; three are what the fit makes of keys and values read as fast as
# measured (docs/layered_prefill.md takes them apart); means follow.
MISSED: dict[str, int] = json.loads((Path(__file__).parent / "layered_missed.json").read_text())


def row_by_row(rows):
    """Each published number with a bar, and what the paper concludes from pairs of them. The errors of missed bars, in %."""
    missed = {}
    for pattern, bars in BARS.items():
        for metric, bar in bars.items():
            name = pattern.format(metric)
            row, paper = rows[f"{PAPER}/{name}"], STATED[f"{PAPER}/{name}"]["value"]
            error = row["value"] / paper - 1
            if not (row["low"] <= paper <= row["high"] if bar is None else abs(error) <= bar):
                missed[name] = round(100 * error)

    def ours(claim):
        return rows[f"{PAPER}/{claim}"]["value"]

    of = "{}/qwen3-30b-a3b/arxiv-{}-rate-1.3"
    layered, chunked = (ours(of.format("table-6/ttft_mean", name)) for name in ("layered", "chunked-chunk-512"))
    assert 0.25 <= layered / chunked <= 0.45
    base = ours("table-8/energy_per_token/qwen3-30b-a3b/arxiv-chunked-rate-1.3")
    for rate, saved in ((1.3, 0.09), (1.6, 0.22)):
        same = ours(f"table-8/energy_per_token/qwen3-30b-a3b/arxiv-layered-rate-{rate}")
        assert 1 - same / base == pytest.approx(saved, abs=0.04)
    first, tail = (
        [ours(f"table-11/{name}/qwen3-30b-a3b/arxiv-layered-n-lg-{n}-rate-1.4") for n in (2, 8, 16)]
        for name in ("ttft_mean", "tbt_p99")
    )
    assert first == sorted(first)
    assert tail == sorted(tail, reverse=True)
    for data, bar in (("arxiv", 5.0), ("sharegpt", 6.0)):
        claim = f"table-7/expert_load_reduction/qwen3-30b-a3b/{data}-layered-vs-chunked"
        assert ours(claim) == pytest.approx(STATED[f"{PAPER}/{claim}"]["value"], abs=bar)
    return missed


@pytest.mark.slow
def test_the_whole_study_is_within_its_bars(tmp_path, monkeypatch):
    """Bars over the layered rows that were predicted, and where attainment falls; those of MISSED fail when they hold again."""
    monkeypatch.delenv(ARRIVALS, raising=False)
    store = Store(str(tmp_path / "tape"))
    made = run(SHIPPED, store, runner="threads", workers=1)
    rows = {row["claim_id"]: row for row in made if row["mode"] == "paper"}
    assert set(rows) == set(STATED)
    assert error_table.lines(made) == stands(PAPER), AGAIN
    missed = row_by_row(rows)
    predicted = [c for c in rows if STATED[c]["role"] == "predict" and "layered" in c.partition("/")[2]]
    assert len(predicted) == 58
    as_shares = {c: abs(rows[c]["value"] / STATED[c]["value"] - 1) for c in predicted}
    # A percentage is made of two numbers that are listed themselves: its error is in points, as its bar is.
    in_points = {c: abs(rows[c]["value"] - STATED[c]["value"]) / 100 for c in predicted if STATED[c]["unit"] == "percent"}
    # Rates end with the paper's sweep, so the numbers must do without them too.
    measured = [c for c in predicted if STATED[c]["unit"] not in ("percent", "req/s")]
    over = {"median of all, as shares": (np.median([*as_shares.values()]), 0.05)}
    over |= {"mean of all, as shares": (np.mean([*as_shares.values()]), 0.09)}
    for name, counted in (("all", predicted), ("measured", measured)):
        errors = [(as_shares | in_points)[c] for c in counted]
        over |= {f"median of {name}": (np.median(errors), 0.05), f"mean of {name}": (np.mean(errors), 0.08)}
        outside = np.mean([not rows[c]["low"] <= STATED[c]["value"] <= rows[c]["high"] for c in counted])
        over[f"inside, of {name}"] = (outside, 0.35)
    for name, (error, bar) in over.items():
        if error > bar:
            missed[name] = round(100 * (1 - error if name.startswith("inside") else error))
    drop = "sec-5.2/slo_drop_rate/qwen3-30b-a3b/sharegpt-chunked"
    if not 4.4 <= rows[f"{PAPER}/{drop}"]["value"] <= 4.8:
        missed[drop] = round(100 * (rows[f"{PAPER}/{drop}"]["value"] / STATED[f"{PAPER}/{drop}"]["value"] - 1))
    assert missed == MISSED
    knee = f"{PAPER}/sec-5.2/slo_collapse_rate/qwen3-30b-a3b/arxiv-chunked"
    assert 1.3 < rows[knee]["value"] <= 1.5
    for workload in ("arxiv", "sharegpt"):
        batch = f"{PAPER}/sec-5.2/mean_decode_batch/{workload}-slo-attainment-90-models-both"
        assert rows[batch]["value"] <= STATED[batch]["value"]

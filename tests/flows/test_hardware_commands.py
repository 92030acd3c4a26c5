"""hardware, models, calibrate, validate, step, timeline: what they print and record."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import Cli, Done, files
from tiny_gpu import MY_GPU, gemm_rows, write_config

from tokentape.flows.commands import hardware as commands_hardware
from tokentape.hw import calibrate, fit_files, spec
from tokentape.warehouse import models
from tokentape.warehouse.results import run_ids
from tokentape.warehouse.tape import Store

CONFIGS = models.FOLDER
KEYS = ["check", "device", "framework", "version", "operator", "split", "n", "mape_frac", "median_frac", "p95_frac"]
FORMS = ("uniform", "pigeonhole", "power-law", "reuse", "heaps")
REPLAY = ("replay", "tiny", "--policy", "lru", "--capacity", "50%", "--scope", "global", "--hardware")
STEP = ("step", "gpu", "tiny.json", "--trace", "tiny")  # the shape that tape tiny-0001 routes over


@pytest.fixture(autouse=True)
def folder(store: Store, tokentape: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run: store ./tape, a config.json, a machine and a table of one's own, and no other measured tables."""
    monkeypatch.delenv(commands_hardware.TABLES_VARIABLE, raising=False)
    write_config(tmp_path / "tiny.json")
    (tmp_path / "my-gpu.toml").write_text(MY_GPU)
    gemm_rows().write_parquet(tmp_path / "gemm.parquet")
    return tmp_path


def result_id(folder: Path) -> str:
    """The one replay in the store."""
    (key,) = run_ids(Store(str(folder / "tape")))
    return key


# ---------------------------------------------------------------------------------------------------- machines and models


def test_list_show_and_diff_print_every_machine_model_and_number_with_its_source(tokentape: Cli) -> None:
    machines, geometries = tokentape.ok("hardware", "list").out.split(), tokentape.ok("models", "list").out.split()
    assert set(spec.shipped()) <= set(machines)
    assert set(models.names()) <= set(geometries)
    shown = tokentape.ok("hardware", "show", "h100").out
    assert all(key in shown for key, _ in spec.load("h100").numbers())
    assert re.search(r"tiers\.hbm\.peak_bytes_per_s +3\.35 TB/s +NVIDIA H100 Tensor Core GPU datasheet", shown)
    assert "weights hbm, experts hbm, KV hbm" in shown
    assert "0.396 to 0.8" in shown  # the band of an assumed share
    (table,) = json.loads(tokentape.ok("hardware", "show", "h100", "--json").out)
    assert [0.396, 0.8] in [row["band"] for row in table["rows"]]
    shown = tokentape.ok("hardware", "diff", "a100", "h100").out
    assert re.search(r"tiers\.hbm\.peak_bytes_per_s +2\.039 TB/s +3\.35 TB/s", shown)
    assert "links.nvlink" not in shown  # both have none
    assert "0 differences" in tokentape.ok("hardware", "diff", "a100", "a100").out


def test_new_is_a_copy_that_loads_and_runs(tokentape: Cli, folder: Path) -> None:
    assert tokentape.ok("hardware", "new", "phone-lpddr5x-ufs4", "mine").out == ""
    assert "0 differences" in tokentape.ok("hardware", "diff", "phone-lpddr5x-ufs4", "mine.toml").out
    assert tokentape.ok("hardware", "show", "mine.toml").out.startswith("mine:")
    assert "on mine" in tokentape.ok(*REPLAY, "mine.toml").out
    tokentape.ok("hardware", "new", "h100x2", "two.toml")  # a file with a base of its own
    assert spec.load(str(folder / "two.toml")).n_devices == 2
    (folder / "beside").mkdir()
    (folder / "beside" / "three.toml").write_text('title = "on two.toml"\nbase = "../two.toml"\n')  # of its base's name
    tokentape.ok("hardware", "new", "beside/three.toml", "four")
    assert spec.load(str(folder / "four.toml")).title == "on two.toml"


def test_a_config_counts_as_the_shipped_model(tokentape: Cli, folder: Path) -> None:
    config = json.loads((CONFIGS / "qwen3-30b-a3b.json").read_text())["config"]
    (folder / "config.json").write_text(json.dumps(config))
    own, shipped = tokentape.ok("models", "show", "config.json").out, tokentape.ok("models", "show", "qwen3-30b-a3b").out
    for line in ("parameters: total", "one expert, int8-g32", "KV of 1,024 tokens, bf16"):
        (mine,), (theirs,) = (re.findall(rf"{line} +(\S+)", shown) for shown in (own, shipped))
        assert mine == theirs
    assert "30,532,122,624" in shipped


# ------------------------------------------------------------------------------------------------ calibrate and validate


def test_calibrate_refuses_before_it_fits(tokentape: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokentape.hw.calibrate.calibrate", lambda *given: pytest.fail("fitted"))
    given = ("calibrate", "gpu", "gemm.parquet", "--hardware", "my-gpu.toml", "--out")
    assert "tables of two at least" in tokentape.refused(*given, "never", "--pooled").err
    assert not (folder / "never").exists()
    assert "gemm.parquet: a file" in tokentape.refused(*given, "gemm.parquet").err


def test_calibrate_finds_the_constants_and_validate_says_so(tokentape: Cli, folder: Path) -> None:
    pytest.importorskip("scipy")
    calibrated = tokentape.ok("calibrate", "gpu", "gemm.parquet", "--hardware", "my-gpu.toml")
    assert "30 rows of My GPU, VLLM 0.14.0, bfloat16" in calibrated.err
    (path,) = (folder / "fits").iterdir()
    first = path.read_bytes()
    tokentape.ok("calibrate", "gpu", "gemm.parquet", "--hardware", "my-gpu.toml")
    assert path.read_bytes() == first
    done = tokentape.ok("hardware", "validate", "gemm.parquet", "--hardware", "my-gpu.toml", "--fits", "fits", "--json")
    rows = json.loads(done.out)  # nothing but JSON on stdout
    assert all(list(row) == KEYS for row in rows)
    by_split = {row["split"]: row for row in rows if row["operator"] == "gemm" and row["check"] == "gpu_operator"}
    assert by_split["fitted"]["n"] == 30
    assert by_split["held_out"]["n"] == 6  # every fifth of 30 distinct shapes
    assert by_split["fitted"]["median_frac"] < 0.01
    assert by_split["other_device"]["median_frac"] > 0.05  # constants of a faster GPU lose


def test_rows_that_the_device_cannot_have_reached_are_left_out_counted_and_named(tokentape: Cli, folder: Path) -> None:
    """Three rows timed a hundredth of what the A100's peak allows: the fit is that of the others, and says so three times."""
    pytest.importorskip("scipy")
    tokentape.ok("calibrate", "gpu", "gemm.parquet", "--hardware", "my-gpu.toml", "--out", "honest")
    spoilt = pl.concat([gemm_rows(), gemm_rows().head(3).with_columns(latency=pl.lit(1e-7))])
    spoilt.write_parquet(folder / "spoilt.parquet")
    done = tokentape.ok("calibrate", "gpu", "spoilt.parquet", "--hardware", "my-gpu.toml", "--json")
    assert "gemm: 3 rows left out, above 105 % of the device's peak; the farthest: " in done.err
    told = json.loads(done.out)
    assert sorted(one["row"] for one in told["left_out"]) == [30, 31, 32]
    assert all(one["times_peak"] > 1.05 and one["source"].endswith("spoilt.parquet") for one in told["left_out"])
    assert {row["n"] for row in told["errors"] if row["operator"] == "gemm" and row["split"] == "fitted"} == {30}
    (path,), (honest,) = ((folder / name).iterdir() for name in ("fits", "honest"))
    fit, without = calibrate.load(path)["gemm"], calibrate.load(honest)["gemm"]
    assert fit.constants == without.constants
    assert (fit.n_rows, without.left_out) == (30, ())
    assert [text.partition("spoilt.parquet: ")[2] for text in fit.left_out] == ["rows 30 to 32"]
    again = tokentape.ok("hardware", "validate", "spoilt.parquet", "--hardware", "my-gpu.toml", "--fits", "fits", "--json")
    assert "3 rows left out" in again.err
    assert {row["n"] for row in json.loads(again.out) if row["operator"] == "gemm" and row["split"] == "fitted"} == {30}


def test_impossible_tables_and_constants_off_on_their_own_rows_are_refused(tokentape: Cli, folder: Path) -> None:
    gemm_rows(slower=1e-3).write_parquet(folder / "seconds.parquet")
    done = tokentape.refused("calibrate", "gpu", "seconds.parquet", "--hardware", "my-gpu.toml")
    assert "too few for 6 constants: is `latency` in milliseconds, and my-gpu the machine that was measured?" in done.err
    assert not (folder / "fits").exists()
    pytest.importorskip("scipy")
    command = ("calibrate", "gpu", "chance.parquet", "--hardware", "my-gpu.toml")
    chance = 10.0 ** np.random.default_rng(0).uniform(0, 3, 30)  # times that have nothing to do with the shapes
    gemm_rows().with_columns(latency=pl.col("latency") * chance).write_parquet(folder / "chance.parquet")
    done = tokentape.refused(*command)
    assert re.search(r"constants are \d\d % off on the 30 rows they were fitted on \(at most 50 %\).*--force", done.err)
    assert not (folder / "fits").exists()
    assert "% off on the 30 rows" in tokentape.ok(*command, "--force").err
    assert len(list((folder / "fits").iterdir())) == 1


def test_validate_without_tables_is_the_dram_anchors_and_named_ones_must_exist(
    tokentape: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tokentape.ok("hardware", "validate", "--json")
    assert {row["check"] for row in json.loads(done.out)} == {"dram"}
    assert "GPU operators are not compared" in done.err
    assert "closed form" in tokentape.ok("hardware", "validate").out
    monkeypatch.setenv(commands_hardware.TABLES_VARIABLE, "nowhere")
    refused = tokentape("hardware", "validate")
    assert (refused.code, refused.err) == (2, "tokentape: TOKENTAPE_GPU_TABLES=nowhere: no such folder of measured tables\n")


# -------------------------------------------------------------------------------------------------------------- one step


def seconds_of(done: Done) -> float:
    """The step's seconds as the title prints them."""
    value, unit = re.findall(r": ([\d,.]+) (s|ms|us)(?: \(|$)", done.out.splitlines()[0])[0]
    return float(value.replace(",", "")) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[unit]


@pytest.mark.parametrize(
    ("options", "touched"),
    [
        (("--batch", "1"), "2.0 of 8 (recorded, tape tiny-0001)"),  # a token touches its top-k
        (("--batch", "3", "--coverage", "pigeonhole"), "6.0 of 8"),
        (("--batch", "3", "--coverage", "uniform"), "4.6 of 8"),  # 8 (1 - (1 - 2/8)^3)
        (("--batch", "0", "--prompt", "1"), "2.0 of 8 (recorded"),
        (("--batch", "1", "--prompt", "1"), "3.5 of 8 (recorded"),  # 8 (1 - (1 - 2/8)^2), the two taken as independent
    ],
)
def test_experts_a_step_touches(tokentape: Cli, options: tuple[str, ...], touched: str) -> None:
    done = tokentape.ok(*STEP, *options)
    assert f"experts touched per layer: {touched}" in done.out
    errors = [line for line in done.out.splitlines() if "closed forms against the tape" in line]
    assert len(errors) == (options[1] != "0") + ("--prompt" in options)
    assert all(re.search(rf"{form} \d+\.\d %", line) for line in errors for form in FORMS)


def test_a_closed_form_by_its_parameter_needs_no_tape(tokentape: Cli) -> None:
    done = tokentape.ok("step", "gpu", "qwen3-30b-a3b", "--coverage", "power-law=0.8")
    assert "(power-law=0.8; no tape to check it against)" in done.out
    uniform = tokentape.ok("step", "gpu", "qwen3-30b-a3b")
    assert "(uniform; no tape" in uniform.out
    assert seconds_of(done) < seconds_of(uniform)  # unequal experts: fewer of them
    assert "experts touched" not in tokentape.ok("step", "gpu", "llama-2-7b").out
    assert "layer" in tokentape.ok("step", "gpu", "llama-2-7b", "--profile", "layered_prefill").out  # marks move no bytes
    told = tokentape.ok("step", "gpu", "llama-2-7b", "--profile", "kelle").err
    assert re.findall(r"not counted by the profile: (\w+)", told) == ["kv_write"]


def test_a_model_whose_counts_nobody_checked_is_said_to_be_one(tokentape: Cli, folder: Path) -> None:
    config = json.loads((folder / "tiny.json").read_text())
    (folder / "hybrid.json").write_text(json.dumps(config | {"model_type": "another"}))
    told = "counts of model_type 'another' were not checked"
    for command in (("step", "gpu", "hybrid.json"), ("fit", "hybrid.json", "h100")):
        done = tokentape.ok(*command)
        assert told in done.err
    assert told not in tokentape.ok("step", "gpu", "tiny.json").err


def test_steps_by_other_constants_are_recorded_apart(tokentape: Cli, folder: Path) -> None:
    shipped = fit_files.FITS / "nvidia-h100-80gb-hbm3_vllm-0.19.0_bfloat16.toml"
    for name, text in (("mine", "launch_s = 0.00001"), ("yours", "launch_s = 0.00002")):
        (folder / name).mkdir()
        (folder / name / shipped.name).write_text(re.sub(r"launch_s = \S+", text, shipped.read_text()))
        tokentape.ok("step", "gpu", "llama-3-8b", "--fits", name, "--record")
    steps = tokentape.sql("select sum(seconds) as s from operations where step_id like 'llama-3-8b/%' group by step_id")
    assert len({step["s"] for step in steps}) == 2
    for watts in (1, 2):
        (folder / f"{watts}.toml").write_text(f'base = "h100"\nname = "own"\nsource = "assumed"\nstatic_w = {watts}\n')
        tokentape.ok("step", "gpu", "llama-3-8b", "--hardware", f"{watts}.toml", "--record")
    assert len(tokentape.sql("select distinct step_id from operations where hardware = 'own'")) == 2
    refused = tokentape.refused("step", "gpu", "llama-3-8b", "--fits", "mine", "--profile", "kelle").err
    assert "--fits has no effect with --profile kelle" in refused
    assert "roofline: " in tokentape.ok("step", "gpu", "llama-3-8b", "--profile", "kelle").out
    refused = tokentape.refused("step", "gpu", "llama-3-8b", "--hardware", "mac-unified", "--fits", "mine").err
    assert "mine: mac-unified takes none of these constants" in refused


def test_fitted_operators_where_there_are_some_else_the_roofline(tokentape: Cli) -> None:
    step = ("step", "gpu", "llama-3-8b", "--hardware", "h100")
    fitted, roofline = tokentape.ok(*step), tokentape.ok(*step, "--roofline")
    assert "fitted operators: " in fitted.out
    assert "roofline: " in roofline.out
    assert seconds_of(fitted) > seconds_of(roofline)  # launches, and shares of the peak below the machine's own
    assert "int8-g32, physical, roofline: " in tokentape.ok(*step, "--weights", "int8-g32").out
    assert "roofline: " in tokentape.ok("step", "gpu", "llama-3-8b", "--hardware", "mac-unified").out


def test_record_writes_the_operations_it_printed_once(tokentape: Cli, folder: Path) -> None:
    before = files(folder)
    plain = tokentape.ok(*STEP, "--batch", "2")
    assert files(folder) == before
    recorded = tokentape.ok(*STEP, "--batch", "2", "--record")
    assert recorded.out == plain.out
    (path,) = (folder / "tape" / "busy").iterdir()
    rows, content = pl.read_parquet(path), path.read_bytes()
    assert rows["seconds"].sum() == pytest.approx(seconds_of(plain), rel=1e-3)
    assert (rows["start_s"] + rows["seconds"]).max() == pytest.approx(rows["seconds"].sum())  # one after the other
    tokentape.ok(*STEP, "--batch", "2", "--record")
    assert files(path.parent) == {path.name: content}


# -------------------------------------------------------------------------------------------------------------- timeline


def test_timeline_of_the_slowest_the_median_and_a_numbered_pass(tokentape: Cli, folder: Path) -> None:
    tokentape.ok(*REPLAY, "phone-lpddr5x-ufs4")
    key = result_id(folder)
    passes = pl.read_parquet(folder / "tape" / "steps" / f"replays-{key}.parquet")
    decode = passes.filter(pl.col("kind") == "decode")["step_s"]
    for which in ("slowest", "median", "0"):
        done = tokentape.ok("timeline", key[:6], "--pass", which)
        pass_id = int(re.findall(r"pass (\d+)", done.out)[0])
        cost_s = passes.filter(pl.col("pass_id") == pass_id)["step_s"].item()
        expected_s = {"slowest": decode.max(), "median": decode.sort()[len(decode) // 2], "0": cost_s}[which]
        assert cost_s == expected_s
        assert seconds_of(done) >= 0.999 * cost_s  # layer by layer: that or later, as printed
        assert f"step {key}/{pass_id} recorded" in done.err
    assert "flash" in done.out
    before = files(folder)
    for wrong in ("-1", "slow", "93"):
        assert wrong in tokentape.refused("timeline", key, "--pass", wrong).err
    assert files(folder) == before


def test_timeline_of_a_machine_of_ones_own_needs_its_file(tokentape: Cli, folder: Path) -> None:
    tokentape.ok("hardware", "new", "phone-lpddr5x-ufs4", "mine")
    tokentape.ok(*REPLAY, "mine.toml")
    key = result_id(folder)
    assert tokentape.ok("timeline", key, "--hardware", "mine.toml").out.startswith("lru at 50 % global, pass ")
    shutil.copy("mine.toml", "changed.toml")
    with Path("changed.toml").open("a") as file:
        file.write("# another version\n")
    before = files(folder)
    refused = tokentape.refused("timeline", key, "--hardware", "changed.toml")
    assert "ran on another version of mine; replay it again, or give --hardware its file" in refused.err
    assert files(folder) == before


# ------------------------------------------------------------------------------------------------------------- warehouse


def test_load_gives_machines_numbers_operations_and_validation(tokentape: Cli) -> None:
    tokentape.ok("hardware", "new", "phone-lpddr5x-ufs4", "mine")
    tokentape.ok(*REPLAY, "mine.toml")
    tokentape.ok(*STEP, "--record")
    validated = tokentape.ok("hardware", "validate", "gemm.parquet", "--hardware", "my-gpu.toml", "--record")
    counted = tokentape.sql("select hardware, count(*) as n, count(distinct source) as m from hardware_numbers group by all")
    numbers = {str(row["hardware"]): row["n"] for row in counted}
    assert numbers == {**{name: len(spec.load(name).numbers()) for name in spec.shipped()}, "mine": numbers["phone-lpddr5x-ufs4"]}
    assert all(row["m"] for row in counted)
    assert tokentape.sql("select count(*) as n from machines") == [{"n": len(spec.shipped()) + 1}]
    (step,) = tokentape.sql("select step_id, hardware, count(*) as n, sum(seconds) as s from operations group by all")
    assert step["hardware"] == "h100"
    # per layer projections, attention, writing KV, output, router, experts, kernels between; twice after
    assert step["n"] == 3 * 7 + 2
    assert tokentape.sql("select count(*) as n from validation") == [{"n": int(validated.err.split()[1])}], "all recorded"
    checks = tokentape.sql('select distinct "check" as kind from validation order by kind')
    assert [row["kind"] for row in checks] == ["dram", "gpu_operator", "gpu_operator_regime"]
    points = tokentape.sql("select count(distinct shape) as n from validation_points where operator = 'gemm' and predicted > 0")
    assert points == [{"n": 30}]

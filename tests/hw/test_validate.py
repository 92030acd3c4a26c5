"""Validation rows: one per check, device, operator and split; errors by hand; several other devices counted together."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tokentape.hw import calibrate, measured, validate
from tokentape.hw.calibrate import POOLED
from tokentape.hw.operators import OPERATORS
from tokentape.hw.spec import load

GPU = calibrate.gpu_of(load("a100"))
SETUP = measured.Setup("NVIDIA A100-SXM4-80GB", "VLLM", "0.14.0", "bfloat16")


def fit_of(setup, factor=1.0, machine="h100"):
    """GEMM constants of a made-up calibration of another generation's machine; times are `factor` those of the start values."""
    constants = {p.name: p.start for p in OPERATORS["gemm"].parameters}
    slow = {**constants, "launch_s": constants["launch_s"] * factor}
    return calibrate.Fit("gemm", setup, machine, slow, slow, {"m": (1, 64)}, 10, ("made/up.parquet",))


def table(n=25):
    shapes = {"m": np.arange(1, n + 1), "n": np.full(n, 256), "k": np.full(n, 256)}
    seconds = fit_of(SETUP).seconds(GPU, shapes)
    return measured.Measurements("gemm", SETUP, shapes, seconds / 1.25, ("made/up.parquet",))


def by_split(*told):
    """Errors of the table against made-up constants, operator by operator, and the frame that they are of."""
    found = pl.concat(validate.compare([table()], told))
    of = validate.errors(found)
    return of.filter(pl.col("check") == "gpu_operator").rows_by_key("split", named=True, unique=True), of


def test_errors_by_hand():
    """Predictions a quarter too slow everywhere."""
    rows, every = by_split({"gemm": fit_of(SETUP)})
    assert set(rows) == {"fitted", "held_out"}
    assert (rows["fitted"]["n"], rows["fitted"]["operator"], rows["held_out"]["n"]) == (25, "gemm", 5)
    assert [rows["fitted"][name] for name in ("mape_frac", "median_frac", "p95_frac")] == pytest.approx([0.25] * 3)
    by_regime = every.filter(pl.col("check") == "gpu_operator_regime", pl.col("split") == "fitted")
    assert by_regime["n"].sum() == 25
    assert by_regime["operator"].str.starts_with("gemm: ").all()


def test_several_other_devices_are_one_row():
    others = [{"gemm": fit_of(replace(SETUP, device=name), factor)} for name, factor in (("B", 1.0), ("C", 1.0))]
    rows, _ = by_split(*others)
    assert set(rows) == {"other_device"}
    assert rows["other_device"]["n"] == 50
    assert rows["other_device"]["mape_frac"] == pytest.approx(0.25)


def test_a_device_without_constants_is_held_to_those_that_engines_take_for_it():
    pooled = {"gemm": fit_of(replace(SETUP, device=POOLED), 1.0)}
    rows, _ = by_split(pooled, {"gemm": fit_of(replace(SETUP, device="B"), 1.25)})
    assert set(rows) == {"pooled", "other_device"}
    assert rows["pooled"]["n"] == 25
    assert rows["pooled"]["mape_frac"] == pytest.approx(0.25)
    assert rows["other_device"]["mape_frac"] > 0.3
    assert "pooled" not in by_split(pooled, {"gemm": fit_of(SETUP, 1.0)})[0]
    sibling = {"gemm": fit_of(replace(SETUP, device="A100 of another maker"), 1.0, "a100")}
    assert set(by_split(pooled, sibling)[0]) == {"same_generation", "other_device"}
    of_before = {"gemm": fit_of(replace(SETUP, version="0.1.0"), 1.0)}
    assert set(by_split(pooled, of_before)[0]) == {"other_version"}


def test_no_two_rows_share_a_key_and_points_are_few():
    anchors = validate.dram_anchors()
    rows = validate.errors(anchors)
    assert rows.select(validate.WHERE).is_unique().all()
    assert rows["n"].sum() == validate.points(anchors).height == anchors.height
    found = validate.points(next(validate.compare([table(2000)], [{"gemm": fit_of(SETUP)}])))
    assert found.height <= validate.MAX_POINTS
    assert found["shape"][0] == "m 1, n 256, k 256"
    assert found["predicted"][0] == pytest.approx(1.25 * found["measured"][0])

"""Validation rows: one per check, device, operator and split; errors by hand; several other devices counted together."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest

from tokentape.hw import calibrate, measured, validate
from tokentape.hw.operators import OPERATORS
from tokentape.hw.spec import load

GPU = calibrate.gpu_of(load("a100"))
SETUP = measured.Setup("NVIDIA A100-SXM4-80GB", "VLLM", "0.14.0", "bfloat16")


def fit_of(setup, factor=1.0):
    """GEMM constants of a made-up calibration; times are `factor` those of the start values."""
    constants = {p.name: p.start for p in OPERATORS["gemm"].PARAMETERS}
    slow = {**constants, "launch_s": constants["launch_s"] * factor}
    return calibrate.Fit("gemm", setup, "a100", slow, slow, {"m": (1, 64)}, 10, ("made/up.parquet",))


def table(n=25):
    shapes = {"m": np.arange(1, n + 1), "n": np.full(n, 256), "k": np.full(n, 256)}
    seconds = fit_of(SETUP).seconds(GPU, shapes)
    return measured.Measurements("gemm", SETUP, shapes, seconds / 1.25, ("made/up.parquet",))


def test_errors_by_hand():
    """Predictions a quarter too slow everywhere."""
    comparisons = {c.split: c for c in validate.compare([table()], [{"gemm": fit_of(SETUP)}])}
    assert set(comparisons) == {"fitted", "held_out"}
    row = next(comparisons["fitted"].rows())
    assert (row.n, row.operator, row.check) == (25, "gemm", "gpu_operator")
    assert [row.mape_frac, row.median_frac, row.p95_frac] == pytest.approx([0.25] * 3)
    assert next(comparisons["held_out"].rows()).n == 5
    by_regime = [r for r in comparisons["fitted"].rows() if r.check == "gpu_operator_regime"]
    assert sum(r.n for r in by_regime) == 25
    assert all(r.operator.startswith("gemm: ") for r in by_regime)


def test_several_other_devices_are_one_row():
    others = [{"gemm": fit_of(replace(SETUP, device=name), factor)} for name, factor in (("B", 1.0), ("C", 1.0))]
    (comparison,) = validate.compare([table()], others)
    row = next(comparison.rows())
    assert (row.split, row.n) == ("other_device", 50)
    assert row.mape_frac == pytest.approx(0.25)


def test_no_two_rows_share_a_key_and_points_are_few():
    rows = validate.dram_rows()
    assert len({astuple(row)[:6] for row in rows}) == len(rows)
    assert sum(row.n for row in rows) == len(validate.dram_points())
    (comparison,) = (c for c in validate.compare([table(2000)], [{"gemm": fit_of(SETUP)}]) if c.split == "fitted")
    points = list(comparison.points())
    assert len(points) <= validate.MAX_POINTS
    assert points[0].shape == "m 1, n 256, k 256"
    assert points[0].predicted == pytest.approx(1.25 * points[0].measured)

"""Reading measured tables: columns by name, repeats kept, dtypes apart, every unusable file named; and validation rows, one per
check, device, operator and split.
"""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from refusing import refuses

from tokentape.hw import calibrate, measured, validate
from tokentape.hw.calibrate import POOLED
from tokentape.hw.operators import OPERATORS
from tokentape.hw.spec import load

GEMM = {
    "framework": ["VLLM"] * 4,
    "version": ["0.14.0"] * 4,
    "device": ["Some GPU"] * 4,
    "op_name": ["gemm"] * 4,
    "gemm_dtype": ["bfloat16", "bfloat16", "bfloat16", "fp8"],
    "m": [1, 1, 64, 1],
    "n": [128, 128, 256, 128],
    "k": [512, 512, 512, 512],
    "latency": [0.01, 0.012, 0.02, 0.005],
}
DECODE = {
    "framework": ["VLLM"] * 2,
    "version": ["0.19.0"] * 2,
    "device": ["Some GPU"] * 2,
    "op_name": ["generation_attention"] * 2,
    "attn_dtype": ["bfloat16"] * 2,
    "kv_cache_dtype": ["bfloat16", "fp8"],
    "batch_size": [1, 2],
    "isl": [1, 1],
    "num_heads": [32, 32],
    "num_key_value_heads": [8, 8],
    "head_dim": [128, 128],
    "step": [7, 15],
    "latency": [0.01, 0.02],
}


def written(folder, name="gemm_perf.parquet", **changes):
    path = folder / name
    pl.DataFrame({**GEMM, **changes}).write_parquet(path)
    return path


def test_rows_by_operator_and_setup(tmp_path):
    path = written(tmp_path)
    pl.DataFrame(DECODE).write_parquet(tmp_path / "generation_attention_perf.parquet")
    attention, gemm = measured.read([tmp_path])
    assert (gemm.operator, str(gemm.setup)) == ("gemm", "Some GPU, VLLM 0.14.0, bfloat16")
    assert gemm.seconds.tolist() == [1e-5, 1.2e-5, 2e-5]  # repeats kept, fp8 apart
    assert gemm.shapes["m"].tolist() == [1, 1, 64]
    assert gemm.shape_ids().tolist() == [0, 0, 1]
    assert gemm.sources == (str(path),)
    assert attention.operator == "decode_attention"
    assert attention.shapes["window_size"].tolist() == [0]  # older tables have no windows
    (fp8,) = measured.read([path], "fp8")
    assert fp8.seconds.size == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latency": [0.01, 0.0, 0.02, 0.005]}, "row 1: latency 0.0"),
        ({"latency": [0.01, None, 0.02, 0.005]}, "row 1"),
        ({"latency": [0.01, float("nan"), 0.02, 0.005]}, "row 1"),
        ({"latency": [0.01, float("inf"), 0.02, 0.005]}, "row 1"),
        ({"latency": ["0.01"] * 4}, "column latency holds String, not numbers"),
        ({"m": ["1"] * 4}, "column m holds String, not numbers"),
        ({"k": [True] * 4}, "column k holds Boolean, not numbers"),
        ({"op_name": ["other", "gemm", "gemm", "gemm"], "m": [0, 1, 0, 1]}, "row 2: m 0 is not a size of at least 1"),
        ({"n": [128, 128, 256, None]}, "row 3: n None"),
        ({"n": [128.0, float("nan"), 256.0, 128.0]}, "row 1: n nan"),
        ({"version": ["0.14.0", None, "0.14.0", "0.14.0"]}, "row 1: version is empty"),
        ({"gemm_dtype": ["bfloat16", "bfloat16", None, "fp8"]}, "row 2: dtype is empty"),
    ],
)
def test_unusable_rows_are_named(tmp_path, changes, message):
    path = written(tmp_path, **changes)
    assert str(path) in refuses(message, measured.read, [path])


@pytest.mark.parametrize("kernels", [None, pl.Series(["custom_graph", "nccl"], dtype=pl.Categorical)])
def test_kernels_may_be_of_any_type(tmp_path, kernels):
    shared = {name: DECODE[name] for name in measured.COMMON}
    sizes = {"op_name": ["all_reduce"] * 2, "allreduce_dtype": ["half"] * 2, "num_gpus": [2, 2], "message_size": [64, 64]}
    pl.DataFrame({**shared, **sizes, "kernel_source": kernels}).write_parquet(tmp_path / "a.parquet")
    if kernels is None:
        refuses("no rows of dtype", measured.read, [tmp_path], "half")
    else:
        assert measured.read([tmp_path], "half")[0].seconds.tolist() == [1e-5]


def test_prompts_behind_a_cache_are_no_whole_prompts(tmp_path):
    prompts = {**DECODE, "op_name": ["context_attention"] * 2, "kv_cache_dtype": ["bfloat16"] * 2, "step": [0, 4096]}
    pl.DataFrame(prompts).write_parquet(tmp_path / "p.parquet")
    assert measured.read([tmp_path])[0].seconds.tolist() == [1e-5]


def test_no_window_and_no_step_are_shapes(tmp_path):
    pl.DataFrame({**DECODE, "step": [0, 15], "window_size": [0, 0]}).write_parquet(tmp_path / "d.parquet")
    (attention,) = measured.read([tmp_path])
    assert attention.shapes["step"].tolist() == [0]


def test_shapes_are_told_apart_whatever_the_order():
    rng = np.random.default_rng(0)
    m, n = rng.integers(1, 5, 200), rng.integers(1, 5, 200)
    setup = measured.Setup("d", "f", "v", "bfloat16")
    ids = measured.Measurements("gemm", setup, {"m": m, "n": n}, np.ones(200), ()).shape_ids()
    pairs = list(zip(m.tolist(), n.tolist(), strict=True))
    assert [ids[pairs.index(pair)] for pair in pairs] == ids.tolist()
    assert len(set(ids.tolist())) == len(set(pairs))


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

"""Made-up machines, steps and validation rows in the declared schemas: round numbers whose answers can be told by hand."""

from itertools import product

from made_up import Rows, of_file

HOSTILE = "made by </script><script>hostile()</script>, https://example.org/paper; high: assumed"
PHONE_STEP, PAIR_STEP = "0a1b2c/7", "some-model/gpu-pair/1/1024"
DEVICES = {"NVIDIA A100-SXM4-80GB": ("vllm", "0.14.0"), "NVIDIA H100 80GB HBM3": ("vllm", "0.19.0")}
MEANS = {"gemm": 0.08, "moe": 0.1, "decode_attention": 0.18}
SPLITS = {"fitted": 1.0, "held_out": 1.25, "other_device": 2.0}


def add_gpu_validation(rows: Rows, n_points: int = 40) -> None:
    """Errors grow from operator to operator, from split to split, and by a tenth from the first device to the second."""
    for (n, (device, (framework, version))), (operator, mean), (split, times) in product(
        enumerate(DEVICES.items()), MEANS.items(), SPLITS.items()
    ):
        error = mean * times * (1 + n / 10)
        of = {"device": device, "framework": framework, "version": version, "split": split}
        shares = {"n": 100, "mape_frac": error, "median_frac": error * 0.8, "p95_frac": error * 3}
        rows["validation"].append({"check": "gpu_operator", "operator": operator, **of, **shares})
        for regime, factor in (("launch", 1.5), ("compute", 0.5)):
            scaled = {name: share * factor for name, share in shares.items() if name != "n"}
            rows["validation"].append(
                {"check": "gpu_operator_regime", "operator": f"{operator}: {regime}", "n": 50, **of, **scaled}
            )
        for i in range(n_points):
            measured = 1e-5 * 1.3**i
            rows["validation_points"].append({
                "check": "gpu_operator", "operator": operator, **of, "regime": "launch" if i < n_points / 2 else "compute",
                "shape": f"m {i}", "measured": measured, "predicted": measured * (1 + error * (-1) ** i), "unit": "s",
            })  # fmt: skip


add_hardware, add_dram_validation, add_engine_validation = map(
    of_file("hardware"), ("hardware", "dram_validation", "engine_validation")
)

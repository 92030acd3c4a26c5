"""Made-up machines, steps and validation rows in the declared schemas: round numbers whose answers can be told by hand."""

from itertools import product

# The phone fetches from flash; both devices of the pair share a link; the third machine computes inside its memory.
MACHINES = {
    "phone-lpddr5x-ufs4": ("phone", "npu", "int8", "dram", "flash", 1),
    "gpu-pair": ("two GPUs", "sm", "bf16", "hbm", "", 2),
    "in-memory": ("computes in its memory", "pim", "int8", "ext", "", 1),
}
RATES = {
    "phone-lpddr5x-ufs4": {"engines.npu.ops_per_s.int8": 16e12, "tiers.dram": 60e9, "tiers.flash": 4e9},
    "gpu-pair": {
        "engines.sm.ops_per_s.bf16": 500e12,
        "engines.sm.ops_per_s.fp8": 1000e12,
        "tiers.hbm": 2e12,
        "tiers.l2": 6e12,
        "links.nvlink": 400e9,
    },
    "in-memory": {"engines.pim.ops_per_s.int8": 2e12, "engines.xpu.ops_per_s.int8": 500e12, "tiers.ext": 100e9},
}
ENERGY_PJ = {"dram": 8.0, "flash": 40.0, "hbm": 4.0, "l2": 1.0, "nvlink": 6.0, "ext": 4.0}
HOSTILE = "made by </script><script>hostile()</script>, https://example.org/paper; high: assumed"
PHONE_STEP, PAIR_STEP = "0a1b2c/7", "some-model/gpu-pair/1/1024"
N_LAYERS = 6
DEVICES = {"NVIDIA A100-SXM4-80GB": ("vllm", "0.14.0"), "NVIDIA H100 80GB HBM3": ("vllm", "0.19.0")}
MEANS = {"gemm": 0.08, "moe": 0.1, "decode_attention": 0.18}
SPLITS = {"fitted": 1.0, "held_out": 1.25, "other_device": 2.0}


def add_hardware(rows: dict[str, list[dict]]) -> None:
    for name, (title, engine, dtype, fast, backing, n_devices) in MACHINES.items():
        rows["machines"].append({
            "hardware": name, "hardware_sha256": "0" * 64, "title": title, "engine": engine, "dtype": dtype, "fast_tier": fast,
            "backing_tier": backing, "n_devices": n_devices,
        })  # fmt: skip
        for key, rate in RATES[name].items():
            _part(rows, name, key, rate)
        _number(rows, name, "static_w", 0.5, "W", "assumed: awake")
    _number(rows, "in-memory", "engines.pim.memory_bytes_per_s", 800e9, "B/s", HOSTILE)
    _phone_step(rows)
    _pair_step(rows)


def _part(rows: dict[str, list[dict]], hardware: str, key: str, rate: float) -> None:
    """An engine's rate, or a tier's or link's with its energy; half of every rate is reached."""
    kind, name = key.split(".")[:2]
    if kind == "engines":
        _number(rows, hardware, key, rate, "op/s", "datasheet")
    else:
        _number(rows, hardware, f"{key}.peak_bytes_per_s", rate, "B/s", "datasheet")
        sides = ("energy",) if kind == "links" else ("read", "write")
        for side in sides:
            source = "assumed" if side == "write" else "datasheet"
            _number(rows, hardware, f"{key}.{side}_pj_per_bit", ENERGY_PJ[name], "pJ/bit", source, ENERGY_PJ[name] * 2)
    if not any(
        row["hardware"] == hardware and row["key"] == f"{kind}.{name}.efficiency_frac" for row in rows["hardware_numbers"]
    ):
        _number(rows, hardware, f"{kind}.{name}.efficiency_frac", 0.5, "1", "assumed", 1.0)


def _number(
    rows: dict[str, list[dict]], hardware: str, key: str, value: float, unit: str, source: str, high: float | None = None
) -> None:
    rows["hardware_numbers"].append({
        "hardware": hardware, "key": key, "value": value, "low": value, "high": high or value, "unit": unit, "source": source,
        "is_assumed": "assumed" in source,
    })  # fmt: skip


def _phone_step(rows: dict[str, list[dict]]) -> None:
    """Six layers that each fetch for 3 ms, then read for 1 ms while they compute for 0.1 ms; then the vocabulary."""
    ops: list[tuple] = []
    for layer in range(N_LAYERS):
        start = 4e-3 * layer
        ops.append(("fetch missing experts", "flash", layer, start, 3e-3, 6e6, 0.0))
        ops.append(("attention, router, experts", "dram", layer, start + 3e-3, 1e-3, 30e6, 0.0))
        ops.append(("attention, router, experts", "npu", layer, start + 3e-3, 1e-4, 0.0, 8e8))
    ops.append(("vocabulary", "dram", -1, 24e-3, 1e-3, 30e6, 0.0))
    ops.append(("vocabulary", "npu", -1, 24e-3, 1e-4, 0.0, 8e8))
    _operations(rows, PHONE_STEP, "qwen3 on the phone: decode, token 7", "phone-lpddr5x-ufs4", ops)


def _pair_step(rows: dict[str, list[dict]]) -> None:
    """Operations that follow one another on the engine, bytes and operations in one row; the link beside the last."""
    shares = {"experts": 0.5, "decode attention": 0.3, "QKV projection": 0.1, "output projection": 0.1}
    ops: list[tuple] = []
    for n, (name, share) in enumerate(shares.items()):
        before = sum(list(shares.values())[:n])
        ops.append((name, "sm", 0, before * 1e-3, share * 1e-3, share * 1e-3 * 1e12, share * 2e9))
    ops.append(("all-reduce", "nvlink", 0, 0.9e-3, 0.1e-3, 1e6, 0.0))
    ops.append(("all-reduce", "nvlink", 0, 0.95e-3, 0.05e-3, 1e6, 0.0))  # within the one before: busy once
    _operations(rows, PAIR_STEP, "some model, decode, batch 1", "gpu-pair", ops)


def _operations(rows: dict[str, list[dict]], step_id: str, title: str, hardware: str, ops: list[tuple]) -> None:
    names = ("operation", "resource", "op_layer", "start_s", "seconds", "bytes", "ops")
    for place, values in enumerate(ops):
        named = dict(zip(names, values, strict=True))
        rows["operations"].append({"step_id": step_id, "title": title, "hardware": hardware, "place": place, **named})


def add_dram_validation(rows: dict[str, list[dict]]) -> None:
    for preset, (pattern, measured, error) in product(
        ("ddr5-4800", "hbm3-6400"), (("stream", 0.9, 0.01), ("random 64 B", 0.6, 0.05), ("random 64 B, queue 8", 0.2, 1.5))
    ):
        of = {
            "check": "dram",
            "device": preset,
            "framework": "Ramulator",
            "version": "2.1",
            "operator": pattern,
            "split": "closed_form",
        }
        rows["validation"].append({**of, "n": 1, "mape_frac": error, "median_frac": error, "p95_frac": error})
        rows["validation_points"].append({
            **of, "regime": "not covered" if "queue" in pattern else "covered", "shape": pattern, "measured": measured,
            "predicted": measured * (1 + error), "unit": "1",
        })  # fmt: skip


def add_gpu_validation(rows: dict[str, list[dict]], n_points: int = 40) -> None:
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


def add_engine_validation(rows: dict[str, list[dict]]) -> None:
    """Two stages of three of an engine, each time 10 and 30 % too long, beside a simulator that ran one; and a fitted row."""
    of = {"check": "engine", "device": "made_experiments"}
    for name, mape, n in (("tokentape", 0.2, 2), ("another", 0.5, 1)):
        shares = {"n": n, "mape_frac": mape, "median_frac": mape, "p95_frac": mape}
        told = {"framework": name, "version": f"{n} of 3", "operator": "ttft_s", "split": "closed_form"}
        rows["validation"].append(of | told | shares)
    for stage, (split, error) in enumerate((("closed_form", 0.1), ("closed_form", 0.3), ("fitted", 0.9))):
        told = {"framework": "tokentape", "version": "gpu-pair", "operator": "ttft_s", "split": split, "regime": "mean"}
        point = {"shape": f"a server, stage {stage}", "measured": 0.5, "predicted": 0.5 * (1 + error), "unit": "s"}
        rows["validation_points"].append(of | told | point)
    for start_s, measured in ((0.0, 1.0), (2.0, 3.0)):
        told = {"framework": "tokentape", "version": "gpu-pair", "operator": "ttft_s", "split": "closed_form", "regime": "moment"}
        point = {"shape": "a log", "start_s": start_s, "measured": measured, "predicted": 1.25 * measured, "unit": "s"}
        rows["validation_points"].append(of | told | point)

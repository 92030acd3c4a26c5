"""Machine code of generated sources: Python's own answers, in loops and branches, and numpy's for formulas of arrays."""

from pathlib import Path

import numba
import numpy as np
import pytest
from refusing import refuses

from tokentape.hw.calibrate import gpu_of
from tokentape.hw.codegen import timed
from tokentape.hw.operators import OPERATORS, Gpu
from tokentape.hw.spec import load
from tokentape.policies import machine_code as code
from tokentape.policies.kernels import array, float64, int64, kernel
from tokentape.policies.machine_code import machine_code

EVERYTHING = """
def cost(t):
    n = t.shape[0] - 1
    total = other = 0.0
    for i in range(n):
        a, b = t[i, 0], t[i, 1]
        if a == 0.0 or b > 9.0:
            continue
        if a < b and b != 3.0:
            total += a * b ** 2.0 - b / 2
        else:
            other = max(other, a, SCALE) + (1.0 / a if a > 1.0 else min(b, -2.0))
        for j in range(2):
            h = 2 + (int(3.0 * b) & 1)
            t[i, h] += j + np.ceil(a) * np.log2(1.0 + b) - np.sqrt(b)
            if j:
                continue
            other += formula(a, b) + entry(t, i, 1.5)
    t[n, 0], t[n, 1] = total, other
"""


def formula(a, b):
    return np.where((a > 1.0) & ~(b >= 4.0), a, np.floor(b)) + np.minimum(2.0, np.maximum(a, b)) * (a <= 2.0)


@kernel(float64(array(float64, 2), int64, float64))
def entry(t, i, factor):
    return factor * t[i, 0]


@pytest.mark.parametrize("seed", range(20))
def test_code_does_what_python_does(seed: int) -> None:
    table = np.random.default_rng(seed).choice([0.0, 0.5, 1.0, 2.0, 3.0, 3.7, 8.0, 12.0], (40, 4))
    names = {"SCALE": 2.5, "formula": formula, "entry": entry}
    space = {"np": np, **names}
    exec(EVERYTHING, space)
    wanted, found = table.copy(), table.copy()
    space["cost"](wanted)
    machine_code(EVERYTHING, **names)(found)
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


@pytest.mark.parametrize("device", ["h100", "a100", "rtxpro6000"])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_formula_of_arrays_is_that_of_numbers(name: str, device: str) -> None:
    """Fitted operators: numpy's answers and those of machine code, over random shapes."""
    module, rng = OPERATORS[name], np.random.default_rng(0)
    gpu = Gpu(*map(float, gpu_of(load(device))))
    constants = tuple(parameter.start for parameter in module.parameters)
    fixed = {"moe_tp_size": 2.0, "moe_ep_size": 1.0, "num_experts": 128.0, "topk": 8.0, "head_dim": 64.0, "num_heads": 32.0}
    fixed |= {"num_key_value_heads": 4.0, "stores_kv": 1.0, "window_size": 128.0, "matrices": 3.0, "kernel": 0.0, "is_warm": 1.0}
    table = np.exp(rng.uniform(0.0, 9.0, (100, len(module.arguments) + 1))).round()
    for i, argument in enumerate(module.arguments):
        table[:, i] = fixed.get(argument, table[:, i])
    wanted = module.seconds(gpu, np.array(constants), dict(zip(module.arguments, table.T, strict=False)))
    of_row = ", ".join(f"t[i, {i}]" for i in range(len(module.arguments)))
    source = f"def cost(t):\n    for i in range(t.shape[0]):\n        t[i, {len(module.arguments)}] = seconds({of_row})\n"
    machine_code(source, seconds=timed(name, gpu, constants))(table)
    np.testing.assert_allclose(table[:, -1], wanted, rtol=1e-14)


def test_a_source_is_compiled_once_for_what_its_names_are_and_an_integer_stays_one() -> None:
    source = "def cost(t):\n    t[0, 0] *= SCALE\n"
    table = np.ones((1, 1))
    for scale in (3.0, 5.0):
        machine_code(source, SCALE=scale)(table)
    assert table.tolist() == [[15.0]]
    assert machine_code(source, SCALE=3.0) is machine_code(source, SCALE=3.0)
    refuses(r"n is an integer; write int", machine_code, "def cost(t):\n    n = 1\n    n = t[0, 0]\n", error=TypeError)


def test_code_is_kept_on_disk_and_believed_while_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(code, "_compiled", code._compiled.__wrapped__)

    def value() -> float:
        table = np.ones((1, 1))
        machine_code.__wrapped__("def cost(t):\n    t[0, 0] = 17.0\n")(table)
        return float(table[0, 0])

    assert value() == 17.0
    [path] = tmp_path.rglob("machine_code_*")
    kept, file = path.read_bytes(), path.stat().st_ino
    assert value() == 17.0
    assert path.stat().st_ino == file  # found
    path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    assert value() == 17.0
    assert path.read_bytes() == kept  # made again


@pytest.mark.parametrize(
    ("formula", "why"),
    [
        (lambda a: 1.0 if a > 2.0 else 0.0, "write np.where"),
        (np.exp, "numpy.exp is no function of numbers here"),
        (np.cumsum, "numpy.cumsum is no function of numbers here; numpy.where is"),
    ],
)
def test_what_is_no_function_of_numbers_is_refused(formula, why: str) -> None:
    refuses(why, machine_code, "def cost(t):\n    t[0, 0] = formula(t[0, 0])\n", formula=formula, error=TypeError)

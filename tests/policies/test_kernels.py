"""Kernels: nothing is compiled before it is called, no machine code is used that another source would not give, and the order
that they share is stable; annotations of arrays in either form that numpy writes.
"""

import importlib.util
import os
import pickle
import pkgutil
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit, types
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

from tokentape.policies import future, kernels, lfu
from tokentape.policies.kernels import (
    KEPT,
    Kernel,
    array,
    digest,
    float64,
    function,
    int64,
    kernel,
    uint64,
    void,
)
from tokentape.policies.order import RUN, ascending

ROOT = Path(__file__).resolve().parents[2]
CALLER = """
import called
from called import shifted
from tokentape.policies.kernels import int64, kernel

@kernel(int64(int64))
def run(value):
    return shifted(value) * called.SCALE
"""
CALLED = """
from tokentape.policies.kernels import int64, kernel
SCALE = {scale}

@kernel({how})
def shifted(value):
    return value + {shift}
"""
# Prints the digest of every kernel, and whether numba was imported.
DIGESTS = """
import importlib, sys
from tokentape.policies.kernels import Kernel, digest
for name in {names}:
    module = importlib.import_module(name)
    spaces = [module, *(value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name)]
    for kernel in [value for space in spaces for named in vars(space) if isinstance(value := getattr(space, named), Kernel)]:
        print(kernel.__module__, kernel.__qualname__, digest(kernel))
print("numba" in sys.modules)
"""


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`sources(shift=1)` writes two files, a kernel in one and what it calls in the other, and loads the kernel."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files that change within a second
    (tmp_path / "caller.py").write_text(CALLER)

    def written(shift: int = 1, scale: int = 2, how: str = "int64(int64)") -> Kernel:
        (tmp_path / "called.py").write_text(CALLED.format(shift=shift, scale=scale, how=how))
        monkeypatch.setitem(sys.modules, "called", loaded(tmp_path / "called.py"))
        run = loaded(tmp_path / "caller.py").run
        assert isinstance(run, Kernel)
        return run

    return written


@pytest.mark.parametrize("how", ["int64(int64)", 'inline="always"'])
def test_a_change_in_another_file_is_noticed(sources: Any, tmp_path: Path, how: str) -> None:
    assert sources(1, 2, how)(10) == 22
    again = sources(1, 2, how)
    assert again(10) == 22
    assert again.compiled.stats.cache_hits  # read from disk, not compiled
    assert sources(5, 2, how)(10) == 30
    assert sources(5, 3, how)(10) == 45
    assert sources(5, 3, 'int64(int64), error_model="numpy"')(10) == 45
    assert len(list(tmp_path.rglob("caller.run-*.nbi"))) == len(list(tmp_path.rglob("caller.run-*.nbc"))) == KEPT


def test_who_waits_for_a_kernel_is_told_once(
    sources: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = sources()
    with caplog.at_level("INFO", "tokentape"):
        run(10)
        assert caplog.messages == []
        monkeypatch.setattr(kernels, "SAID_AFTER_S", 0.0)
        sources(5)(10)
    assert caplog.messages == ["compiling kernels, which the next run finds"]


def test_of_processes_that_need_a_kernel_one_compiles_it(sources: Any, tmp_path: Path) -> None:
    sources()
    script = "from caller import run; print(run(10), len(run.compiled.stats.cache_hits))"
    command = [sys.executable, "-c", script]
    started = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(process.communicate(timeout=120)[0] for process in started) == ["22 0\n", "22 1\n"]


def test_digests_are_the_same_in_every_process_and_need_no_numba() -> None:
    names = [
        module.name
        for room in ("policies", "replay", "capture/synthetic")
        for module in pkgutil.walk_packages([str(ROOT / room)], "tokentape." + room.replace("/", ".") + ".")
        if module.name != "tokentape.policies.machine_code"  # makes code when it is imported: whoever runs it imports it
    ]
    script = DIGESTS.format(names=names)
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # not this process's
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    *there, has_numba = done.stdout.splitlines()
    with redirect_stdout(StringIO()) as here:
        exec(script, {})
    assert there == here.getvalue().splitlines()[:-1]
    assert has_numba == "False"
    assert len({line.split()[-1] for line in there}) > 100


def test_types_are_those_of_numba() -> None:
    made = void(function(int64(array(float64, 1))), array(int64, 2), array(int64, 3, readonly=True))
    assert made.of_numba == types.void(
        types.FunctionType(types.int64(types.Array(types.float64, 1, "C"))),
        types.Array(types.int64, 2, "C"),
        types.Array(types.int64, 3, "C", readonly=True),
    )
    assert array(int64, 1)(array(int64, 1), int64).of_numba.return_type == types.Array(types.int64, 1, "C")
    assert type(uint64(3)) is np.uint64


def test_a_kernel_takes_kernels_and_functions_of_numba() -> None:
    @kernel(int64(function(int64(int64)), int64))
    def called(of, value):  # type: ignore[no-untyped-def]
        return of(value) + int64(uint64(1))

    @kernel(int64(int64))
    def doubled(value):  # type: ignore[no-untyped-def]
        return 2 * value

    @njit(types.int64(types.int64))
    def tripled(value):  # type: ignore[no-untyped-def]
        return 3 * value

    assert (called(doubled, 5), called(tripled, 5)) == (11, 16)
    assert digest(called) != digest(doubled)


def test_a_kernel_of_a_module_is_sent_to_other_processes_by_its_name() -> None:
    assert all(pickle.loads(pickle.dumps(kept)) is kept for kept in (lfu.LFU.rank, future.next_lookups))


def test_kernels_run_as_plain_python_where_numba_is_told_so() -> None:
    script = (
        "from tokentape.policies.kernels import *\n"
        "from tokentape.policies.sliced.ranking import Stock\n"
        "from tokentape.policies.sliced.ranking import compiled\n"
        "@kernel(int64(int64))\n"
        "def shifted(value): return uint64(value) + uint64(1)\n"
        "print(type(shifted(2)).__name__, compiled(Stock()).__name__)"
    )
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "uint64 choose\n"


T = TypeVar("T", bound=np.generic)
ALIAS = TypeAliasType("NDArray", np.ndarray[tuple[Any, ...], np.dtype[T]], type_params=(T,))


@pytest.mark.parametrize("form", [NDArray, ALIAS])
def test_the_scalar_of_an_array_whichever_form_it_is_written_in(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "NDArray", form)
    assert kernels.scalar_of(form[np.float64]) is np.float64
    assert [kernels.scalar_of(hint) for hint in (int, str | None, list[int], np.ndarray)] == [None] * 4


@given(st.lists(st.sampled_from([-np.inf, -1.5, -0.0, 0.0, 2.0, np.inf]), max_size=5 * RUN))
def test_ties_stay_as_they_stand(values: list[float]) -> None:
    assert ascending(np.array(values, np.float64)).tolist() == np.argsort(np.array(values, np.float64), kind="stable").tolist()


@pytest.mark.parametrize("n", [0, 1, RUN, RUN + 1, 2 * RUN, 7 * RUN + 3, 64 * RUN])
def test_numbers_of_any_count_are_in_order(n: int) -> None:
    values = np.random.default_rng(n).standard_normal(n)
    assert ascending(values).tolist() == np.argsort(values, kind="stable").tolist()

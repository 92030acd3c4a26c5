"""What bench/mutate.json names is there: a file under another name would be measured by the wrong tests, or by none."""

import re

import pytest

from bench.mutate import CORE, ROOT, TESTS

# Compiles kernels, and is tested by compiling them: nothing to see as plain Python.
LEFT_OUT = {"policies/kernels.py"}


@pytest.mark.parametrize("start", TESTS)
def test_every_path_is_there(start: str) -> None:
    assert (ROOT / start).exists()
    assert (ROOT / start).is_dir() == start.endswith("/")
    for words in TESTS[start]:
        path, _, test = words.partition("::")
        if path.startswith("tests/"):
            assert f"def {test.partition('[')[0]}(" in (ROOT / path).read_text() if test else (ROOT / path).is_file(), words


def test_every_file_with_a_kernel_has_its_tests() -> None:
    files = [path for room in CORE for path in (ROOT / room).rglob("*.py") if re.search(r"^@kernel\(", path.read_text(), re.M)]
    assert len(files) > 40
    named = {path.relative_to(ROOT).as_posix() for path in files} - LEFT_OUT
    assert [file for file in sorted(named) if not file.startswith(tuple(TESTS))] == []

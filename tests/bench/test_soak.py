"""A round of `make soak`: nothing is lost."""

import json
import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="counts and kills as Linux does")
@pytest.mark.parametrize(
    "words",
    [
        "--seed 1 --rounds 0:1 --stores folder --commands import",
        pytest.param("--seed 2 --rounds 0:2", marks=[pytest.mark.slow, pytest.mark.embedded]),  # every command, on S3 too
    ],
    ids=["short", "every command"],
)
def test_a_disturbed_round_makes_what_an_undisturbed_one_does(words: str) -> None:
    if "stores" not in words:
        pytest.importorskip("moto")
    done = subprocess.run([sys.executable, "-m", "bench.soak", *words.split()], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert {of["losses"] for of in json.loads(done.stdout.splitlines()[-1]).values() if isinstance(of, dict)} == {0}
